"""The loop: greedy output is the target's own, whatever the tree; rounds are those of replay; ends are where they
belong.
"""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from lib import replay
from lib.attention import hosting_trees
from lib.decoding import checks, generate, in_batches
from lib.drafters import NoDrafter
from lib.drafters.adaptive import AdaptiveDrafter, Schedule
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.replay import live
from lib.tests import small_models
from lib.tests.replay.test_replay import trees
from lib.trees import Tree, named, shapes

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
WIDER = LanguageModelDrafter(small_models.llama(1, vocabulary=30))
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
NAMES, KINDS = list("abcd"), ["k"] * 4
FIXED = ["chain@6", "star@6", "independent:2@8", "kary:2@14", "comb:3@9", "expansion:2,2,1@12",
         "expansion:1,1,3,1,1,1,1,1@16"]


def own_greedy(prompt, new, eos=None):
    out = TARGET.generate(prompt[None], max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=eos)
    return out[0, len(prompt) :].tolist()


@settings(deadline=None, max_examples=12)
@given(trees(), st.integers(1, 24))
def test_greedy_output_is_the_targets_own_for_any_tree_in_any_batch(tree, new):
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=tree, max_new_tokens=new)
    assert done.new_tokens == [own_greedy(prompt, new) for prompt in PROMPTS]


@pytest.mark.parametrize("shape", FIXED)
def test_live_rounds_are_the_replayed_ones(shape):
    recorded = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=30)
    tree = named(shape)
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=tree, max_new_tokens=31)
    assert live_rounds(done) == replayed_rounds(recorded, tree)
    assert any(found.accepted for found in done.rounds), "a drafter that is never right tests nothing"


@pytest.mark.parametrize("new", range(1, 9))
def test_the_limit_changes_no_round(new):
    """Rounds that start before it are those of a longer text, whether the tree is deeper than the limit or not."""
    recorded = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=new - 1,
                             beyond=13)
    for shape in ("chain:12", "kary:2@6"):
        asked = dict(shape=shape)
        short, long = (live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, **asked, max_new_tokens=limit)
                       for limit in (new, 24))
        assert live_rounds(short) == [found for found in live_rounds(long) if found[1] < new - 1]
        assert live_rounds(short) == replayed_rounds(recorded, named(shape))
        assert short.new_tokens == [row[:new] for row in long.new_tokens]


@settings(deadline=None, max_examples=10)
@given(trees(), st.integers(0, 1000))
def test_naive_sampling_replays_on_its_own_trace(tree, seed):
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=tree, rule="naive", temperature=0.8,
                       max_new_tokens=20, seed=seed)
    recorded = replay.read(TARGET, {"d": DRAFTER}, PROMPTS, done.new_tokens, names=NAMES, kinds=KINDS, temperature=0.8)
    assert decided(live_rounds(done), recorded, tree) == replayed_rounds(recorded, tree)


def test_eos_inside_the_accepted_path_ends_the_output_there():
    full = own_greedy(PROMPTS[1], 24)
    for eos in sorted(set(full)):
        done = live.decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS, shape="chain:5", max_new_tokens=24,
                           eos_token_id=eos)
        assert done.new_tokens[1] == full[: full.index(eos) + 1] == own_greedy(PROMPTS[1], 24, eos)
        recorded = replay.record(TARGET, {"d": TARGET}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=23,
                                 eos_token_id=eos)
        assert live_rounds(done) == replayed_rounds(recorded, shapes.chain(5))
        read = replay.read(TARGET, {"d": TARGET}, PROMPTS, done.new_tokens, names=NAMES, kinds=KINDS, eos_token_id=eos)
        assert decided(live_rounds(done), read, shapes.chain(5)) == replayed_rounds(read, shapes.chain(5))


def test_a_shape_of_thousands_of_levels_is_cut_to_the_same_tree_in_every_round():
    for prompts, new in ((PROMPTS, 4), (PROMPTS[:1], 66)):
        done = live.decode(TARGET, LanguageModelDrafter(TARGET), prompts, shape="chain:60000", max_new_tokens=new)
        assert done.new_tokens == [own_greedy(prompt, new) for prompt in prompts]
        assert {found.drafted for found in done.rounds} == {max(checks.DEEPEST, new)}
    rule = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS[:1], shape="dyspec:900@900", max_new_tokens=2)
    assert max(found.draft_calls for found in rule.rounds) <= checks.DEEPEST


@pytest.mark.parametrize("new", [0, 1, 2])
def test_few_new_tokens(new):
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape="kary:2@6", max_new_tokens=new)
    assert done.new_tokens == [own_greedy(prompt, 2)[:new] for prompt in PROMPTS]
    assert len(done.rounds) == (4 if new == 2 else 0)


def test_a_round_records_what_it_did():
    done = live.decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS[:1], shape="chain:4", max_new_tokens=11)
    first, second = done.rounds
    assert (first.position, first.drafted, first.accepted, first.ranks, first.open_end) == (1, 4, 4, (0,) * 4, False)
    assert (second.position, second.accepted) == (6, 4)
    assert first.target_calls == 1 and first.draft_calls == 4 and first.cache_bytes > 0
    assert min(first.draft_seconds, first.verify_seconds, first.commit_seconds) > 0
    assert all(0 < one.model_seconds < one.seconds for one in done.rounds)


@pytest.mark.parametrize(
    "changed, message",
    [
        (dict(input_ids=torch.zeros(1, 0, dtype=torch.long)), "prompt 0 is empty"),
        (dict(max_new_tokens=-1), "max_new_tokens is -1"),
        (dict(temperature=0.5, rule="naive"), "generator is None"),
        (dict(rule="naive"), "greedy goes with temperature 0"),
        (dict(max_new_tokens=300), "the model's window has 256; shorten the prompt"),
        (dict(shape="kary"), "needs a budget|unknown|parameters"),
        (dict(shape=None), "shape is None"),
        (dict(input_ids=[[1, 2]]), "input_ids is a list"),
        (dict(input_ids=torch.tensor([1, 2])), r"input_ids is torch.int64 \(2,\)"),
        (dict(input_ids=torch.tensor([[1.0, 2.0]])), "input_ids is torch.float32"),
        (dict(input_ids=torch.tensor([[1, 24]])), "prompt 0 has token 24, the target knows 0 to 23"),
        (dict(input_ids=torch.tensor([[1], [-1]])), "prompt 1 has token -1"),
        (dict(max_new_tokens=2.5), "max_new_tokens is 2.5"),
        (dict(max_new_tokens=None), "max_new_tokens is None"),
        (dict(rule="best"), "rule is 'best'; choose one of greedy"),
        (dict(rule="best", temperature=1.0, max_new_tokens=1, generator=torch.Generator()), "rule is 'best'"),
        (dict(temperature=float("nan"), rule="naive", generator=torch.Generator()), "temperature is nan"),
        (dict(eos_token_id="</s>"), "eos_token_id is '</s>'"),
        (dict(eos_token_id=[1, 2.5]), "eos_token_id is"),
        (dict(eos_token_id=2.5), "eos_token_id is 2.5"),
        (dict(attention_mask=torch.ones(1, 2)), r"attention_mask is torch.float32 \(1, 2\) for input_ids \(1, 17\)"),
        (dict(attention_mask=[[1, 1]]), "attention_mask is a list"),
        (dict(drafter=DRAFTER), r"drafter is a LlamaForCausalLM, not a Drafter.*make\('model', pair\)"),
        (dict(drafter="sam"), "drafter is 'sam', not a Drafter"),
        (dict(target="base"), "target is 'base'; give a model"),
        (dict(temperature="hot"), "temperature is 'hot'; give 0"),
        (dict(temperature=None), "temperature is None"),
        (dict(temperature=1.0, rule="naive", generator=7), "generator is 7; pass a torch.Generator"),
        (dict(max_new_tokens="many"), "max_new_tokens is 'many'"),
        (dict(drafter=WIDER), "the drafter knows 30 tokens, the target 24; if .*, which leaves them out"),
        (dict(drafter=AdaptiveDrafter(WIDER, Schedule())), "the drafter knows 30 tokens"),
        (dict(drafter=MergedDrafter([LanguageModelDrafter(DRAFTER), WIDER])), "the drafter knows 30 tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed, message):
    usual = dict(drafter=LanguageModelDrafter(DRAFTER), input_ids=PROMPTS[3][None], shape="chain:2", max_new_tokens=4)
    with pytest.raises(ValueError, match=message):
        generate(**dict(target=TARGET) | usual | changed)


@pytest.mark.parametrize("whose", ["target", "drafter"])
def test_a_model_without_tree_attention_is_named(whose):
    other = small_models.llama(1)
    other.set_attn_implementation("sdpa")
    target, drafter = (other, DRAFTER) if whose == "target" else (TARGET, other)
    with pytest.raises(ValueError, match="LlamaForCausalLM has attention 'sdpa'.*hosting_trees"):
        generate(target, LanguageModelDrafter(drafter), PROMPTS[0][None], shape="chain:2", max_new_tokens=4)
    with pytest.raises(ValueError, match="attention 'sdpa'"):
        replay.record(target, {"d": drafter}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=4)
    hosting_trees(other)
    assert generate(target, LanguageModelDrafter(drafter), PROMPTS[0][None], shape="chain:2", max_new_tokens=4).rounds


@pytest.mark.parametrize("wrap", [int, np.int64, torch.tensor, lambda token: [token], lambda token: {token, 99},
                                  lambda token: torch.tensor([token]), lambda token: np.array([token, -1])])
def test_an_end_may_be_written_in_any_way(wrap):
    own = own_greedy(PROMPTS[1], 12)
    done = generate(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS[1][None], shape="chain:3", max_new_tokens=12,
                    eos_token_id=wrap(own[5]))
    assert done.new_tokens == [own[: own.index(own[5]) + 1]] and done.sequences.min() >= 0


def test_padding_on_either_side_is_no_part_of_a_prompt():
    left = torch.stack([torch.cat([torch.zeros(17 - len(p), dtype=torch.long), p]) for p in PROMPTS])
    mask = torch.stack([torch.arange(17) >= 17 - len(p) for p in PROMPTS])
    done = generate(TARGET, LanguageModelDrafter(DRAFTER), left, attention_mask=mask, shape="kary:2@6",
                    max_new_tokens=9)
    assert done.new_tokens == [own_greedy(prompt, 9) for prompt in PROMPTS]
    assert torch.equal(done.sequences, torch.cat([left, torch.tensor(done.new_tokens)], dim=1))


def live_rounds(done):
    """Row, start and accepted length of each round, by row."""
    return sorted((found.row, found.position - 1, found.accepted) for found in done.rounds)


def replayed_rounds(recorded, tree: Tree):
    found = replay.chained(replay.walk(recorded, tree))
    return [*zip(found.rows.tolist(), found.starts.tolist(), found.accepted.tolist())]


def decided(rounds, recorded, tree: Tree):
    """The rounds that the trace is long enough for."""
    return [found for found in rounds if found[1] < recorded.starts(tree.max_depth)[found[0]]]


def padded_target(pad, eos):
    """The target with a padding token, and tokens that end its texts, of its own."""
    target = copy.copy(TARGET)
    target.generation_config = GenerationConfig(pad_token_id=pad, eos_token_id=eos)
    return target


@pytest.mark.parametrize("pad, eos, padding", [(5, 7, 5), (5, 5, 5), (None, 5, 5), (None, [7, 5], 5), (0, None, 0)])
@pytest.mark.parametrize("left", [True, False])
def test_a_padded_batch_without_a_mask_is_refused(pad, eos, padding, left):
    """Its padding would be read as text; with a mask, of ones too, and as single rows it decodes."""
    target, usual = padded_target(pad, eos), dict(shape="chain:2", max_new_tokens=4)
    rows = [[3, 4, 6, 8], [9, 3], [4, 6, 2]]
    filled = [[*[padding] * (4 - len(row)), *row] if left else [*row, *[padding] * (4 - len(row))] for row in rows]
    ids, drafter = torch.tensor(filled), LanguageModelDrafter(DRAFTER)
    side = "begins" if left else "ends"
    with pytest.raises(ValueError, match=f"row 1 of input_ids {side} with token {padding}, .* pass `attention_mask`; "
                                         "all ones if these are text"):
        generate(target, drafter, ids, **usual)
    assert generate(target, drafter, ids, attention_mask=ids != padding, **usual).new_tokens == [
        generate(target, drafter, torch.tensor([row]), **usual).new_tokens[0] for row in rows]
    as_text = generate(target, drafter, ids, attention_mask=torch.ones_like(ids), **usual).new_tokens
    assert as_text == [generate(target, drafter, row[None], **usual).new_tokens[0] for row in ids], "a row never raises"


@pytest.mark.parametrize("rows", [[[5, 3, 4], [5, 6, 8]], [[3, 5, 4], [3, 4, 6]], [[3, 4], [6, 8]]],
                         ids=["all begin so", "inside", "none"])
def test_a_batch_of_text_needs_no_mask(rows):
    """Where all rows begin with the token it is a first token, and inside a text it is text."""
    ids = torch.tensor(rows)
    done = generate(padded_target(5, 5), LanguageModelDrafter(DRAFTER), ids, shape="chain:2", max_new_tokens=4)
    assert done.new_tokens == [own_greedy(row, 4) for row in ids]


def test_a_call_is_summarised_and_logged(caplog):
    """Rounds, rates and forward passes, counted by hand; the same sums where batches are joined."""
    (ids, mask), drafter = next(in_batches(PROMPTS, 4)), LanguageModelDrafter(DRAFTER)
    with caplog.at_level("INFO", logger="lib.decoding"):
        done = generate(TARGET, drafter, ids, attention_mask=mask, shape="kary:2@6", max_new_tokens=17)
    drafted, accepted = (sum(getattr(one, name) for one in done.rounds) for name in ("drafted", "accepted"))
    assert done.acceptance_rate == accepted / drafted and 0 < accepted
    assert done.acceptance_length == accepted / len(done.rounds) == done.tokens_per_round - 1
    most = max(sum(one.row == row for one in done.rounds) for row in range(4))
    assert done.target_calls == 1 + most and done.drafter_calls == drafter.calls == 1 + 2 * most
    assert [record.message for record in caplog.records] == [done.summary()]
    assert f"drafted {drafted}, accepted {accepted} (rate {accepted / drafted:.3f})" in done.summary()
    parts = [live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, rows=rows, shape="kary:2@6", max_new_tokens=17)
             for rows in (4, 2)]
    assert parts[0].target_calls == done.target_calls < parts[1].target_calls
    assert {part.acceptance_rate for part in parts} == {done.acceptance_rate}
    none = generate(TARGET, NoDrafter(), ids, attention_mask=mask, shape="chain:0", max_new_tokens=1)
    assert np.isnan([none.acceptance_rate, none.acceptance_length]).all() and none.target_calls == 1
