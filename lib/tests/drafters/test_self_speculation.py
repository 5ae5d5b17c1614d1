"""Early exit against the target's own hidden states."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lib.drafters.self_speculation import EarlyExitDrafter, first_layers, int8_self
from lib.forward.quantize import PackedLinear
from lib.measure.drafters import competing
from lib.tests import small_models

MODEL = small_models.llama(3, layers=3)


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_the_first_layers_say_what_the_targets_head_makes_of_them(layers):
    tokens = torch.stack(small_models.prompts(1, (12, 12)))
    inside = []
    MODEL.model.layers[layers - 1].register_forward_hook(lambda module, given, out: inside.append(out))
    logits = first_layers(MODEL, layers)(tokens, use_cache=False).logits
    MODEL(tokens, use_cache=False)
    early, whole = (out if torch.is_tensor(out) else out[0] for out in inside)
    torch.testing.assert_close(early, whole)
    torch.testing.assert_close(logits, MODEL.lm_head(MODEL.model.norm(whole)))


def test_weights_are_shared_and_the_target_stays_whole():
    drafter = EarlyExitDrafter(first_layers(MODEL, 2))
    owned = {parameter.data_ptr() for parameter in MODEL.parameters()}
    assert all(parameter.data_ptr() in owned for parameter in drafter.model.parameters())
    assert len(MODEL.model.layers) == MODEL.config.num_hidden_layers == 3
    assert len(drafter.model.model.layers) == drafter.model.config.num_hidden_layers == 2


def test_the_target_in_int8_shares_what_is_not_int8_self():
    model = int8_self(MODEL)
    assert model.get_input_embeddings().weight is MODEL.get_input_embeddings().weight
    assert model.lm_head.weight is MODEL.lm_head.weight and model.model.norm.weight is MODEL.model.norm.weight
    layer, own = model.model.layers[1].mlp.up_proj, MODEL.model.layers[1].mlp.up_proj
    assert isinstance(layer, PackedLinear) and isinstance(own, torch.nn.Linear)
    assert (layer.panels.rows() - own.weight).abs().max() <= 0.51 * layer.scale.max()


def test_what_has_no_first_layers_is_refused():
    for layers in (0, 3):
        with pytest.raises(ValueError, match=f"layers is {layers}; give 1 to 2"):
            first_layers(MODEL, layers)
    other = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=9, n_positions=16))
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no model.layers"):
        first_layers(other, 1)
    with pytest.raises(ValueError, match="no linear layers but its output layer, so there is nothing to round"):
        int8_self(other)
    pair = SimpleNamespace(target=other, target_name="t", drafter_name="d", draft_model=other,
                           vocabulary=9)
    assert not {"early_exit:1", "int8"} & competing([pair], []).keys() and "sam" in competing([pair], [])
