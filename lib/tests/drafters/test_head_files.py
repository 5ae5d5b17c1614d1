"""Folders of heads in their authors' layouts: they draft as the layout defines it; broken ones are refused by name."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from lib.drafters import make
from lib.drafters.heads import files
from lib.tests import small_heads, small_models
from lib.tests.plain_drafter import filled
from lib.tests.plain_heads import EPSILON, PlainHead
from lib.trees import named

TARGET = small_models.llama(3, layers=6)
PROMPTS = small_models.prompts(5, (3, 7))
V, H, DRAFTED = small_models.VOCABULARY, 32, 10
TOKENS = torch.arange(0, 2 * DRAFTED, 2)  # those that heads of a part draft
MAPS = {"d2t": TOKENS - torch.arange(DRAFTED), "t2d": torch.isin(torch.arange(V), TOKENS)}


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / shape[-1] ** 0.5


def layer_tensors(prefix, inputs):
    shapes = {"self_attn.q": (H, inputs), "self_attn.k": (16, inputs), "self_attn.v": (16, inputs),
              "self_attn.o": (H, H), "mlp.gate": (48, H), "mlp.up": (48, H), "mlp.down": (H, 48)}
    return {f"{prefix}.{name}_proj.weight": numbers(*shape) for name, shape in shapes.items()} | {
        f"{prefix}.post_attention_layernorm.weight": torch.ones(H), f"{prefix}.input_layernorm.weight": 1 + numbers(H)}


def block_tensors():
    norms = {f"layers.{layer}.self_attn.{name}_norm.weight": 1 + numbers(8) for layer in range(2) for name in "qk"}
    return {"fc.weight": numbers(H, 2 * H), "hidden_norm.weight": 1 + numbers(H), "norm.weight": 1 - numbers(H),
            **layer_tensors("layers.0", H), **layer_tensors("layers.1", H), **norms}


BLOCKS = {f"{head}.{block}.linear.{part}": numbers(*shape) for head in range(3) for block in range(2)
          for part, shape in (("weight", (H, H)), ("bias", (H,)))}
EAGLE3 = {"fc.weight": numbers(H, 3 * H), "norm.weight": 0.2 + numbers(H).abs(), **MAPS,
          "lm_head.weight": 4 * numbers(DRAFTED, H), **layer_tensors("midlayer", 2 * H),
          "midlayer.hidden_norm.weight": torch.ones(H)}
DSPARK = {**block_tensors(), "embed_tokens.weight": numbers(V, H), "lm_head.weight": numbers(V, H),
          "markov_head.markov_w1.weight": numbers(V, 4), "markov_head.markov_w2.weight": 4 * numbers(V, 4),
          "confidence_head.proj.weight": numbers(1, H + 4), "confidence_head.proj.bias": numbers(1)}
LLAMA = {"model_type": "llama", "hidden_size": H, "vocab_size": V, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "max_position_embeddings": 256, "rms_norm_eps": EPSILON, "torch_dtype": "float16"}
QWEN = LLAMA | {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 8, "block_size": 5, "sliding_window": None}
INNER, IDS = {"target_layer_ids": [0, 3], "mask_token_id": 7}, "eagle_aux_hidden_state_layer_ids"
LAYOUTS = {  # kind -> config.json, tensors, and what both say to `PlainHead`
    "medusa": ({"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "somebody/model"},
               BLOCKS | {f"{head}.2.weight": numbers(V, H) for head in range(3)}, {"features": []}),
    "eagle3": (LLAMA | {"draft_vocab_size": DRAFTED, "eagle_config": {IDS: [2, 3, 5]}}, EAGLE3,
               {"features": [2, 3, 5], "tokens": TOKENS}),
    "dflash": (QWEN | {"dflash_config": INNER}, block_tensors(), {"features": [1, 4], "block_size": 5, "mask": 7}),
    "dspark": (QWEN | INNER | {"markov_rank": 4, "enable_confidence_head": True}, DSPARK,
               {"features": [1, 4], "block_size": 5, "mask": 7}),
}


def write(folder, kind, changes=None, tensors=None, shards=1):
    folder.mkdir()
    settings, tensors = LAYOUTS[kind][0], tensors or LAYOUTS[kind][1]
    (folder / "config.json").write_text(json.dumps(settings | (changes or {})))
    for shard in range(shards):
        save_file({name: tensors[name].contiguous() for name in sorted(tensors)[shard::shards]},
                  folder / f"model-{shard}.safetensors")
    return folder


def load(folder, kind, **changed):
    return files.load(kind, write(folder / "head", kind, **changed), TARGET)


def drafted(kind, folder, text, shape="chain:8"):
    """The drafter's tokens after a text, whose last token is the root."""
    drafter = make(kind, SimpleNamespace(target=TARGET), {"folder": str(folder)})
    drafter.start([torch.tensor(text[:-1])])
    drafter.commit([[]], text[-1:], TARGET(torch.tensor([text[:-1]]), output_hidden_states=True))
    (draft,) = drafter.propose(named(shape), None)
    return draft.token_list


NO_MARKOV = {name: tensor for name, tensor in DSPARK.items() if not name.startswith("markov_head")}


@torch.no_grad()
@pytest.mark.parametrize("kind, changes, acts_as", [
    *((kind, {}, kind) for kind in LAYOUTS), ("eagle3", {"norm_before_residual": True}, "eagle3"),
    ("dspark", {"markov_rank": 0, "dflash_config": INNER}, "dspark"),
    ("dspark", {"sample_from_anchor": False}, "dflash"), ("dflash", {"sample_from_anchor": True}, "dspark")])
def test_a_head_drafts_as_its_layout_says(kind, changes, acts_as, tmp_path):
    """Down to its last depth, in shards. Of Medusa's config.json, which says 2, the file has more heads."""
    tensors = LAYOUTS[kind][1] if "markov_rank" not in changes else NO_MARKOV
    folder = write(tmp_path / "head", kind, changes, tensors, shards=3)
    plain = PlainHead(acts_as, TARGET, tensors, normed_residual="norm_before_residual" in changes, **LAYOUTS[kind][2])
    depth = {"medusa": 3, "eagle3": 4, "dflash": 4, "dspark": 5}[acts_as]
    for text in ([*prompt.tolist(), token] for prompt in PROMPTS for token in range(3, 9)):
        found = drafted(kind, folder, text, "chain:4" if kind == "eagle3" else "chain:8")
        assert found == filled(plain.logits, text, named(f"chain:{depth}")).token_list


@pytest.mark.parametrize("kind, changes, states", [
    ("eagle3", {"eagle_config": None}, [2, 3, 3]), ("dflash", {"dflash_config": {"mask_token_id": 7}}, [2, 4])])
def test_layers_that_are_not_named_are_guessed_with_a_warning(kind, changes, states, tmp_path):
    with pytest.warns(UserWarning, match=f"not say which layers .* the hidden states .{', '.join(map(str, states))}]"):
        assert load(tmp_path, kind, changes=changes).config.feature_layers == states


def test_heads_of_medusa_may_share_the_targets_output_and_stand_in_its_repository(tmp_path):
    tensors = {f"medusa_head.{name}": tensor for name, tensor in BLOCKS.items()} | {"lm_head.weight": numbers(V, H)}
    head, text = load(tmp_path, "medusa", tensors=tensors), [*PROMPTS[1].tolist(), 3]
    assert head.depth == 3 and not head.has_outputs and head.lm_head is None
    expected = filled(PlainHead("medusa", TARGET, BLOCKS, features=[]).logits, text, named("chain:3"))
    assert drafted("medusa", tmp_path / "head", text) == expected.token_list


@pytest.mark.parametrize("kind", files.KINDS)
@pytest.mark.parametrize("part", [False, True])
def test_a_saved_head_is_the_same_again(kind, part, tmp_path):
    head = small_heads.head(kind, TARGET, 3, draft_vocab_size=DRAFTED if part else None)
    files.save(head, tmp_path / "once", torch.float64)
    again = files.load(kind, tmp_path / "once", TARGET)
    states, tensors = head.state_dict(), again.state_dict()
    assert states.keys() == tensors.keys() and all(torch.equal(states[name], tensors[name]) for name in states)
    assert kind == "medusa" or again.config.feature_layers == head.config.feature_layers
    files.save(again, tmp_path / "twice", torch.float64)
    once, twice = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("once", "twice"))
    assert {name: value for name, value in once.items() if value is not None} == {
        name: value for name, value in twice.items() if value is not None}
    other = "dflash" if kind == "eagle3" else "eagle3"
    with pytest.raises(ValueError, match=f"holds no {other} head for this target"):
        files.load(other, tmp_path / "once", TARGET)


@pytest.mark.parametrize("maps", [{}, {"d2t": torch.zeros(V, dtype=torch.long), "t2d": torch.ones(V).bool()}])
def test_a_draft_vocabulary_may_be_whole(maps, tmp_path):
    tensors = {name: tensor for name, tensor in EAGLE3.items() if name not in MAPS} | {"lm_head.weight": numbers(V, H)}
    head = load(tmp_path, "eagle3", tensors=tensors | maps)
    assert head.tokens is None and torch.equal(head.lm_head.weight, numbers(V, H).double())


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind, changed, message", [
    ("medusa", {"medusa_num_layers": "2"}, "has medusa_num_layers '2', which must count"),
    ("eagle3", {"hidden_size": "32"}, "hidden_size '32', this one has 32"),
    ("eagle3", {"vocab_size": None}, "vocab_size None, this one has 24"),
    ("eagle3", {"rms_norm_eps": "x"}, "Field 'rms_norm_eps' expected float, got str"),
    ("eagle3", {"hidden_act": "no such"}, "no such"),
    ("eagle3", {"intermediate_size": 10**12}, "size mismatch for midlayer.mlp.gate_proj.weight"),
    ("eagle3", {"eagle_config": {IDS: ["1"]}}, r"reads the hidden states \['1'\]"),
    ("eagle3", {"eagle_config": {IDS: [2, 4, 6]}}, "hidden state 6 before the final norm, which transformers does not"),
    ("eagle3", {"norm_output": True}, "config.json has norm_output, which is not read here"),
    ("eagle3", {"eagle_config": {IDS: []}}, r"hidden states \[\]"),
    ("eagle3", {"eagle_config": {IDS: [2, 3, 5], "use_aux_hidden_state": False}}, "has use_aux_hidden_state false"),
    ("dflash", {"dflash_config": INNER | {"markov_rank": 4}}, "has markov_rank 4, as heads of kind dspark; load one"),
    ("dflash", {"sample_from_anchor": "yes"}, "has sample_from_anchor 'yes', which must be true or false"),
    ("dflash", {"dflash_config": INNER | {"mask_token_id": V}}, "has mask_token_id 24, which is none of the 24"),
    ("dflash", {"dflash_config": INNER | {"target_layer_ids": [0, 6]}}, r"hidden states \[1, 7\], this target of 6"),
    ("dflash", {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, which must count"),
    ("dspark", {"markov_rank": None}, "markov_rank None, which must count"),
    *((kind, {name: t for name, t in LAYOUTS[kind][1].items() if name != lost} | {"extra.weight": numbers(2, 2)},
       f'Missing key.*"{lost}".*Unexpected key.*"extra.weight"') for kind, lost in (
        ("medusa", "1.0.linear.bias"), ("eagle3", "midlayer.mlp.gate_proj.weight"), ("dspark", "fc.weight"))),
    ("medusa", BLOCKS | {"0.2.weight": numbers(V, H)}, r'Missing key.*"1\.2\.weight", "2\.2\.weight"'),
    ("eagle3", EAGLE3 | {"fc.weight": numbers(3, 3)}, "size mismatch for fc.weight"),
    ("eagle3", EAGLE3 | {"fc.weight": numbers(H, 3 * H) / 0 * 0}, "NaN is in fc.weight"),
    ("eagle3", EAGLE3 | {"fc.weight": EAGLE3["fc.weight"].to(torch.int8)}, "floating point"),
    ("eagle3", {name: EAGLE3[name] for name in EAGLE3 if name not in MAPS}, "size mismatch for lm_head.weight"),
    *(("eagle3", EAGLE3 | {"d2t": offsets}, "no tokens of the target's 24 in ascending order") for offsets in (
        MAPS["d2t"].float(), torch.full((DRAFTED,), V), torch.arange(0, -DRAFTED, -1), MAPS["d2t"] - 1)),
    ("eagle3", EAGLE3 | {"d2t": torch.zeros(0).long()}, "index 0 is out of bounds"),
])
def test_settings_and_tensors_that_do_not_fit_are_named(kind, changed, message, tmp_path):
    part = "tensors" if isinstance(next(iter(changed.values())), torch.Tensor) else "changes"
    with pytest.raises(ValueError, match=f"holds no {kind} head for this target: .*{message}.*belong together"):
        load(tmp_path, kind, **{part: changed})


def test_nothing_is_unpickled_and_what_is_missing_is_named(tmp_path):
    folder = write(tmp_path / "m", "medusa")
    weights, config = folder / "model-0.safetensors", folder / "config.json"
    index = folder / "model.safetensors.index.json"
    for change, message in ((lambda: config.write_text("[]"), "config.json holds no object; take another copy"),
                            (lambda: index.write_text('{"weight_map": {"fc": "model-1.safetensors"}}'),
                             "lacks model-1.safetensors; fetch the folder again"),
                            (lambda: config.write_text("{half"), "config.json is broken: .*another copy"),
                            (config.unlink, "lacks config.json; fetch the folder again"),
                            (lambda: weights.rename(folder / "medusa_lm_head.pt"), "pickles, which can run code"),
                            (lambda: weights.write_bytes(b"version https://git-lfs.github.com/spec/v1"), "Git LFS"),
                            (lambda: shutil.rmtree(folder), "lacks config.json; fetch the folder again")):
        change()
        with pytest.raises(ValueError, match=message):
            files.load("medusa", folder, TARGET)
