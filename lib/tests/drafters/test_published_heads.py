"""Published layouts: folders as Medusa and EAGLE write them load into the heads; broken ones are refused by key."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from lib.drafters import make
from lib.drafters.heads import published
from lib.drafters.heads.published import feature_layers
from lib.tests import live, small_models
from lib.trees import named

TARGET = small_models.llama(3, layers=6)
PROMPTS = small_models.prompts(5, (3, 7))
V, H, DRAFTED = small_models.VOCABULARY, 32, 10


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / shape[-1] ** 0.5


def medusa_tensors(heads=3, layers=2):
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors |= {f"{head}.{layer}.linear.weight": numbers(H, H), f"{head}.{layer}.linear.bias": numbers(H)}
        tensors[f"{head}.{layers}.weight"] = numbers(V, H)
    return tensors


def layer_tensors(prefix, inputs):
    return {f"{prefix}.self_attn.{name}_proj.weight": numbers(rows, columns) for name, rows, columns in (
                ("q", 32, inputs), ("k", 16, inputs), ("v", 16, inputs), ("o", H, 32))} | {
            f"{prefix}.mlp.gate_proj.weight": numbers(48, H), f"{prefix}.mlp.up_proj.weight": numbers(48, H),
            f"{prefix}.mlp.down_proj.weight": numbers(H, 48),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(H)}


def eagle3_tensors():
    chosen = torch.arange(0, 2 * DRAFTED, 2)
    return {"fc.weight": numbers(H, 3 * H), "norm.weight": torch.ones(H), "lm_head.weight": numbers(DRAFTED, H),
            "d2t": chosen - torch.arange(DRAFTED), "t2d": torch.isin(torch.arange(V), chosen),
            **layer_tensors("midlayer", 2 * H), "midlayer.hidden_norm.weight": torch.ones(H),
            "midlayer.input_layernorm.weight": torch.ones(H)}


def dflash_tensors(layers=2):
    """DFlash's: of layers with normed queries and keys."""
    own = {}
    for layer in range(layers):
        prefix = f"layers.{layer}"
        own |= layer_tensors(prefix, H) | {f"{prefix}.input_layernorm.weight": 1 + numbers(H),
                                           f"{prefix}.self_attn.q_norm.weight": 1 + numbers(8),
                                           f"{prefix}.self_attn.k_norm.weight": 1 - numbers(8)}
    return {"fc.weight": numbers(H, 2 * H), "hidden_norm.weight": 1 + numbers(H), "norm.weight": 1 - numbers(H), **own}


def dspark_tensors():
    return {**dflash_tensors(), "embed_tokens.weight": numbers(V, H), "lm_head.weight": numbers(V, H),
            "markov_head.markov_w1.weight": numbers(V, 4), "markov_head.markov_w2.weight": 4 * numbers(V, 4),
            "confidence_head.proj.weight": numbers(1, H + 4), "confidence_head.proj.bias": numbers(1)}


def speculators_tensors():
    chosen = torch.arange(0, 2 * DRAFTED, 2)
    return {**dflash_tensors(), "lm_head.weight": numbers(DRAFTED, H), "d2t": chosen - torch.arange(DRAFTED),
            "t2d": torch.isin(torch.arange(V), chosen)}


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "vocab_size": V,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 1,
         "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "pad_token_id": 0, "torch_dtype": "float16"}
LAYOUTS = {
    "medusa": ({"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "somebody/model"},
               medusa_tensors(), "medusa_lm_head.safetensors"),
    "eagle3": (LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED, "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [2, 3, 5]}}, eagle3_tensors(), "model.safetensors"),
}

QWEN = LLAMA | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 8,
                "attention_bias": False, "layer_types": ["full_attention"] * 2, "block_size": 5}
PLACES = {"target_layer_ids": [0, 3], "mask_token_id": 7}
NESTED = ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim",
          "num_hidden_layers", "model_type", "rms_norm_eps")
LAYOUTS |= {
    "dflash": (QWEN | {"dflash_config": PLACES}, dflash_tensors(), "model.safetensors"),
    "dspark": (QWEN | PLACES | {"markov_rank": 4, "markov_head_type": "vanilla", "enable_confidence_head": True,
                                "confidence_head_with_markov": True}, dspark_tensors(), "model.safetensors"),
}
SPECULATORS = {"transformer_layer_config": {name: QWEN[name] for name in NESTED}, "block_size": 5, "mask_token_id": 7,
               "aux_hidden_state_layer_ids": [1, 4], "draft_vocab_size": DRAFTED, "speculators_model_type": "dflash"}
RENAMED = {"feature_norm.weight": "hidden_norm.weight", "markov.embed.weight": "markov_head.markov_w1.weight",
           "markov.head.weight": "markov_head.markov_w2.weight"}


def write(folder, kind, config=None, tensors=None):
    given, held, name = LAYOUTS[kind]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given if config is None else config))
    held = held if tensors is None else tensors
    save_file({key: tensor.contiguous() for key, tensor in held.items()}, folder / name)
    return folder


@pytest.mark.parametrize("kind", LAYOUTS)
def test_published_heads_load_and_draft(kind, tmp_path):
    drafter = make(kind, SimpleNamespace(target=TARGET), folder=str(write(tmp_path / "head", kind)))
    for name, tensor in drafter.head.state_dict().items():
        where = RENAMED.get(name, name)
        if kind == "medusa":  # after two blocks comes a head's output layer
            where = re.sub(r"^outputs\.(\d+)\.", r"\1.2.", name.removeprefix("stacks."))
        assert name == "tokens" or torch.equal(tensor, LAYOUTS[kind][1][where].to(tensor.dtype))
    assert is_lossless(kind, tmp_path / "head")


def test_medusa_counts_the_heads_that_are_there_and_knows_whole_models(tmp_path):
    whole = {f"medusa_head.{name}": tensor for name, tensor in medusa_tensors().items()}
    whole["lm_head.weight"] = numbers(V, H)
    for tensors in (None, whole):
        head = published.load("medusa", write(tmp_path / "m", "medusa", tensors=tensors), TARGET)
        assert head.depth == 3, "config.json says 2"
        hidden = torch.randn(5, H, dtype=torch.float64)
        expected, given = hidden, medusa_tensors()
        for layer in range(2):
            linear = expected @ given[f"1.{layer}.linear.weight"].double().T + given[f"1.{layer}.linear.bias"]
            expected = expected + linear * linear.sigmoid()
        found = head.logits(head.states(hidden), TARGET.lm_head)[:, 1]
        torch.testing.assert_close(found, expected @ given["1.2.weight"].double().T)


def test_medusa_heads_without_an_output_layer_share_the_targets(tmp_path):
    tensors = {name: tensor for name, tensor in medusa_tensors().items() if "linear" in name}
    head = published.load("medusa", write(tmp_path / "m", "medusa", tensors=tensors), TARGET)
    states = head.states(torch.randn(5, H, dtype=torch.float64))
    torch.testing.assert_close(head.logits(states, TARGET.lm_head), TARGET.lm_head(states))
    tensors |= {"1.2.weight": numbers(V, H)}
    with pytest.raises(ValueError, match=r"missing: 0\.2\.weight, 2\.2\.weight"):
        published.load("medusa", write(tmp_path / "m", "medusa", tensors=tensors), TARGET)


def test_the_nested_form_of_eagle_3_is_the_same_head(tmp_path):
    config, tensors, _ = LAYOUTS["eagle3"]
    own = ("draft_vocab_size", "eagle_config")
    nested = {name: config[name] for name in own} | {"transformer_layer_config": {
        name: value for name, value in config.items() if name not in own}}
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    usual = published.load("eagle3", write(tmp_path / "a", "eagle3"), TARGET)
    found = published.load("eagle3", write(tmp_path / "b", "eagle3", config=nested, tensors=renamed), TARGET)
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in usual.state_dict().items())
    assert found.config.feature_layers == usual.config.feature_layers


@pytest.mark.parametrize("normed", [True, False])
def test_the_residual_of_eagle_3_is_the_feature_or_the_normed_one(normed, tmp_path):
    config = LAYOUTS["eagle3"][0] | {"norm_before_residual": normed, "num_hidden_layers": 40}  # 40: the target's
    head = published.load("eagle3", write(tmp_path / "head", "eagle3", config=config), TARGET)
    features, embedded = torch.randn(2, 1, 5, H, dtype=torch.float64).unbind()
    residual, read = head.enter(features, embedded)
    assert torch.equal(residual, read[..., H:] if normed else features)


@pytest.mark.parametrize("turned", [False, True])
def test_a_draft_vocabulary_maps_to_the_targets_tokens(turned, tmp_path):
    """Also where d2t gives its tokens in another order."""
    tensors = eagle3_tensors()
    if turned:
        tokens = (torch.arange(DRAFTED) + tensors["d2t"]).flip(0)
        tensors |= {"d2t": tokens - torch.arange(DRAFTED), "lm_head.weight": tensors["lm_head.weight"].flip(0)}
    head = published.load("eagle3", write(tmp_path / "e", "eagle3", tensors=tensors), TARGET)
    assert head.tokens.tolist() == list(range(0, 2 * DRAFTED, 2)) and head.config.feature_layers == [2, 3, 5]
    assert torch.equal(head.lm_head.weight, eagle3_tensors()["lm_head.weight"].double())


class Plain:
    """Tensors of a file as functions, in float64."""

    def __init__(self, tensors):
        self.given = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}

    def normed(self, x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.given[f"{name}.weight"]

    def heads(self, x, layer, name, count):
        return (x @ self.given[f"{layer}.self_attn.{name}_proj.weight"].T).view(len(x), count, 8)

    def attend(self, query, key, value, sees, layer):
        """query [n, 4, 8], key and value [m, 2, 8], sees bool[n, m] to [n, H]."""
        out = []
        for head in range(4):
            scores = (query[:, head] @ key[:, head // 2].T / 8**0.5).masked_fill(~sees, float("-inf"))
            out.append(scores.softmax(-1) @ value[:, head // 2])
        return torch.cat(out, dim=-1) @ self.given[f"{layer}.self_attn.o_proj.weight"].T

    def mlp(self, x, layer):
        gate, up, down = (self.given[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return silu(x @ gate.T) * (x @ up.T) @ down.T


def turned(x, places):
    """Rotary positions of [n, heads, 8]."""
    angles = places[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def is_lossless(kind, folder, shape="kary:2@6"):
    drafter = make(kind, SimpleNamespace(target=TARGET), folder=str(folder))
    done = live.decode(TARGET, drafter, PROMPTS, shape=shape, max_new_tokens=9)
    own = [TARGET.generate(prompt[None], max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=None)
           for prompt in PROMPTS]
    return done.new_tokens == [row[0, len(prompt):].tolist() for row, prompt in zip(own, PROMPTS)]


def plain_block(tensors, text):
    """The states [5, H] of a DFlash or DSpark block after a text, whose last token is its root, written out."""
    plain, hidden = Plain(tensors), TARGET(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    fused = torch.cat([hidden[1][0], hidden[4][0]], dim=-1) @ plain.given["fc.weight"].T
    context = plain.normed(fused, "hidden_norm")
    table = plain.given.get("embed_tokens.weight", TARGET.get_input_embeddings().weight)
    x, places = table[[text[-1], 7, 7, 7, 7]], torch.arange(len(context) + 5)
    sees = torch.ones(5, len(places), dtype=torch.bool)
    for layer in ("layers.0", "layers.1"):
        def attention(block):
            both = torch.cat([context, block])
            query = turned(plain.normed(plain.heads(block, layer, "q", 4), f"{layer}.self_attn.q_norm"), places[-5:])
            key = turned(plain.normed(plain.heads(both, layer, "k", 2), f"{layer}.self_attn.k_norm"), places)
            return plain.attend(query, key, plain.heads(both, layer, "v", 2), sees, layer)

        x = x + attention(plain.normed(x, f"{layer}.input_layernorm"))
        x = x + plain.mlp(plain.normed(x, f"{layer}.post_attention_layernorm"), layer)
    return plain.normed(x, "norm")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_published_blocks_draft_as_their_layout_says(kind, tmp_path):
    """DFlash's places predict their own token, DSpark's the next one, after what its parent adds."""
    drafter = make(kind, SimpleNamespace(target=TARGET), folder=str(write(tmp_path / "head", kind)))
    tensors, text = LAYOUTS[kind][1], PROMPTS[1].tolist()
    drafter.start([torch.tensor(text)])
    drafter.commit([[]], [3], TARGET(torch.tensor([text]), output_hidden_states=True))
    (draft,) = drafter.propose(named("chain:8"), None)
    states = plain_block(tensors, [*text, 3])
    output = tensors.get("lm_head.weight", TARGET.lm_head.weight).double()
    tokens = [3]
    for state in states if kind == "dspark" else states[1:]:
        logits = output @ state
        if kind == "dspark":
            first, second = (tensors[f"markov_head.markov_w{part}.weight"].double() for part in (1, 2))
            logits = logits + second @ first[tokens[-1]]
        tokens.append(int(logits.argmax()))
    assert draft.tokens.tolist() == tokens and len(tokens) == (6 if kind == "dspark" else 5)


def test_speculators_form_of_dflash_is_the_same_head_over_fewer_tokens(tmp_path):
    usual = published.load("dflash", write(tmp_path / "a", "dflash"), TARGET)
    found = published.load("dflash", write(tmp_path / "b", "dflash", config=SPECULATORS, tensors=speculators_tensors()),
                           TARGET)
    held = found.state_dict()
    assert all(torch.equal(tensor, held[name]) for name, tensor in usual.state_dict().items())
    assert held.keys() - usual.state_dict().keys() == {"tokens", "lm_head.weight"}
    assert found.config.feature_layers == usual.config.feature_layers == [1, 4]
    assert found.tokens.tolist() == list(range(0, 2 * DRAFTED, 2))
    assert is_lossless("dflash", tmp_path / "b")
    lost = {name: tensor for name, tensor in speculators_tensors().items() if name != "d2t"}
    with pytest.raises(ValueError, match="drafts 10 of 24 tokens, but has no d2t or no lm_head"):
        published.load("dflash", write(tmp_path / "c", "dflash", config=SPECULATORS, tensors=lost), TARGET)


def test_features_come_from_the_configs_layers_or_the_usual_ones():
    ids = "eagle_aux_hidden_state_layer_ids"
    assert feature_layers({}, TARGET.config) == [2, 3, 3]
    assert feature_layers({"eagle_config": {ids: [0, 2, 4]}}, TARGET.config) == [0, 2, 4]
    assert feature_layers({ids: [1, 3, 5], "eagle_config": {ids: [0, 2, 4]}}, TARGET.config) == [1, 3, 5]


def test_a_feature_that_transformers_norms_is_refused(tmp_path):
    """vLLM's last one is the residual before the final norm."""
    config = LAYOUTS["eagle3"][0] | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}}
    with pytest.raises(ValueError, match="hidden state 6 before the final norm, which transformers does not give"):
        published.load("eagle3", write(tmp_path / "e", "eagle3", config=config), TARGET)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_partial_or_wrong_layout_is_refused_with_its_keys(kind, tmp_path):
    config, tensors, _ = LAYOUTS[kind]
    lost = next(name for name in tensors if name.endswith(("gate_proj.weight", "1.0.linear.bias")))
    wrong = {name: tensor for name, tensor in tensors.items() if name != lost} | {"extra.weight": numbers(2, 2)}
    with pytest.raises(ValueError) as error:
        published.load(kind, write(tmp_path / "a", kind, tensors=wrong), TARGET)
    assert f"missing: {lost}; unexpected: extra.weight" in str(error.value)
    name = next(name for name in tensors if name.endswith(("fc.weight", "0.0.linear.weight")))
    with pytest.raises(ValueError, match=r"of another shape: .*\(3, 3\) for"):
        published.load(kind, write(tmp_path / "b", kind, tensors=tensors | {name: numbers(3, 3)}), TARGET)
    with pytest.raises(ValueError, match="hidden_size 48"):
        other = {**LLAMA, **config, "hidden_size": 48}
        published.load(kind, write(tmp_path / "c", kind, config=other), TARGET)


def test_tensors_that_contradict_one_another_are_refused(tmp_path):
    doubled = eagle3_tensors() | {"d2t": torch.zeros(DRAFTED, dtype=torch.long)}
    with pytest.raises(ValueError, match="d2t and t2d of .* name different tokens"):
        published.load("eagle3", write(tmp_path / "a", "eagle3", tensors=doubled), TARGET)
    tensors = eagle3_tensors()
    name = next(name for name in tensors if name.startswith("midlayer."))
    twice = tensors | {name.replace("midlayer.", "layers.0."): tensors[name] + 1}
    with pytest.raises(ValueError, match=r"holds layers\.0\..* a second time as midlayer"):
        published.load("eagle3", write(tmp_path / "b", "eagle3", tensors=twice), TARGET)


@pytest.mark.parametrize("kind, wrong, message", [
    ("medusa", {"medusa_num_heads": "5"}, "medusa_num_heads '5', which must count"),
    ("medusa", {"medusa_num_layers": None}, "medusa_num_layers None, which must count"),
    ("eagle3", {"hidden_size": "32"}, "hidden_size '32', which must count"),
    ("eagle3", {"hidden_size": None, "vocab_size": None}, "lacks hidden_size, vocab_size"),
    ("eagle3", {"rms_norm_eps": None}, "'rms_norm_eps' expected float"),
    ("eagle3", {"num_attention_heads": 0}, "num_attention_heads 0, which must count"),
    ("eagle3", {"hidden_act": "no such"}, "not that of a Llama layer .'no such'"),
    ("eagle3", {"rope_scaling": {"type": "no such"}}, "not that of a Llama layer .'no such'"),
    ("eagle3", {"draft_vocab_size": -3}, "draft_vocab_size -3, which must count"),
    ("eagle3", {"transformer_layer_config": "x"}, "values that make no head .TypeError: 'str' object is not a mapping"),
    ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["1"]}}, r"reads the hidden states \['1'\]"),
    ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": 1}}, "values that make no head .TypeError"),
    ("eagle3", {"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [1.5]}, r"states \[1.5\], this target of 6"),
    ("eagle3", {"num_attention_heads": 5}, "not a multiple of the number of attention heads"),
    ("dflash", {"dflash_config": {"mask_token_id": 7}}, "names no layers of the target"),
    ("dflash", {"dflash_config": PLACES | {"mask_token_id": V}}, "has mask_token_id 24, which is none of the 24"),
    ("dflash", {"dflash_config": PLACES | {"target_layer_ids": [0, 6]}}, r"hidden states \[1, 7\], this target of 6"),
    ("dflash", {"sliding_window": 12}, "has sliding_window, which is not read here"),
    ("dflash", {"dflash_config": PLACES | {"causal_head": True}}, "has causal_head, which is not read here"),
    ("dflash", {"block_size": "5"}, "block_size '5', which must count"),
    ("dflash", {"dflash_config": 3}, "values that make no head .TypeError: argument of type 'int'"),
    ("dspark", {"markov_head_type": "rnn"}, "markov_head_type 'rnn'; heads with 'vanilla'"),
    ("dspark", {"markov_rank": 0}, "markov_rank 0, which must count"),
    ("dspark", {"speculators_model_type": "dspark"}, "in the form of speculators, which is not read here"),
    ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}}, r"hidden states \[2, 3, 7\], this "
     "target of 6 layers has 0 to 6"),
])
def test_what_a_config_says_wrongly_is_named(kind, wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        published.load(kind, write(tmp_path / "head", kind, config=LAYOUTS[kind][0] | wrong), TARGET)


def test_the_usual_features_need_enough_layers(tmp_path):
    """Of a target of two layers the third last would be counted from the end without a word."""
    config = {name: value for name, value in LAYOUTS["eagle3"][0].items() if name != "eagle_config"}
    with pytest.raises(ValueError, match=r"hidden states \[2, 1, -1\], this target of 2 layers"):
        published.load("eagle3", write(tmp_path / "head", "eagle3", config=config), small_models.llama(3))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_integers_are_no_weights(kind, tmp_path):
    """Quantised weights without their scales would be read as numbers up to 127."""
    rounded = {name: tensor.round().to(torch.int8) if tensor.is_floating_point() else tensor
               for name, tensor in LAYOUTS[kind][1].items()}
    with pytest.raises(ValueError, match="of another kind of number: .* torch.int8 for"):
        published.load(kind, write(tmp_path / "a", kind, tensors=rounded), TARGET)
    if kind == "eagle3":
        maps = eagle3_tensors() | {"d2t": eagle3_tensors()["d2t"].float()}
        with pytest.raises(ValueError, match="d2t torch.float32 for torch.int64"):
            published.load(kind, write(tmp_path / "b", kind, tensors=maps), TARGET)


def test_shards_are_read_together_and_a_lost_one_is_missed(tmp_path):
    folder, (_, tensors, _) = write(tmp_path / "head", "eagle3"), LAYOUTS["eagle3"]
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    for part in range(3):
        held = {name: tensors[name].contiguous() for name in names[part::3]}
        save_file(held, folder / f"model-{part + 1:05}-of-00003.safetensors")
    whole = published.load("eagle3", write(tmp_path / "whole", "eagle3"), TARGET).state_dict()
    found = published.load("eagle3", folder, TARGET).state_dict()
    assert whole.keys() == found.keys() and all(torch.equal(whole[name], found[name]) for name in whole)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="missing: " + ", ".join(names[1::3])):
        published.load("eagle3", folder, TARGET)


def test_nothing_is_unpickled(tmp_path):
    folder = write(tmp_path / "m", "medusa")
    (folder / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(ValueError, match="has no safetensors"):
        published.load("medusa", folder, TARGET)
    (folder / "medusa_lm_head.pt").write_bytes(b"whatever")
    with pytest.raises(ValueError, match="medusa_lm_head.pt: a pickle, which can run code"):
        published.load("medusa", folder, TARGET)
    (folder / "medusa_lm_head.safetensors").write_bytes(b"no header")
    with pytest.raises(ValueError, match="broken safetensors"):
        published.load("medusa", folder, TARGET)
    (folder / "config.json").write_text("{half")
    with pytest.raises(ValueError, match="config.json of .* is no JSON"):
        published.load("medusa", folder, TARGET)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="no config.json"):
        published.load("medusa", folder, TARGET)


def test_a_place_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="there is no folder"):
        published.load("eagle3", str(tmp_path / "nowhere"), TARGET)
    with pytest.raises(ValueError, match="not on this machine and the hub cannot be reached"):
        published.load("eagle3", "nobody/no-such-head-of-ours", TARGET)
