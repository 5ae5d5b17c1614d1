"""The loop: greedy output is the target's own for any tree in any batch; rounds are those of replay; texts end at the
limit, at EOS and at hooks; sampled texts have the target's law.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.decoding import Hooks, checks, generate, in_batches
from lib.drafters import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.measure.rules import g_test, law_of
from lib.tests import small_models
from lib.tests.live import decode
from lib.tests.replay.test_replay import trees
from lib.trees import Tree, named, shapes
from lib.verify import RULES
from lib.verify.warping import best_token

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
NAMES, KINDS = list("abcd"), ["k"] * 4


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
    done = [generate(TARGET, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new, **options)
            for ids, mask in in_batches(prompts, rows)]
    return [tokens for batch in done for tokens in batch.new_tokens]


def live_rounds(done):
    """Row, start and accepted length of each round, by row."""
    return sorted((record.row, record.position - 1, record.accepted) for record in done.rounds)


def replayed_rounds(trace, tree: Tree):
    found = replay.chained(replay.rounds(trace, tree))
    return [*zip(found.rows.tolist(), found.starts.tolist(), found.accepted.tolist())]


def decided(rounds, trace, tree: Tree):
    """The rounds that the trace is long enough for."""
    return [record for record in rounds if record[1] < trace.starts(tree.max_depth)[record[0]]]


# ----------------------------------------------------------------------------------------------------- greedy identity


@settings(deadline=None, max_examples=12)
@given(trees(), st.integers(1, 24), st.integers(1, 4))
def test_greedy_output_is_the_targets_own_for_any_tree_in_any_batch(tree, new, rows):
    assert speculated(PROMPTS, tree, new, rows) == greedy(PROMPTS, new)


def test_padding_on_either_side_is_no_part_of_a_prompt():
    left = torch.stack([torch.cat([torch.zeros(17 - len(prompt), dtype=torch.long), prompt]) for prompt in PROMPTS])
    mask = torch.stack([torch.arange(17) >= 17 - len(prompt) for prompt in PROMPTS])
    done = generate(TARGET, LanguageModelDrafter(DRAFTER), left, attention_mask=mask, shape="kary:2@6",
                    max_new_tokens=9)
    assert done.new_tokens == greedy(PROMPTS, 9)
    assert torch.equal(done.sequences, torch.cat([left, torch.tensor(done.new_tokens)], dim=1))


def test_no_tokens_are_no_work():
    done = generate(TARGET, NoDrafter(), PROMPTS[0][None], shape="chain:0", max_new_tokens=0)
    assert done.new_tokens == [[]] and not done.rounds and not done.target_calls


# --------------------------------------------------------------------------------------------------------- limit, ends


@pytest.mark.parametrize("new", range(1, 9))
def test_the_limit_changes_no_round(new):
    """Rounds that start before it are those of a longer text, whether the tree is deeper than the limit or not."""
    trace = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=new - 1, beyond=13)
    for shape in ("chain:12", "kary:2@6"):
        short, long = (decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=shape, max_new_tokens=limit)
                       for limit in (new, 24))
        assert live_rounds(short) == [record for record in live_rounds(long) if record[1] < new - 1]
        assert live_rounds(short) == replayed_rounds(trace, named(shape))
        assert short.new_tokens == [row[:new] for row in long.new_tokens]


def test_a_shape_of_thousands_of_levels_is_cut_to_the_same_tree_in_every_round():
    for prompts, new in ((PROMPTS, 4), (PROMPTS[:1], 66)):
        done = decode(TARGET, LanguageModelDrafter(TARGET), prompts, shape="chain:60000", max_new_tokens=new)
        assert done.new_tokens == greedy(prompts, new)
        assert {record.drafted for record in done.rounds} == {max(checks.DEEPEST, new)}
    grown = decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS[:1], shape="dyspec:900@900", max_new_tokens=2)
    assert max(record.draft_calls for record in grown.rounds) <= checks.DEEPEST


@pytest.mark.parametrize("drafter", ["exact", "related", "lookup"])
def test_an_end_at_every_position_of_a_draft(drafter):
    prompts = small_models.prompts(3, (5, 9, 2))
    make = {"exact": lambda: LanguageModelDrafter(TARGET), "related": lambda: LanguageModelDrafter(DRAFTER),
            "lookup": LookupDrafter}[drafter]
    for eos in sorted({token for row in greedy(prompts, 16) for token in row}):
        assert speculated(prompts, "chain:5", 16, drafter=make(), eos_token_id=eos) == greedy(prompts, 16, eos)


def test_a_round_that_eos_ends_counts_as_it_stands():
    (full,) = greedy(PROMPTS[1:2], 24)
    for eos in sorted(set(full)):
        done = decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS, shape="chain:5", max_new_tokens=24,
                           eos_token_id=eos)
        assert done.new_tokens[1] == full[: full.index(eos) + 1]
        trace = replay.record(TARGET, {"d": TARGET}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=23,
                              eos_token_id=eos)
        assert live_rounds(done) == replayed_rounds(trace, shapes.chain(5))


@pytest.mark.parametrize("wrap", [int, np.int64, torch.tensor, lambda token: [token], lambda token: {token, 99},
                                  lambda token: torch.tensor([token]), lambda token: np.array([token, -1])])
def test_an_end_may_be_written_in_any_way(wrap):
    (full,) = greedy(PROMPTS[1:2], 12)
    done = generate(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS[1][None], shape="chain:3", max_new_tokens=12,
                    eos_token_id=wrap(full[5]))
    assert done.new_tokens == [full[: full.index(full[5]) + 1]] and done.sequences.min() >= 0


# --------------------------------------------------------------------------------------------- hooks, outputs, records


def test_a_hook_stops_a_row_inside_the_accepted_path_and_sees_each_token_once():
    prompts, calls, emitted = small_models.prompts(4, (5, 9)), [], {0: [], 1: []}

    def stop(row, written):
        calls.append((row, len(written)))
        return row == 0 and len(written) == 7

    hooks = Hooks(stop=stop, emit=lambda row, tokens: emitted[row].extend(tokens))
    written = speculated(prompts, "chain:4", 12, drafter=LanguageModelDrafter(TARGET), hooks=hooks)
    full = greedy(prompts, 12)
    assert written == [full[0][:7], full[1]] and [emitted[0], emitted[1]] == written
    assert sorted(calls) == [(0, i + 1) for i in range(7)] + [(1, i + 1) for i in range(12)]


def test_adjusted_logits_depend_on_each_nodes_own_path():
    """A rule that forbids every token generated before: no loop could otherwise decode without repeats."""
    prompts = small_models.prompts(7, (6, 3, 11))

    def adjust(row, contexts, logits):
        changed = logits.clone()
        for i, context in enumerate(contexts):
            changed[i, context] = float("-inf")
        return changed

    hooks = Hooks(adjust=adjust)
    plain = [speculated([prompt], "chain:0", 15, drafter=NoDrafter(), hooks=hooks)[0] for prompt in prompts]
    assert all(len(set(row)) == 15 for row in plain)
    assert speculated(prompts, "kary:2@14", 15, hooks=hooks) == plain


def test_hidden_states_reach_a_drafter_that_wants_them_from_the_first_commit_on():
    """hidden_states[-1] is the input of the output layer, at every prompt position and at every node of the round."""
    prompts, outputs = small_models.prompts(8, (4, 7)), []

    class Listening(LanguageModelDrafter):
        wants_hidden_states = True

        def commit(self, accepted, bonus, target_outputs=None):
            outputs.append((target_outputs.hidden_states[-1], target_outputs.logits, len(bonus)))
            super().commit(accepted, bonus, target_outputs)

    assert speculated(prompts, "kary:2@6", 9, drafter=Listening(DRAFTER)) == greedy(prompts, 9)
    assert outputs[0][0].shape == (2, 7, 32) and outputs[1][0].shape == (2, 7, 32)
    with torch.inference_mode():
        for hidden, logits, rows in outputs[1:]:
            assert len(hidden) == rows
            torch.testing.assert_close(TARGET.lm_head(hidden), logits)


def test_a_round_records_its_costs_and_its_accepted_path():
    done = decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS[:1], shape="chain:4", max_new_tokens=11)
    first, second = done.rounds
    assert (first.position, first.drafted, first.accepted, first.ranks, first.open_end) == (1, 4, 4, (0,) * 4, False)
    assert (second.position, second.accepted) == (6, 4) and first.draft_calls == 4
    assert min(first.draft_seconds, first.verify_seconds, first.commit_seconds) > 0
    assert all(0 < record.model_seconds < record.seconds for record in done.rounds)


def test_a_call_counts_its_tokens_and_forward_passes():
    """Counted by hand; the same sums where batches are joined."""
    (ids, mask), drafter = next(in_batches(PROMPTS, 4)), LanguageModelDrafter(DRAFTER)
    done = generate(TARGET, drafter, ids, attention_mask=mask, shape="kary:2@6", max_new_tokens=17)
    drafted, accepted = (sum(getattr(record, name) for record in done.rounds) for name in ("drafted", "accepted"))
    assert done.acceptance_rate == accepted / drafted and 0 < accepted
    assert done.acceptance_length == accepted / len(done.rounds)
    most = max(sum(record.row == row for record in done.rounds) for row in range(4))
    assert done.target_calls == 1 + most and done.drafter_calls == drafter.calls == 1 + 2 * most
    parts = [decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, rows=rows, shape="kary:2@6", max_new_tokens=17)
             for rows in (4, 2)]
    assert parts[0].target_calls == done.target_calls < parts[1].target_calls
    assert {part.acceptance_rate for part in parts} == {done.acceptance_rate}
    none = generate(TARGET, NoDrafter(), ids, attention_mask=mask, shape="chain:0", max_new_tokens=1)
    assert np.isnan([none.acceptance_rate, none.acceptance_length]).all() and none.target_calls == 1


# ----------------------------------------------------------------------------------------------------- sampled decoding


@settings(deadline=None, max_examples=10)
@given(trees(), st.integers(0, 1000))
def test_naive_sampling_replays_on_its_own_trace(tree, seed):
    done = decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=tree, rule="naive", temperature=0.8,
                       max_new_tokens=20, seed=seed)
    trace = replay.read(TARGET, {"d": DRAFTER}, replay.Texts(
        NAMES, KINDS, PROMPTS, done.new_tokens, [False] * len(PROMPTS)), temperature=0.8)
    assert decided(live_rounds(done), trace, tree) == replayed_rounds(trace, tree)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.lossless and rule.sampled])
def test_sampled_texts_have_the_law_of_the_target(name):
    """The first three tokens of a thousand continuations, of the two best at each place: eight cells."""
    rule, texts = RULES[name], 1000
    drafter = LanguageModelDrafter(DRAFTER, proposal=rule.made_for)
    done = decode(TARGET, drafter, [PROMPTS[0]] * texts, rows=100, rule=name, temperature=1.0, top_k=2,
                       shape="chain:2" if rule.shapes == "chain" else "kary:2@6", max_new_tokens=3, seed=1)
    test = g_test(map(tuple, done.new_tokens), law_of(TARGET, PROMPTS[0], 3, 1.0, 2))
    assert test["degrees"] > 3 and test["p_value"] > 1e-3
