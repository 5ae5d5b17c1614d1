"""Folders of heads in their authors' layouts: they draft as the layout defines it, come back from `save`, and broken ones
are refused by name.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from lib.drafters import make
from lib.drafters.heads import files
from lib.tests import live, small_heads, small_models
from lib.trees import named

TARGET = small_models.llama(3, layers=6)
PROMPTS = small_models.prompts(5, (3, 7))
V, H, DRAFTED = small_models.VOCABULARY, 32, 10
TOKENS = torch.arange(0, 2 * DRAFTED, 2)  # those that heads of a part draft
MAPS = {"d2t": TOKENS - torch.arange(DRAFTED), "t2d": torch.isin(torch.arange(V), TOKENS)}


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / shape[-1] ** 0.5


def layer_tensors(prefix, inputs):
    return {f"{prefix}.self_attn.{name}_proj.weight": numbers(rows, columns) for name, rows, columns in (
                ("q", 32, inputs), ("k", 16, inputs), ("v", 16, inputs), ("o", H, 32))} | {
            f"{prefix}.mlp.gate_proj.weight": numbers(48, H), f"{prefix}.mlp.up_proj.weight": numbers(48, H),
            f"{prefix}.mlp.down_proj.weight": numbers(H, 48),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(H),
            f"{prefix}.input_layernorm.weight": 1 + numbers(H)}


def block_tensors():
    norms = {f"layers.{layer}.self_attn.{name}_norm.weight": 1 + numbers(8) for layer in range(2) for name in "qk"}
    layers = layer_tensors("layers.0", H) | layer_tensors("layers.1", H)
    return {"fc.weight": numbers(H, 2 * H), "hidden_norm.weight": 1 + numbers(H), "norm.weight": 1 - numbers(H),
            **layers, **norms}


BLOCKS = {f"{head}.{block}.linear.{part}": numbers(H, H) if part == "weight" else numbers(H)
          for head in range(3) for block in range(2) for part in ("weight", "bias")}
EAGLE3 = {"fc.weight": numbers(H, 3 * H), "norm.weight": 0.2 + numbers(H).abs(), "lm_head.weight": 4 * numbers(DRAFTED, H),
          **MAPS, **layer_tensors("midlayer", 2 * H), "midlayer.hidden_norm.weight": torch.ones(H)}
DSPARK = {**block_tensors(), "embed_tokens.weight": numbers(V, H), "lm_head.weight": numbers(V, H),
          "markov_head.markov_w1.weight": numbers(V, 4), "markov_head.markov_w2.weight": 4 * numbers(V, 4),
          "confidence_head.proj.weight": numbers(1, H + 4), "confidence_head.proj.bias": numbers(1)}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "vocab_size": V,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 1,
         "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "pad_token_id": 0, "torch_dtype": "float16"}
QWEN = LLAMA | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 8,
                "attention_bias": False, "layer_types": ["full_attention"] * 2, "block_size": 5}
PLACES, IDS = {"target_layer_ids": [0, 3], "mask_token_id": 7}, "eagle_aux_hidden_state_layer_ids"
LAYOUTS = {  # kind -> config.json, tensors
    "medusa": ({"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "somebody/model"},
               BLOCKS | {f"{head}.2.weight": numbers(V, H) for head in range(3)}),
    "eagle3": (LLAMA | {"draft_vocab_size": DRAFTED, "num_hidden_layers": 40,  # 40: the target's
                        "eagle_config": {IDS: [2, 3, 5]}}, EAGLE3),
    "dflash": (QWEN | {"dflash_config": PLACES}, block_tensors()),
    "dspark": (QWEN | PLACES | {"markov_rank": 4, "markov_head_type": "vanilla", "enable_confidence_head": True}, DSPARK),
}
NESTED = ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim",
          "num_hidden_layers", "model_type", "rms_norm_eps")
SPECULATORS = {"transformer_layer_config": {name: QWEN[name] for name in NESTED}, "block_size": 5, "mask_token_id": 7,
               "aux_hidden_state_layer_ids": [1, 4], "draft_vocab_size": DRAFTED, "speculators_model_type": "dflash"}


def write(folder, kind, changes=None, tensors=None, config=None):
    folder.mkdir(exist_ok=True)
    settings, layout_tensors = LAYOUTS[kind]
    (folder / "config.json").write_text(json.dumps((settings if config is None else config) | (changes or {})))
    save_file({name: tensor.contiguous() for name, tensor in (tensors or layout_tensors).items()},
              folder / "model.safetensors")
    return folder


def load(folder, kind, **changed):
    return files.load(kind, write(folder, kind, **changed), TARGET)


def drafted(kind, folder, text, shape="chain:8"):
    """The drafter's tokens after a text, whose last token is the root."""
    drafter = make(kind, SimpleNamespace(target=TARGET), {"folder": str(folder)})
    drafter.start([torch.tensor(text[:-1])])
    drafter.commit([[]], text[-1:], TARGET(torch.tensor([text[:-1]]), output_hidden_states=True))
    (draft,) = drafter.propose(named(shape), None)
    return draft.tokens.tolist()


# ------------------------------------------------------------------------------------------------- what layouts define


class Plain:
    """Tensors of a file as functions, in float64."""

    def __init__(self, tensors):
        self.tensors = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}

    def normed(self, x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.tensors[f"{name}.weight"]

    def heads(self, x, layer, name, count):
        return (x @ self.tensors[f"{layer}.self_attn.{name}_proj.weight"].T).view(len(x), count, 8)

    def attend(self, query, key, value, sees, layer):
        """query [n, 4, 8], key and value [m, 2, 8], sees bool[n, m] to [n, H]."""
        out = []
        for head in range(4):
            scores = (query[:, head] @ key[:, head // 2].T / 8**0.5).masked_fill(~sees, float("-inf"))
            out.append(scores.softmax(-1) @ value[:, head // 2])
        return torch.cat(out, dim=-1) @ self.tensors[f"{layer}.self_attn.o_proj.weight"].T

    def mlp(self, x, layer):
        gate, up, down = (self.tensors[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return silu(x @ gate.T) * (x @ up.T) @ down.T


def turned(x, positions):
    """Rotary positions of [n, heads, 8]."""
    angles = positions[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def states_of(text, layers):
    hidden = TARGET(torch.tensor([text]), output_hidden_states=True).hidden_states
    return [hidden[layer][0] for layer in layers]


def plain_eagle3(tensors, text, steps, settings):
    """The root and the greedy chain after it, written out."""
    plain, flags = Plain(tensors), {flag: settings.get(flag, False) for flag in files.FLAGS}
    states = states_of(text[:-1], [2, 3, 5])
    if flags["fc_norm"]:
        states = [plain.normed(state, f"fc_norm.{number}") for number, state in enumerate(states)]
    fused = torch.cat(states, dim=-1)
    fused = plain.normed(fused, "input_norm") if flags["norm_before_fc"] else fused
    features = fused @ plain.tensors["fc.weight"].T
    table, tokens, layer = TARGET.get_input_embeddings().weight, text[1:], "midlayer"
    for _ in range(steps):
        second, length = plain.normed(features, "midlayer.hidden_norm"), len(tokens)
        both = torch.cat([plain.normed(table[tokens], "midlayer.input_layernorm"), second], dim=-1)
        query, key = (turned(plain.heads(both, layer, name, count), torch.arange(length))
                      for name, count in (("q", 4), ("k", 2)))
        sees = torch.ones(length, length).tril().bool()
        x = second if flags["norm_before_residual"] else features
        x = x + plain.attend(query, key, plain.heads(both, layer, "v", 2), sees, layer)
        x = x + plain.mlp(plain.normed(x, "midlayer.post_attention_layernorm"), layer)
        last = plain.normed(x[-1:], "norm")
        best = int((plain.tensors["lm_head.weight"] @ last[0]).argmax())
        tokens = [*tokens, best + int(tensors["d2t"][best])]
        features = torch.cat([features, last if flags["norm_output"] else x[-1:]])
    return [text[-1], *tokens[-steps:]]


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, *({flag: True} for flag in files.FLAGS), {"fc_norm": True, "norm_output": True}])
def test_eagle3_drafts_as_its_layout_says(settings, tmp_path):
    """Of EAGLE-3 and EAGLE-3.1, whose flags norm features before, and after the layer."""
    tensors = EAGLE3 | ({f"fc_norm.{number}.weight": 1 + number + numbers(H) for number in range(3)}
                        if "fc_norm" in settings else {})
    tensors |= {"input_norm.weight": 1 + numbers(3 * H)} if "norm_before_fc" in settings else {}
    folder = write(tmp_path / "head", "eagle3", settings, tensors)
    texts = [[*prompt.tolist(), token] for prompt in PROMPTS for token in range(3, 9)]
    expected = [plain_eagle3(tensors, text, 4, settings) for text in texts]
    assert [drafted("eagle3", folder, text, "chain:4") for text in texts] == expected
    assert not settings or expected != [plain_eagle3(tensors, text, 4, {}) for text in texts], "the flag matters"


def plain_block(tensors, text):
    """The states [5, H] of a DFlash or DSpark block after a text, whose last token is its root, written out."""
    plain = Plain(tensors)
    context = plain.normed(torch.cat(states_of(text[:-1], [1, 4]), dim=-1) @ plain.tensors["fc.weight"].T, "hidden_norm")
    table = plain.tensors.get("embed_tokens.weight", TARGET.get_input_embeddings().weight)
    x, positions = table[[text[-1], 7, 7, 7, 7]], torch.arange(len(context) + 5)
    sees = torch.ones(5, len(positions), dtype=torch.bool)
    for layer in ("layers.0", "layers.1"):
        block = plain.normed(x, f"{layer}.input_layernorm")
        both = torch.cat([context, block])
        query = turned(plain.normed(plain.heads(block, layer, "q", 4), f"{layer}.self_attn.q_norm"), positions[-5:])
        key = turned(plain.normed(plain.heads(both, layer, "k", 2), f"{layer}.self_attn.k_norm"), positions)
        x = x + plain.attend(query, key, plain.heads(both, layer, "v", 2), sees, layer)
        x = x + plain.mlp(plain.normed(x, f"{layer}.post_attention_layernorm"), layer)
    return plain.normed(x, "norm")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_blocks_draft_as_their_layout_says(kind, tmp_path):
    """DFlash's places predict their own token, DSpark's the next one, after what its parent adds."""
    tensors, text = LAYOUTS[kind][1], [*PROMPTS[1].tolist(), 3]
    states = plain_block(tensors, text)
    output = tensors.get("lm_head.weight", TARGET.lm_head.weight).double()
    tokens = [3]
    for state in states if kind == "dspark" else states[1:]:
        logits = output @ state
        if kind == "dspark":
            first, second = (tensors[f"markov_head.markov_w{part}.weight"].double() for part in (1, 2))
            logits = logits + second @ first[tokens[-1]]
        tokens.append(int(logits.argmax()))
    assert drafted(kind, write(tmp_path / "head", kind), text) == tokens and len(tokens) == (6 if kind == "dspark" else 5)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("with_outputs", [False, True])
def test_medusa_counts_the_heads_that_are_there(with_outputs, whole, tmp_path):
    """whole: in a repository of the whole model. Heads without an output layer share the target's."""
    tensors = LAYOUTS["medusa"][1] if with_outputs else BLOCKS
    tensors = {f"medusa_head.{name}": t for name, t in tensors.items()} | {"lm_head.weight": numbers(V, H)} if whole \
        else tensors
    head = load(tmp_path / "m", "medusa", tensors=tensors)
    assert head.depth == 3, "config.json says 2"
    hidden = torch.randn(5, H, dtype=torch.float64)
    expected = hidden
    for block in range(2):
        expected = expected + silu(expected @ BLOCKS[f"1.{block}.linear.weight"].double().T
                                   + BLOCKS[f"1.{block}.linear.bias"])
    output = numbers(V, H).double() if with_outputs else TARGET.lm_head.weight
    torch.testing.assert_close(head.logits(head.states(hidden), TARGET.lm_head)[:, 1], expected @ output.T)


def is_lossless(kind, folder):
    drafter = make(kind, SimpleNamespace(target=TARGET), {"folder": str(folder)})
    done = live.decode(TARGET, drafter, PROMPTS, shape="kary:2@6", max_new_tokens=9)
    greedy = [TARGET.generate(prompt[None], max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=None)
              for prompt in PROMPTS]
    return done.new_tokens == [row[0, len(prompt):].tolist() for row, prompt in zip(greedy, PROMPTS)]


# ------------------------------------------------------------------------------------------------ variants of one head


def same(one, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def without(kind, *names):
    return {name: tensor for name, tensor in LAYOUTS[kind][1].items() if name not in names}


def test_other_makers_forms_are_the_same_heads(tmp_path):
    """Of speculators, which nest sizes and call EAGLE-3's layer `layers.0`, with d2t in any order, in shards."""
    config, tensors = LAYOUTS["eagle3"]
    head = load(tmp_path / "a", "eagle3")
    assert head.tokens.tolist() == TOKENS.tolist() and head.config.feature_layers == [2, 3, 5]
    nested = {name: config[name] for name in ("draft_vocab_size", "eagle_config")} | {"transformer_layer_config": config}
    renamed = {f"model.{name}".replace("midlayer.", "layers.0.") if name.startswith(("mid", "fc", "norm")) else name:
               tensor for name, tensor in tensors.items()}
    backwards = tensors | {"d2t": TOKENS.flip(0) - torch.arange(DRAFTED),
                           "lm_head.weight": tensors["lm_head.weight"].flip(0)}
    assert same(head, load(tmp_path / "b", "eagle3", config=nested, tensors=renamed))
    assert same(head, load(tmp_path / "c", "eagle3", tensors=backwards))
    for part in range(3):
        save_file({name: tensors[name].contiguous() for name in sorted(tensors)[part::3]},
                  tmp_path / "c" / f"model-{part + 1:05}-of-00003.safetensors")
    (tmp_path / "c" / "model.safetensors").unlink()
    assert same(head, files.load("eagle3", tmp_path / "c", TARGET))
    parts = block_tensors() | MAPS | {"lm_head.weight": numbers(DRAFTED, H)}
    assert same(load(tmp_path / "d", "dflash"), load(tmp_path / "e", "dflash", config=SPECULATORS, tensors=parts))
    assert is_lossless("dflash", tmp_path / "e")


@pytest.mark.parametrize("kind", ["eagle3", "dspark", "dflash", "medusa"])
@pytest.mark.parametrize("part", [False, True])
def test_a_saved_head_drafts_the_same_and_output_rows_stand_in_for_a_missing_layer(kind, part, tmp_path):
    head = small_heads.head(kind, TARGET, 3, draft_vocab_size=DRAFTED if part else None)
    files.save(head, tmp_path / kind)
    back = files.load(kind, tmp_path / kind, TARGET)
    assert back.lm_head is None and head.state_dict().keys() == back.state_dict().keys()
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], tensor, rtol=1e-2, atol=1e-2)
    assert (back.tokens is None) == (not part) and is_lossless(kind, tmp_path / kind)
    if kind != "medusa":
        assert back.config.feature_layers == head.config.feature_layers
    other = "dflash" if kind == "eagle3" else "eagle3"
    with pytest.raises(ValueError, match=f"holds no {other} head for this target"):
        files.load(other, tmp_path / kind, TARGET)
    with pytest.raises(ValueError, match="hidden_size 32, this one has 48"):
        files.load(kind, tmp_path / kind, small_models.llama(0, hidden=48))


@pytest.mark.parametrize("order", [None, torch.arange(V), torch.arange(V).flip(0)])
@pytest.mark.parametrize("size", [V, None])
def test_a_draft_vocabulary_of_all_tokens_has_their_order(order, size, tmp_path):
    """order: of the tokens in d2t; None without the maps."""
    rows, maps = numbers(V, H), {}
    if order is not None:
        maps, rows = {"d2t": order - torch.arange(V), "t2d": torch.ones(V, dtype=torch.bool)}, rows[order]
    tensors = without("eagle3", "d2t", "t2d") | maps | {"lm_head.weight": rows}
    head = load(tmp_path / "a", "eagle3", changes={"draft_vocab_size": size}, tensors=tensors)
    assert torch.equal(head.lm_head.weight, numbers(V, H).double())


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind, changes, message", [
    ("medusa", {"medusa_num_heads": "5"}, "has medusa_num_heads '5', medusa_num_layers 2, which must count"),
    ("medusa", {"medusa_num_layers": None}, "medusa_num_layers None, which must count"),
    ("eagle3", {"hidden_size": "32"}, "hidden_size '32', which must count"),
    ("eagle3", {"hidden_size": None, "vocab_size": None}, "config.json lacks hidden_size, vocab_size;"),
    ("eagle3", {"hidden_size": 48}, "hidden_size 48, this one has 32"),
    ("eagle3", {"rms_norm_eps": None}, "Field 'rms_norm_eps' expected float, got NoneType"),
    ("eagle3", {"num_attention_heads": 0}, "num_attention_heads 0, which must count"),
    ("eagle3", {"num_attention_heads": 5}, r"hidden size \(32\) is not a multiple of the number of attention heads \(5\)"),
    ("eagle3", {"hidden_act": "no such"}, "no such"),
    ("eagle3", {"rope_scaling": {"type": "no such"}}, "no such"),
    ("eagle3", {"draft_vocab_size": -3}, "draft_vocab_size -3, which must count"),
    ("eagle3", {"transformer_layer_config": "x"}, "'str' object is not a mapping"),
    ("eagle3", {"eagle_config": {IDS: ["1"]}}, r"reads the hidden states \['1'\]"),
    ("eagle3", {"eagle_config": {IDS: 1}}, "argument of type 'int' is not iterable"),
    ("eagle3", {IDS: [1.5]}, r"states \[1.5\], this target of 6 layers has 0 to 6"),
    ("eagle3", {IDS: [2, 3, 7]}, r"hidden states \[2, 3, 7\], this target of 6 layers has 0 to 6"),
    ("eagle3", {IDS: [2, 4, 6]}, "hidden state 6 before the final norm, which transformers does not give"),
    ("eagle3", {"norm_output": "false"}, "norm_output 'false', which must be true or false"),
    ("eagle3", {"fc_norm": True}, r"missing: fc_norm\.0\.weight, fc_norm\.1\.weight, fc_norm\.2\.weight"),
    ("dflash", {"dflash_config": {"mask_token_id": 7}}, "names no layers of the target"),
    ("dflash", {"dflash_config": PLACES | {"mask_token_id": V}}, "has mask_token_id 24, which is none of the 24"),
    ("dflash", {"dflash_config": PLACES | {"target_layer_ids": [0, 6]}}, r"hidden states \[1, 7\], this target of 6"),
    ("dflash", {"dflash_config": PLACES | {"causal_head": True}}, "has causal_head, which is not read here"),
    ("dflash", {"sliding_window": 12}, "has sliding_window, which is not read here"),
    ("dflash", {"dflash_config": 3}, "'int' object is not a mapping"),
    ("dflash", {"block_size": "5"}, "block_size '5', which must count"),
    ("dspark", {"markov_head_type": "rnn"}, "markov_head_type 'rnn'; 'vanilla'"),
    ("dspark", {"markov_rank": 0}, "markov_rank 0, which must count"),
    ("dspark", {"speculators_model_type": "dspark"}, "no DSpark head as DeepSpec writes it"),
])
def test_a_wrong_setting_is_named(kind, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "head", kind, changes=changes)


INTEGERS = {name: tensor.round().to(torch.int8) if tensor.is_floating_point() else tensor for name, tensor in EAGLE3.items()}


@pytest.mark.parametrize("kind, tensors, message", [
    *((kind, {name: t for name, t in tensors.items() if name != lost} | {"extra.weight": numbers(2, 2)},
       f"missing: {lost}; unexpected: extra.weight") for kind, (_, tensors) in LAYOUTS.items()
      for lost in [next(name for name in tensors if name.endswith(("gate_proj.weight", "1.0.linear.bias")))]),
    ("medusa", BLOCKS | {"1.2.weight": numbers(V, H)}, r"missing: 0\.2\.weight, 2\.2\.weight"),
    ("eagle3", EAGLE3 | {"fc.weight": numbers(3, 3)}, r"of another shape: fc.weight \(3, 3\) for"),
    ("eagle3", EAGLE3 | {"fc.weight": numbers(H, 3 * H) / 0 * 0}, "with NaN: fc.weight"),
    ("eagle3", INTEGERS, "of another kind of number: .* torch.int8 for"),
    ("eagle3", EAGLE3 | {"d2t": MAPS["d2t"].float()}, "no d2t of integers"),
    ("eagle3", without("eagle3", "d2t", "t2d"), "drafts 10 of 24 tokens, but has no d2t"),
    ("eagle3", EAGLE3 | {"d2t": torch.zeros(DRAFTED, dtype=torch.long)}, "d2t and t2d name different tokens"),
    ("eagle3", without("eagle3", "t2d") | {"d2t": torch.full((DRAFTED,), V)}, "are no part of the target's 24, each once"),
    ("eagle3", EAGLE3 | {"layers.0.mlp.up_proj.weight": numbers(48, H)}, r"has midlayer\.mlp.* under two names"),
    ("eagle3", EAGLE3 | {"fc_norm.0.weight": numbers(H)}, r"missing: fc_norm\.1\.weight"),
])
def test_tensors_that_do_not_fit_are_named(kind, tensors, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "head", kind, tensors=tensors)


def test_nothing_is_unpickled_and_what_is_missing_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "m", "medusa")
    weights, pickle = folder / "model.safetensors", folder / "medusa_lm_head.pt"
    for change, message in ((weights.unlink, "has no safetensors"),
                            (lambda: pickle.write_bytes(b"x"), "but medusa_lm_head.pt; .* pickles, which can run code"),
                            (lambda: weights.write_bytes(b"no header"), "broken safetensors"),
                            (lambda: (folder / "config.json").write_text("{half"), "config.json of .* is no JSON"),
                            (lambda: (folder / "config.json").write_text("[]"), "holds a list, no object"),
                            ((folder / "config.json").unlink, "no config.json")):
        change()
        with pytest.raises(ValueError, match=message):
            files.load("medusa", folder, TARGET)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for where, message in ((str(tmp_path / "nowhere"), "there is no folder"),
                           ("nobody/no-such-head-of-ours", "not on this machine and the hub cannot be reached")):
        with pytest.raises(ValueError, match=message):
            files.load("eagle3", where, TARGET)
