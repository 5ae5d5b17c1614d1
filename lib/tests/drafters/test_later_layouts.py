"""Later versions of published layouts draft as their authors define them: the pass written out, without modules."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from lib.drafters import make
from lib.drafters.heads import published
from lib.tests.drafters.test_published_heads import (DRAFTED, LAYOUTS, PROMPTS, TARGET, H, Plain, V, is_lossless, numbers,
                                                     turned, write)
from lib.trees import named

EAGLE3, EAGLE3_TENSORS, _ = LAYOUTS["eagle3"]


def states_of(text, layers):
    hidden = TARGET(torch.tensor([text]), output_hidden_states=True).hidden_states
    return [hidden[layer][0] for layer in layers]


def proposed(kind, folder, text, shape="chain:4", target=TARGET):
    """The drafter's tokens after a text, whose last token is the root."""
    drafter = make(kind, SimpleNamespace(target=target), folder=str(folder))
    drafter.start([torch.tensor(text[:-1])])
    drafter.commit([[]], text[-1:], target(torch.tensor([text[:-1]]), output_hidden_states=True))
    (draft,) = drafter.propose(named(shape), None)
    return draft.tokens.tolist()


# ----------------------------------------------------------------------------------------------------------- EAGLE-3.1


def eagle31_tensors(*, apart=False, joined=False):
    """EAGLE-3's, with a norm for each of the three features, or one over all of them."""
    tensors = {name: tensor * 4 if name == "lm_head.weight" else tensor for name, tensor in EAGLE3_TENSORS.items()}
    tensors |= {"norm.weight": 0.2 + numbers(H).abs()}
    tensors |= {f"fc_norm.{place}.weight": 1 + place + numbers(H) for place in range(3)} if apart else {}
    return tensors | ({"input_norm.weight": 1 + numbers(3 * H)} if joined else {})


def plain_eagle3(tensors, text, steps, fed_back_normed, apart=False, joined=False):
    """The root and the greedy chain after it."""
    plain = Plain(tensors)
    states = states_of(text[:-1], [2, 3, 5])
    states = [plain.normed(state, f"fc_norm.{place}") if apart else state for place, state in enumerate(states)]
    fused = torch.cat(states, dim=-1)
    features = (plain.normed(fused, "input_norm") if joined else fused) @ plain.given["fc.weight"].T
    table, tokens = TARGET.get_input_embeddings().weight, text[1:]
    for _ in range(steps):
        length, layer = len(tokens), "midlayer"
        second = plain.normed(features, "midlayer.hidden_norm")
        both = torch.cat([plain.normed(table[tokens], "midlayer.input_layernorm"), second], dim=-1)
        places = torch.arange(length)
        query, key = (turned(plain.heads(both, layer, name, count), places) for name, count in (("q", 4), ("k", 2)))
        sees = torch.ones(length, length).tril().bool()
        x = features + plain.attend(query, key, plain.heads(both, layer, "v", 2), sees, layer)
        x = x + plain.mlp(plain.normed(x, "midlayer.post_attention_layernorm"), layer)
        last = plain.normed(x[-1:], "norm")
        best = int((plain.given["lm_head.weight"] @ last[0]).argmax())
        tokens = [*tokens, best + int(tensors["d2t"][best])]
        features = torch.cat([features, last if fed_back_normed else x[-1:]])
    return [text[-1], *tokens[-steps:]]


@torch.no_grad()
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("norms", [{}, {"apart": True}, {"joined": True}])
def test_eagle_31_norms_its_features_and_what_it_continues(normed, norms, tmp_path):
    tensors = eagle31_tensors(**norms)
    config = EAGLE3 | {"norm_output": normed, "fc_norm": "apart" in norms, "norm_before_fc": "joined" in norms}
    folder = write(tmp_path / "head", "eagle3", config=config, tensors=tensors)
    texts = [[*prompt.tolist(), token] for prompt in PROMPTS for token in range(3, 9)]
    told = [plain_eagle3(tensors, text, 4, normed, **norms) for text in texts]
    assert [proposed("eagle3", folder, text) for text in texts] == told
    other = [plain_eagle3(tensors, text, 4, not normed, **norms) for text in texts]
    assert other != told, "the flag changes what is drafted"
    single = deepcopy(TARGET).float()  # whose head may run in C++
    assert [proposed("eagle3", folder, text, target=single) for text in texts] == told
    assert is_lossless("eagle3", folder)


def test_the_norms_of_eagle_31_are_read_by_their_tensors_and_missed_where_the_config_has_them(tmp_path):
    prefixed = {f"model.{name}" if name.startswith(("fc", "midlayer", "norm")) else name: tensor
                for name, tensor in eagle31_tensors(apart=True).items()}
    head = published.load("eagle3", write(tmp_path / "a", "eagle3", tensors=prefixed), TARGET)
    assert len(head.fc_norm) == 3 and torch.equal(head.fc_norm[2].weight, prefixed["model.fc_norm.2.weight"].double())
    with pytest.raises(ValueError, match=r"missing: fc_norm\.0\.weight, fc_norm\.1\.weight, fc_norm\.2\.weight"):
        published.load("eagle3", write(tmp_path / "b", "eagle3", config=EAGLE3 | {"fc_norm": True}), TARGET)
    with pytest.raises(ValueError, match=r"unexpected: fc_norm\.0"):
        published.load("eagle3", write(tmp_path / "c", "eagle3", config=EAGLE3 | {"fc_norm": False},
                                       tensors=eagle31_tensors(apart=True)), TARGET)
    with pytest.raises(ValueError, match="norm_output 'false', which must be true or false"):
        published.load("eagle3", write(tmp_path / "d", "eagle3", config=EAGLE3 | {"norm_output": "false"}), TARGET)


# ---------------------------------------------------------------------------------------------- whole draft vocabulary


WHOLE = {name: tensor for name, tensor in EAGLE3_TENSORS.items() if name not in ("d2t", "t2d")} | {
    "lm_head.weight": numbers(V, H)}
EVERY = torch.ones(V, dtype=torch.bool)


@pytest.mark.parametrize("config", [{"draft_vocab_size": V}, {"draft_vocab_size": None}])
@pytest.mark.parametrize("turned", [None, False, True])
def test_a_draft_vocabulary_of_all_tokens_has_their_order(config, turned, tmp_path):
    """turned: d2t names the tokens in another order; None without the maps."""
    order = torch.arange(V).flip(0) if turned else torch.arange(V)
    maps = {} if turned is None else {"d2t": order - torch.arange(V), "t2d": EVERY}
    tensors = WHOLE | maps | {"lm_head.weight": WHOLE["lm_head.weight"][order]}
    head = published.load("eagle3", write(tmp_path / "a", "eagle3", config=EAGLE3 | config, tensors=tensors), TARGET)
    assert torch.equal(head.lm_head.weight, WHOLE["lm_head.weight"].double())
    assert head.tokens is None or head.tokens.tolist() == list(range(V))
    assert is_lossless("eagle3", tmp_path / "a")


def test_a_head_of_all_tokens_without_an_output_layer_shares_the_targets(tmp_path):
    tensors = {name: tensor for name, tensor in WHOLE.items() if name != "lm_head.weight"}
    folder = write(tmp_path / "a", "eagle3", config=EAGLE3 | {"draft_vocab_size": V}, tensors=tensors)
    assert published.load("eagle3", folder, TARGET).lm_head is None and is_lossless("eagle3", folder)


def test_a_draft_vocabularys_size_is_that_of_its_map_where_the_config_has_none(tmp_path):
    config = {name: value for name, value in EAGLE3.items() if name != "draft_vocab_size"}
    head = published.load("eagle3", write(tmp_path / "a", "eagle3", config=config), TARGET)
    assert head.tokens.tolist() == list(range(0, 2 * DRAFTED, 2))


def test_a_map_of_all_tokens_that_names_others_is_refused(tmp_path):
    for offsets in (torch.ones(V), torch.cat([torch.ones(1), torch.zeros(V - 1)])):
        tensors = WHOLE | {"d2t": offsets.long()}
        with pytest.raises(ValueError, match="are no part of the target's 24, each once"):
            published.load("eagle3", write(tmp_path / "a", "eagle3", tensors=tensors,
                                           config=EAGLE3 | {"draft_vocab_size": V}), TARGET)
