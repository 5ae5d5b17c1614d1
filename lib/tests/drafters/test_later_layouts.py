"""Later versions of published layouts draft as their authors define them: the pass written out, without modules."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from lib.drafters import make
from lib.drafters.heads import published
from lib.tests.drafters.test_published_heads import (DRAFTED, LAYOUTS, PROMPTS, TARGET, H, Plain, V, dflash_tensors,
                                                     is_lossless, numbers, plain_block, turned, write)
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


# ------------------------------------------------------------------------------------------------------------- DFlash2


DFLASH2 = LAYOUTS["block"][0] | {"architectures": ["DFlash2DraftModel"], "dflash_config": {
    "target_layer_ids": [0, 3], "mask_token_id": 7, "block_size": 5, "conv_kernel_size": 2, "conv_group_size": 8,
    "selector_rank": 6, "selector_top_k": 4}}


def dflash2_tensors():
    own = {}
    for layer in range(2):
        for part in ("attention_conv", "mlp_conv"):
            own |= {f"layers.{layer}.{part}.base_kernel": 1 + numbers(2, 2, H),
                    f"layers.{layer}.{part}.kernel_projection.weight": numbers(2 * 2 * 4, H)}
    return {**dflash_tensors(), **own, "candidate_selector.hidden_projection.weight": 4 * numbers(6, H),
            "candidate_selector.predecessor_codebook": 12 * numbers(V, 6),
            "candidate_selector.successor_codebook": 12 * numbers(6, V).T}


def plain_scores(tensors, state, before, unary=lambda logits: logits):
    """The scores of the four best tokens after a token, by token."""
    given = Plain(tensors).given
    logits = unary(TARGET.lm_head.weight.double() @ state)
    gate = given["candidate_selector.predecessor_codebook"][before] * (
        given["candidate_selector.hidden_projection.weight"] @ state)
    return {token: float(logits[token] + given["candidate_selector.successor_codebook"][token] @ gate)
            for token in logits.topk(4).indices.tolist()}


@torch.no_grad()
@pytest.mark.parametrize("told", [{}, {"is_causal": True}, {"layer_types": ["sliding_attention"] * 2, "sliding_window":
                         16}, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16, "is_causal": False}])
def test_dflash2_drafts_what_its_selector_takes_of_the_convolved_block(told, tmp_path):
    tensors, sliding, changed = dflash2_tensors(), "layer_types" in told, 0
    folder = write(tmp_path / "head", "block", config=DFLASH2 | told, tensors=tensors)
    for root in range(3, 9):
        text = [*PROMPTS[1].tolist(), root]
        states = plain_block(tensors, text, causal=told.get("is_causal", sliding), window=16 if sliding else None)
        tokens = [root]
        for state in states[1:]:
            scores = plain_scores(tensors, state, tokens[-1])
            tokens.append(max(scores, key=scores.get))
            changed += tokens[-1] != int((TARGET.lm_head.weight.double() @ state).argmax())
        assert proposed("block", folder, text, "chain:9") == tokens, "no deeper than the block"
        best = sorted(own := plain_scores(tensors, states[1], root), key=own.get, reverse=True)[:2]
        second = [sorted(own := plain_scores(tensors, states[2], token), key=own.get, reverse=True)[:2]
                  for token in best]
        assert proposed("block", folder, text, "kary:2@6") == [root, *best, *second[0], *second[1]]
    assert changed, "the selector takes others than the block's best"
    assert proposed("block", folder, text, "chain:9", deepcopy(TARGET).float()) == tokens, "not in C++"
    assert sliding or is_lossless("block", folder) and is_lossless("block", folder, "dyspec:4@6")


@torch.no_grad()
def test_dflash2_in_replay_is_what_it_is_live(tmp_path):
    """Ranks of a known text by one forward pass are those after each token of it."""
    tensors = dflash2_tensors()
    drafter = make("block", SimpleNamespace(target=TARGET), folder=str(write(
        tmp_path / "head", "block", config=DFLASH2, tensors=tensors)))
    text = torch.tensor([3, 9, 4, 11, 6, 2, 17, 8])
    ranks, probs = drafter.read_ahead(TARGET, [text], [3], 4)
    for row, root in enumerate(range(3, 7)):
        states = plain_block(tensors, text[: root + 1].tolist())
        for ahead in range(min(4, 7 - root)):
            scores = plain_scores(tensors, states[1 + ahead], int(text[root + ahead]))
            total = torch.tensor(list(scores.values())).double().exp().sum()
            true = scores.get(int(text[root + ahead + 1]))
            assert float(probs[0, row, ahead]) == pytest.approx(0 if true is None else float(
                torch.tensor(true).double().exp() / total), abs=1e-6)
            assert true is None or ranks[0, row, ahead] == sum(other > true for other in scores.values())


@torch.no_grad()
def test_scales_of_the_targets_embedding_and_logits_are_the_heads_too(tmp_path):
    scales = {"input_embedding_scale": 3.0, "output_multiplier": 0.7, "final_logit_softcapping": 1.5}
    tensors, text = dflash2_tensors(), [*PROMPTS[1].tolist(), 3]
    config = DFLASH2 | {"dflash_config": DFLASH2["dflash_config"] | scales}
    states = plain_block(tensors, text, embedding_scale=3.0)
    scores = plain_scores(tensors, states[1], 3, lambda logits: 1.5 * (0.7 * logits / 1.5).tanh())
    folder = write(tmp_path / "head", "block", config=config, tensors=tensors)
    assert proposed("block", folder, text, "star:4") == [3, *sorted(scores, key=scores.get, reverse=True)]


@torch.no_grad()
def test_a_block_with_a_window_drafts_for_texts_within_it(tmp_path):
    config = DFLASH2 | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12}
    folder = write(tmp_path / "head", "block", config=config, tensors=dflash2_tensors())
    drafter = make("block", SimpleNamespace(target=TARGET), folder=str(folder))
    assert drafter.window == 7 and not drafter.traits.per_depth
    text = list(range(1, 20))
    head, hidden = drafter.head, TARGET(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    root = TARGET.get_input_embeddings()(torch.tensor([text[-1:]]))
    states = head.states_along(head.read(hidden), root, torch.tensor([18]))[0, 0]
    torch.testing.assert_close(states, plain_block(dflash2_tensors(), text, causal=True, window=12)[1:],
                               atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong, message", [
    ({"conv_group_size": 7}, "conv_group_size 7, which does not divide hidden_size 32"),
    ({"selector_top_k": 0}, "selector_top_k 0, which must count from 1 on"),
    ({"selector_rank": None}, "selector_rank None, which must count"),
    ({"output_multiplier": "x"}, "output_multiplier 'x', no number"),
])
def test_what_a_dflash2_config_says_wrongly_is_named(wrong, message, tmp_path):
    config = DFLASH2 | {"dflash_config": DFLASH2["dflash_config"] | wrong}
    with pytest.raises(ValueError, match=message):
        published.load("block", write(tmp_path / "a", "block", config=config, tensors=dflash2_tensors()), TARGET)


def test_a_dflash2_head_that_lacks_a_part_is_refused(tmp_path):
    inner = {name: value for name, value in DFLASH2["dflash_config"].items() if name != "selector_rank"}
    with pytest.raises(ValueError, match="lacks selector_rank, which a DFlash2 head has"):
        published.load("block", write(tmp_path / "a", "block", config=DFLASH2 | {"dflash_config": inner},
                                      tensors=dflash2_tensors()), TARGET)
    lost = {name: tensor for name, tensor in dflash2_tensors().items() if "mlp_conv.base_kernel" not in name}
    with pytest.raises(ValueError, match=r"missing: layers\.0\.mlp_conv\.base_kernel"):
        published.load("block", write(tmp_path / "b", "block", config=DFLASH2, tensors=lost), TARGET)
    with pytest.raises(ValueError, match="layers with a sliding window, which see backwards alone"):
        mixed = DFLASH2 | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}
        published.load("block", write(tmp_path / "c", "block", config=mixed, tensors=dflash2_tensors()), TARGET)
    named = {f"{name}.weight" if name.endswith("codebook") else name: tensor
             for name, tensor in dflash2_tensors().items()}
    assert published.load("block", write(tmp_path / "d", "block", config=DFLASH2, tensors=named), TARGET).window is None
