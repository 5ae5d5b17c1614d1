"""The loop: greedy output is the target's own for any tree in any batch; rounds are those of replay; texts end at the
limit, at EOS and within windows. `test_custom_generate` tests hooks and padding, `study/test_rules` the law of samples.
"""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from lib import replay
from lib.decoding import checks, generate, in_batches
from lib.drafters import make
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.tests import small_heads, small_models
from lib.tests.live import decode, live_rounds, replayed_rounds
from lib.tests.replay.test_replay import trees
from lib.trees import Tree, named, shapes
from lib.verify.warping import best_token

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
NAMES, KINDS = list("abcd"), ["k"] * 4
(FULL,) = small_models.prompts(1, (256,))
DEEPER = small_models.llama(3, layers=3)  # for heads that read the hidden states of several layers
PAIR = SimpleNamespace(target=DEEPER, draft_model=small_models.related(DEEPER, 4, noise=0.2))


def greedy(prompts, new, eos=None):
    """The target's greedy continuations by one causal forward pass per token, without a cache: the oracle."""
    texts = [prompt.tolist() for prompt in prompts]
    running = set(range(len(texts)))
    for _ in range(new):
        width = max(map(len, texts))
        batch = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        with torch.no_grad():
            logits = TARGET(batch, use_cache=False).logits
        for row in sorted(running):
            texts[row].append(int(best_token(logits[row, len(texts[row]) - 1])))
        running -= {row for row in running if texts[row][-1] == eos}
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts)]


def speculated(prompts, shape, new, rows=16, drafter=None, **options):
    drafter = drafter or LanguageModelDrafter(DRAFTER)
    return decode(TARGET, drafter, prompts, rows=rows, shape=shape, max_new_tokens=new, **options).new_tokens


def walked(trace, tree: Tree):
    """The rounds that replay finds to follow one another."""
    return replayed_rounds(replay.chained(replay.rounds(trace, tree)))


# ----------------------------------------------------------------------------------------------------- greedy identity


@settings(deadline=None, max_examples=10)
@given(trees(), st.integers(1, 18), st.integers(1, 4))
def test_greedy_output_is_the_targets_own_for_any_tree_in_any_batch(tree, new, rows):
    assert speculated(PROMPTS, tree, new, rows) == greedy(PROMPTS, new)


# --------------------------------------------------------------------------------------------------------- limit, ends


@pytest.mark.parametrize("new", [1, 2, 3, 5, 8])
def test_the_limit_changes_no_round(new):
    """Rounds that start before it are those of a longer text, whether the tree is deeper than the limit or not."""
    trace = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=new - 1, beyond=13)
    for shape in ("chain:12", "kary:2@6"):
        short, long = (decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=shape, max_new_tokens=limit)
                       for limit in (new, 24))
        assert live_rounds(short) == [record for record in live_rounds(long) if record[1] < new - 1]
        assert live_rounds(short) == walked(trace, named(shape))
        assert short.new_tokens == [row[:new] for row in long.new_tokens]


def test_a_shape_of_thousands_of_levels_is_cut_to_the_same_tree_in_every_round():
    for prompts, new in ((PROMPTS, 4), (PROMPTS[:1], 66)):
        done = decode(TARGET, LanguageModelDrafter(TARGET), prompts, shape="chain:60000", max_new_tokens=new)
        assert done.new_tokens == greedy(prompts, new)
        assert {record.drafted for record in done.rounds} == {max(checks.DEEPEST, new)}


@pytest.mark.parametrize("model", [TARGET, DRAFTER, None], ids=["exact", "related", "lookup"])
def test_an_end_at_every_position_of_a_draft(model):
    """Rounds that an end cuts count as they stand. The end may be written in any way."""
    prompts, tensor = small_models.prompts(3, (5, 9, 2, 11)), torch.tensor
    full, wrap = greedy(prompts, 16), itertools.cycle([int, np.int64, tensor, lambda token: {token, -1},
                                                       lambda token: tensor([token]), lambda token: np.array([token])])
    for eos in sorted({token for row in full for token in row}):
        done = decode(TARGET, LanguageModelDrafter(model) if model else LookupDrafter(), prompts, shape="chain:5",
                      max_new_tokens=16, eos_token_id=next(wrap)(eos))
        assert done.new_tokens == [row[: row.index(eos) + 1] if eos in row else row for row in full]
        if model:
            trace = replay.record(TARGET, {"d": model}, prompts, names=NAMES, kinds=KINDS, max_new_tokens=15,
                                  eos_token_id=eos)
            assert live_rounds(done) == walked(trace, shapes.chain(5))


@pytest.mark.parametrize("position, temperature, shape, moment", [
    (12, 0.0, "chain:0", "in round 7"), (12, 0.0, "chain:2", "in round 3"), (12, 1.0, "chain:0", "in round 7"),
    (3, 0.0, "chain:0", "after the prompt"), (3, 0.0, "model", "after the prompt")])
def test_nan_from_a_position_on_ends_the_call_and_names_the_round(position, temperature, shape, moment):
    """Token 0 would be the best one for ever, and that of a drafter with the same weights."""
    target, broken = gpt2(), gpt2()
    torch.nn.init.constant_(broken.transformer.wpe.weight[position], float("nan"))
    broken.name_or_path, target = "my/model", target if shape == "model" else broken
    drafter = NoDrafter() if shape == "chain:0" else LanguageModelDrafter(broken)
    with pytest.raises(ValueError, match=f"model 'my/model' gives NaN {moment}, .* load other weights"):
        generate(target, drafter, FULL[None, :6], shape=shape.replace("model", "chain:2"), temperature=temperature,
                 rule="naive" if temperature else "greedy", max_new_tokens=18, generator=torch.Generator())


# ------------------------------------------------------------------------------------------------------------- windows


def gpt2():
    """A model with learned positions, 24 of them."""
    config = GPT2Config(vocab_size=24, n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    return GPT2LMHeadModel._from_config(config, attn_implementation="tree", dtype=torch.float64).eval()


@pytest.mark.parametrize("length, new", [(24, 0), (24, 1), (18, 7), (6, 19)])
def test_a_text_may_fill_the_window_to_its_last_position(length, new):
    """The last token is written and not read; trees end where the window does, since a model with learned positions
    fails beyond. One token more is refused.
    """
    model, prompt = gpt2(), FULL[None, :length]
    expected = prompt if not new else model.generate(prompt, max_new_tokens=new, do_sample=False, eos_token_id=None,
                                                     pad_token_id=0)
    for drafter, shape in ((LanguageModelDrafter(model), "kary:2,3"), (LanguageModelDrafter(model), "dyspec:5@9"),
                           (LookupDrafter(), "kary:2,3"), (NoDrafter(), "chain:0")):
        assert torch.equal(generate(model, drafter, prompt, shape=shape, max_new_tokens=new).sequences, expected)
        with pytest.raises(ValueError, match="need 25 positions, the model's window has 24"):
            generate(model, drafter, prompt, shape=shape, max_new_tokens=26 - length)


@pytest.mark.parametrize("window", [24, 30])
@pytest.mark.parametrize("shape", ["chain:5", "kary:2@14", "eagle2:3,4@9"])
def test_a_text_may_fill_the_window_of_a_drafter(window, shape):
    """Trees end where it does; a text that is one token longer is refused, and studies learn the reason."""
    model = small_models.related(TARGET, 1, noise=0.3)
    model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = window
    prompts, drafter, new = [FULL[:12], FULL[:7]], LanguageModelDrafter(model), window - 12 + 1
    assert speculated(prompts, shape, new, drafter=drafter) == greedy(prompts, new)
    with pytest.raises(ValueError, match=f"need {window + 1} positions, the drafter's window has {window}; shorten"):
        speculated(prompts, shape, new + 1, drafter=drafter)
    assert not checks.window_refusal(window, window) and checks.window_refusal(window, window + 1)


@pytest.mark.parametrize("rule", ["eagle2:3,4@9", "opttree@8", "dyspec:5@9"])
def test_a_rule_that_a_window_cuts_spends_its_budget_on_the_levels_that_remain(rule):
    prompts, drafts = [FULL[:241], FULL[:9]], []
    written = speculated(prompts, rule, 16, observe=lambda rows, round_drafts, _: drafts.append(round_drafts))
    assert written == greedy(prompts, 16)
    assert max(draft.tree.max_depth for draft in drafts[0]) > 2, "cut only where the end is near"
    drafter, whole = LanguageModelDrafter(DRAFTER), named(rule)
    drafter.start(prompts)
    drafter.commit([[], []], [1, 1])
    for draft in drafter.propose(whole.at_most(2), None):
        assert draft.tree.max_depth == 2 and draft.tree.budget <= whole.budget == whole.at_most(2).budget


# ------------------------------------------------------------------------------------------------------------- records


def test_a_round_records_its_costs_and_its_accepted_path():
    done = decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS[:1], shape="chain:4", max_new_tokens=11)
    first, second = done.rounds
    assert (first.position, first.drafted, first.accepted) == (1, 4, 4)
    assert (second.position, second.accepted) == (6, 4) and first.draft_calls == 4
    assert min(first.draft_seconds, first.verify_seconds, first.commit_seconds) > 0


def test_a_call_counts_its_tokens_and_forward_passes():
    """Counted by hand; the same sums where batches are joined."""
    (ids, mask), drafter = next(in_batches(PROMPTS, 4)), LanguageModelDrafter(DRAFTER)
    done = generate(TARGET, drafter, ids, attention_mask=mask, shape="kary:2@6", max_new_tokens=17)
    drafted, accepted = (sum(getattr(record, name) for record in done.rounds) for name in ("drafted", "accepted"))
    assert done.acceptance_rate == accepted / drafted and 0 < accepted and done.forward == "layers"
    assert done.acceptance_length == accepted / len(done.rounds)
    most = max(sum(record.row == row for record in done.rounds) for row in range(4))
    assert done.target_calls == 1 + most and done.drafter_calls == drafter.calls == 1 + 2 * most
    parts = [decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, rows=rows, shape="kary:2@6", max_new_tokens=17)
             for rows in (4, 2)]
    assert parts[0].target_calls == done.target_calls < parts[1].target_calls
    assert {part.acceptance_rate for part in parts} == {done.acceptance_rate}
    none = generate(TARGET, NoDrafter(), ids, attention_mask=mask, shape="chain:0", max_new_tokens=1)
    assert np.isnan([none.acceptance_rate, none.acceptance_length]).all() and none.target_calls == 1
    nothing = generate(TARGET, NoDrafter(), PROMPTS[0][None], shape="chain:0", max_new_tokens=0)
    assert nothing.new_tokens == [[]] and not nothing.rounds and not nothing.target_calls


@pytest.mark.parametrize("shape", ["kary:2@6", "dyspec@6"])
@pytest.mark.parametrize("kind", ["model", *small_heads.DRAFTERS])
def test_a_rule_gets_the_probabilities_that_it_compares_with(kind, shape):
    """Children are the best of their row; other rules do not pay for probabilities."""
    drafter = make(kind, PAIR, {} if kind == "model" else {"folder": small_heads.folder(kind, DEEPER)})
    compared, greedily = [], []
    for rule, temperature, drafts in (("conservative", 1.0, compared), ("greedy", 0.0, greedily)):
        decode(DEEPER, drafter, PROMPTS, shape=shape, rule=rule, temperature=temperature, max_new_tokens=12,
               observe=lambda rows, round_drafts, _: drafts.extend(round_drafts))
    edges = [(draft, node, children) for draft in compared for node in range(draft.tree.size)
             if (children := sorted(draft.tree.children(node)))]
    assert edges and greedily and all(draft.probs is None for draft in greedily)
    for draft, node, children in edges:
        chances, ranks = draft.probs[node], torch.tensor(draft.tree.rank[children])
        torch.testing.assert_close(chances.sum(), torch.ones_like(chances.sum()), atol=1e-5, rtol=0)
        torch.testing.assert_close(chances[draft.tokens[children]], chances.sort(descending=True).values[ranks])
