"""Draft models of part of the vocabulary: what they draft, that nothing is lost, and where the tokens come from."""

from collections import defaultdict
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from lib import replay
from lib.drafters import DRAFTERS, make, parse, vocabulary
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.vocabulary import most_frequent
from lib.forward.passes import ForwardPass, forward_pass
from lib.forward.reduced import first_tokens, narrow, reduced
from lib.tests import live, small_models
from lib.tests.drafters.test_drafters import MODEL, OTHER, PROMPTS, begin, continuations, decode, draws, made
from lib.tests.replay.test_replay import trees
from lib.trees import named
from lib.verify import RULES, verify
from lib.verify.proof.enumeration import Law, distance, tokens_of
from lib.verify.proof.forks import outcomes, settle

KNOWN = torch.tensor([17, 2, 3, 5, 7, 11, 13])
MODELS = [spec for spec, kind in DRAFTERS.items() if "vocabulary" in kind.options and spec != "random"]


def test_every_language_model_takes_the_option():
    kinds = {"model", "plain", "combined", "adaptive", "confident", "merged"}
    assert set(MODELS) == kinds


def test_logits_are_the_models_own_and_elsewhere_minus_infinity():
    tokens, own = PROMPTS[1][None], reduced(MODEL, KNOWN)
    whole, part = MODEL(tokens).logits, own(tokens).logits
    torch.testing.assert_close(part[..., KNOWN], whole[..., KNOWN])
    assert part.shape == whole.shape and (part == -torch.inf).sum() == part.numel() - part[..., KNOWN].numel()
    model, output = narrow(own)
    assert torch.equal(output.tokens, KNOWN.sort().values) and narrow(own)[0] is model
    torch.testing.assert_close(model(tokens).logits, whole[..., output.tokens])
    assert MODEL(tokens).logits.equal(whole) and narrow(MODEL) == (MODEL, None), "the model itself has not changed"
    assert own.model is MODEL.model and forward_pass(own).name == "layers"
    torch.testing.assert_close(first_tokens(MODEL, 9)(tokens).logits, whole[..., :9])
    assert first_tokens(MODEL, 24) is MODEL
    assert first_tokens(MODEL, 9).lm_head.weight.data_ptr() == MODEL.lm_head.weight.data_ptr()


def test_a_hook_on_the_model_does_not_bring_its_output_layer_back():
    hooked = small_models.llama(3)
    hooked.forward = hooked.forward  # as accelerate's hooks leave it: bound to this very model
    assert narrow(reduced(hooked, KNOWN))[0](PROMPTS[0][None]).logits.shape[-1] == len(KNOWN)


@settings(deadline=None, max_examples=15)
@given(trees(8), st.sampled_from(["top_k", "iid", "without_replacement"]), st.integers(0, 99))
def test_drafts_are_the_oracles(tree, proposal, seed):
    model = reduced(MODEL, KNOWN)
    drafters = [kind(model, proposal=proposal, temperature=1.3) for kind in (LanguageModelDrafter, PlainDrafter)]
    fast, plain = ([drafter.start(PROMPTS[:1]), drafter.commit([[]], [2]), drafter.propose(tree, draws(seed))][-1][0]
                   for drafter in drafters)
    assert fast.tree == plain.tree and torch.equal(fast.tokens, plain.tokens)
    assert set(fast.token_list[1:]) <= set(KNOWN.tolist()) or proposal == "without_replacement"
    for node in set(fast.tree.parents[1:].tolist()) if proposal != "top_k" else ():
        torch.testing.assert_close(fast.probs[node], plain.probs[node])
        assert fast.probs.shape[-1] == small_models.VOCABULARY
        assert float(fast.probs[node][KNOWN].sum()) == pytest.approx(1)


def test_grown_trees_are_the_oracles():
    model, rule = reduced(MODEL, KNOWN), named("dyspec:3@9")
    fast = begin(LanguageModelDrafter(model))
    fast.ask_probs(True)
    drafts, told = fast.propose(rule, draws()), begin(PlainDrafter(model)).propose(rule, draws())
    for draft, expected in zip(drafts, told, strict=True):
        assert draft.tree == expected.tree and torch.equal(draft.tokens, expected.tokens)
        assert float(draft.probs[0][KNOWN].sum()) == pytest.approx(1) and draft.probs.shape[-1] == MODEL.vocab_size


@pytest.mark.parametrize("spec", MODELS)
def test_greedy_output_is_the_targets_own(spec):
    drafter = made(spec, vocabulary=KNOWN)
    seen = decode(drafter)
    assert seen.new_tokens == continuations() and sum(found.accepted for found in seen.rounds) > 0


@pytest.mark.parametrize("shape", ["chain:3", "kary:2@6"])
def test_replay_of_its_ranks_is_live_decoding(shape):
    model, names = reduced(OTHER, KNOWN), list("abcd")
    recorded = replay.record(MODEL, {"d": model}, PROMPTS, names=names, kinds=names, max_new_tokens=20)
    unknown = ~np.isin(recorded.tokens[:, 1:], KNOWN) & (recorded.ranks["d"] >= 0)
    assert unknown.any() and (recorded.ranks["d"][unknown] >= len(KNOWN)).all()
    assert not recorded.probs["d"][unknown].any()
    walked = replay.chained(replay.rounds(recorded, named(shape), "d"))
    rounds = live.decode(MODEL, LanguageModelDrafter(model), PROMPTS, shape=shape, max_new_tokens=21).rounds
    found = sorted((done.row, done.position - 1, done.accepted) for done in rounds)
    assert found == list(zip(walked.rows.tolist(), walked.starts.tolist(), walked.accepted.tolist()))
    assert walked.accepted.sum() > 5, "otherwise nothing was tested"


# ----------------------------------------------------------------------------------------- losslessness, by enumeration

FIVE, ROOT = small_models.llama(1, vocabulary=5, gain=1.5), 2
DRAFTING = reduced(small_models.related(FIVE, 2, noise=0.5), torch.tensor([1, 3]))
PROMPT = torch.tensor([3, 1])


@cache
@torch.no_grad()
def language(path):
    """The target's next token after the prompt, the root and a path, float64[5]."""
    return FIVE(torch.tensor([[*PROMPT.tolist(), ROOT, *path]])).logits[0, -1].softmax(-1)


def law_of(rule, proposal, shape):
    """The law of a round: every way in which the drafter samples, and the rule decides."""
    drafter, emitted = LanguageModelDrafter(DRAFTING, proposal=proposal), defaultdict(float)
    drafter.start([PROMPT])
    drafter.commit([[]], [ROOT])

    def drafted(forks):
        decided = SimpleNamespace(categorical=lambda probs: int(forks.categorical(probs)))  # used as an index at once
        (draft,) = drafter.propose(shape, decided)
        drafter.cache.forget()
        return draft

    for chance, draft in outcomes(drafted):
        paths = tokens_of(draft)
        probs = torch.stack([language(path) for path in paths])
        for share, (accepted, bonus) in outcomes(lambda forks: verify(rule, draft, probs, forks)):
            for token, part in settle(bonus):
                emitted[(*(paths[accepted[-1]] if accepted else ()), token)] += chance * share * part
    return Law(dict(emitted), 0.0)


@pytest.mark.parametrize("rule, shape", [
    (name, shape) for name, rule in RULES.items() if rule.lossless and rule.sampled
    for shape in ("chain:2", *([] if rule.shapes == "chain" else ["star:2"] if name == "naive" else ["star:3"]))])
def test_a_round_leaves_the_targets_law(rule, shape):
    """A third sibling is drawn where the drafter, which knows two tokens, has no mass left."""
    found = law_of(rule, RULES[rule].made_for, named(shape))
    assert distance(found, language, 3) < 1e-12
    assert any(path[0] in (1, 3) for path in found.emitted) and any(path[0] == 4 for path in found.emitted)


# ------------------------------------------------------------------------------------------------------- which tokens


def test_the_most_frequent_tokens_come_first_and_of_equals_the_lower():
    assert most_frequent([[5, 5, 1], np.array([9, 1, 5, 2], dtype=np.uint16)]).tolist() == [5, 1, 2, 9]


def test_a_number_means_the_targets_own_most_frequent_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path)
    (tmp_path / "t").mkdir()
    np.save(tmp_path / "t" / vocabulary.FILE, np.array([9, 4, 6, 1], dtype=np.uint16))
    pair = SimpleNamespace(target=MODEL, draft_model=OTHER, target_name="t")
    assert make("model:vocabulary=3", pair).output.tokens.tolist() == [4, 6, 9]
    assert make("combined:1:vocabulary=2", pair).drafter.output.tokens.tolist() == [4, 9]
    assert make("combined", pair, vocabulary=torch.tensor([8])).drafter.output.tokens.tolist() == [8]
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"vocabulary is {count}; the list of target 't' has 4 .*: give 1 to 4"):
            make("model", pair, vocabulary=count)
    with pytest.raises(ValueError, match="no list of frequent tokens ships for target 'none .*most_frequent"):
        made("model:vocabulary=8")


def test_options_are_read_from_a_drafters_name():
    assert parse("combined:3:vocabulary=8192") == ("combined", {"enough": 3, "vocabulary": 8192})
    assert parse("model:iid:temperature=0.5") == ("model", {"proposal": "iid", "temperature": 0.5})
    with pytest.raises(ValueError, match="takes no option size; it takes proposal"):
        parse("model:size=8192")
    with pytest.raises(ValueError, match="vocabulary is a number"):
        parse("model:vocabulary=all")
    with pytest.raises(ValueError, match="generator cannot be written in its name; pass it by keyword"):
        parse("random:generator=3")


@pytest.mark.parametrize("tokens", [[], [3, 3], [-1, 2], [24], [[1]]], ids=str)
def test_tokens_that_the_model_does_not_have_are_refused(tokens):
    with pytest.raises(ValueError, match="give one or more of 0 to 23, each once"):
        reduced(MODEL, torch.tensor(tokens, dtype=torch.long))


def test_an_output_layer_that_cannot_be_cut_is_refused():
    odd = small_models.llama(0)
    odd.lm_head = torch.nn.Sequential(odd.lm_head)
    odd.lm_head.out_features = 24
    odd.lm_head.weight = odd.lm_head[0].weight
    with pytest.raises(ValueError, match="output layer of LlamaForCausalLM is a Sequential"):
        reduced(odd, KNOWN)
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=24, n_positions=16)).eval()
    assert reduced(other, KNOWN)(PROMPTS[0][None]).logits.isfinite().sum() == len(PROMPTS[0]) * len(KNOWN)


def test_blocks_of_a_reduced_model_run_fused_where_the_models_own_do():
    model = small_models.llama(0, dtype=torch.float32)
    drafter = begin(LanguageModelDrafter(reduced(model, KNOWN)))
    assert isinstance(drafter.blocks, ForwardPass) == isinstance(forward_pass(model), ForwardPass)
