"""A drafter whose window is shorter than the text: rows that outgrow it decode plainly, live, in replay and in what is
recommended.
"""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lib import replay
from lib.cost import candidates
from lib.cost.calibration import calibrate
from lib.cost.round_cost import PLAIN, Curve, RoundCost
from lib.decoding import generate, in_batches
from lib.drafters.adaptive import POLICIES, AdaptiveDrafter, ConfidentDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter
from lib.replay import acceptance, expectation, simulated
from lib.tests import small_models
from lib.tests.cost.test_recommendation import TARGET as ASKED
from lib.tests.cost.test_recommendation import ask, pair_of
from lib.tests.decoding.test_loop_edges import TARGET, own_greedy
from lib.trees import named

WINDOW, NEW = 24, 22
PROMPTS = small_models.prompts(3, (3, 12, 23, 24, 40, 7))
NAMES, KINDS = tuple("abcdef"), ("k",) * 6


def short(seed, noise=0.3, window=WINDOW, target=TARGET):
    """A model that agrees with the target in part, of a short window."""
    model = small_models.related(target, seed, noise)
    model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = window
    return model


def learned():
    """A model that fails wherever it is given a position past its window."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=24, n_positions=WINDOW, n_embd=16, n_layer=1, n_head=2)
    return GPT2LMHeadModel._from_config(config, attn_implementation="tree", dtype=torch.float64).eval()


DRAFTER = short(1)
MADE = {"model": lambda: LanguageModelDrafter(DRAFTER), "learned": lambda: LanguageModelDrafter(learned()),
        "confident": lambda: ConfidentDrafter(DRAFTER, threshold=0.2),
        "combined": lambda: CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(DRAFTER), enough=2),
        "merged": lambda: MergedDrafter([LanguageModelDrafter(DRAFTER), LanguageModelDrafter(short(2))]),
        "complexity": lambda: AdaptiveDrafter(LanguageModelDrafter(DRAFTER), POLICIES["complexity"]())}
GROWN = ("eagle2:3,4@9", "opttree@8")


def decoded(drafter, shape, prompts=PROMPTS, rows=16, **settings):
    """Each batch's new tokens and rounds, by the place of the first prompt."""
    for first, (ids, mask) in zip(range(0, len(prompts), rows), in_batches(prompts, rows)):
        yield first, generate(TARGET, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=NEW, **settings)


def rounds_of(drafter, shape):
    return sorted((first + one.row, one.position - 1, one.accepted, one.drafted)
                  for first, done in decoded(drafter, shape, rows=4) for one in done.rounds)


@pytest.mark.parametrize("kind, shape", [(kind, shape) for kind in MADE for shape in ("chain:5", "kary:2@14")]
                         + [("model", rule) for rule in GROWN] + [("learned", rule) for rule in GROWN])
def test_rows_past_the_window_decode_plainly_and_say_so(kind, shape):
    """A tree is drafted where the text and all levels but the last fit the window, in each row by itself."""
    drafter, depth = MADE[kind](), named(shape).max_depth
    if kind == "complexity":  # which chooses how many levels of the shape it drafts
        shape, depth = "chain:5", 5
    [(_, done)] = decoded(drafter, shape)
    assert done.new_tokens == own_greedy(PROMPTS, NEW)
    for one in done.rounds:
        assert one.past_window == (len(PROMPTS[one.row]) + one.position + depth - 1 > WINDOW)
        assert not (one.past_window and (one.drafted or one.accepted))
    assert {one.row for one in done.rounds if one.drafted} == {0, 1, 5}, "the others begin too late"
    assert {one.row for one in done.rounds if one.past_window} >= {1, 2, 3, 4}


def test_a_drafter_with_samples_ends_with_its_window_too():
    drafter = LanguageModelDrafter(DRAFTER, proposal="iid")
    for _ in range(3):
        [(_, done)] = decoded(drafter, "kary:2@6", rule="multi_step", temperature=1.0,
                              generator=torch.Generator().manual_seed(0))
        assert {one.past_window for one in done.rounds} == {True, False}


@pytest.fixture(scope="module")
def recorded():
    return replay.record(TARGET, {"d": DRAFTER, "l": learned(), "whole": small_models.related(TARGET, 1, 0.3)}, PROMPTS,
                         names=NAMES, kinds=KINDS, max_new_tokens=NEW - 1)


@pytest.mark.parametrize("name, kind", [("d", "model"), ("l", "learned")])
@pytest.mark.parametrize("shape", ["chain:5", "kary:2@14", "chain:1"])
def test_replay_has_the_rounds_of_live_decoding(recorded, tmp_path, name, kind, shape):
    tree = named(shape)
    replay.save(recorded, tmp_path / "trace.safetensors")
    for trace in (recorded, replay.load(tmp_path / "trace.safetensors")):
        found = acceptance.rounds_of(trace, tree, name)
        columns = [getattr(found, column).tolist() for column in ("rows", "starts", "accepted", "drafted")]
        assert [*zip(*columns)] == rounds_of(MADE[kind](), tree)
        both = (vars(walk(trace, tree, name)).values() for walk in (replay.walk, replay.rounds))
        assert all(map(np.array_equal, *both))
    assert found.drafted.min() == 0 < found.drafted.max() and (kind == "learned" or found.accepted.any())


@pytest.mark.parametrize("kind, shape", [("combined", "chain:5"), ("confident", "kary:2@14"), ("model", "chain:5"),
                                         *(("model", rule) for rule in GROWN)])
def test_drafting_again_has_the_rounds_of_live_decoding(recorded, kind, shape):
    shape = named(shape)
    found = simulated.rounds(simulated.Recorded(recorded, PROMPTS), MADE[kind](), shape, rows=4)
    columns = [getattr(found, column).tolist() for column in ("rows", "starts", "accepted", "drafted")]
    assert [*zip(*columns)] == rounds_of(MADE[kind](), shape)
    past = np.array([len(PROMPTS[row]) for row in found.rows]) + found.starts + shape.max_depth > WINDOW
    assert past.any() and not found.draft_calls[past].any()


def test_within_the_window_ranks_are_those_of_a_model_without_one(recorded):
    lengths = np.array([len(prompt) for prompt in PROMPTS])[:, None]
    held = np.arange(recorded.ranks["d"].shape[1])[None] + lengths < WINDOW
    inside = recorded.ranks["whole"] >= 0
    assert np.array_equal(recorded.ranks["d"][held & inside], recorded.ranks["whole"][held & inside])
    assert (recorded.ranks["d"][inside & ~held] == 24).all() and not recorded.probs["d"][inside & ~held].any()


def test_expected_acceptance_ends_with_the_window():
    """Rounds that could not draft accept nothing; the others as with a drafter that has no such window."""
    tree = named("kary:2@6")
    models = {"d": DRAFTER, "whole": small_models.related(TARGET, 1, 0.3)}
    trace = replay.record(TARGET, models, PROMPTS[:2], names=NAMES[:2], kinds=KINDS[:2], max_new_tokens=NEW - 1,
                          temperature=1.0, seed=1, siblings=2)
    own, whole = (expectation.survival(trace, tree, name, "multi_step") for name in ("d", "whole"))
    drafts = trace.drafts(tree.max_depth, "d")
    np.testing.assert_allclose(own[drafts], whole[drafts])
    assert not own[~drafts][:, 1:].any() and 0 < drafts.sum() < drafts.size


def test_the_recommendation_counts_plain_rounds(recorded):
    """A candidate's rounds past the window accept nothing, cost a plain round and no drafting."""
    entrant = candidates.Entrant("d", "model", SimpleNamespace(), LanguageModelDrafter(DRAFTER))
    held = simulated.Recorded(recorded, PROMPTS)
    found = {each.label: each for each in candidates.static(entrant, held, candidates.Limits(8, 4))}
    price = RoundCost(1.0, 0.0, Curve.through([1], [0.1]), Curve.through([1, 8], [1.5, 2.0]))
    for label in ("chain:4", "independent:2@8"):
        each, tree = found[label], found[label].shape
        live = [one for _, done in decoded(LanguageModelDrafter(DRAFTER), tree) for one in done.rounds
                if one.position - 1 < recorded.loops[one.row]]
        share = np.mean([one.drafted > 0 for one in live])
        assert 0 < share < 1 and each.calling == pytest.approx(share)
        assert each.tokens == pytest.approx(1 + np.mean([one.accepted for one in live]))
        seconds = [1 + 0.1 * tree.max_depth - 1 + price.check(tree.budget) if one.drafted else 1.0 for one in live]
        assert each.seconds(price) == pytest.approx(np.mean(seconds))


def test_costs_of_drafting_are_taken_where_the_window_lets_it_draft():
    rounds, shapes = [], (PLAIN, "chain:1", "chain:4")

    def watched(*arguments, **settings):
        rounds.append(generate(*arguments, **settings).rounds)
        return SimpleNamespace(rounds=rounds[-1])

    pair = SimpleNamespace(target=TARGET, draft_model=short(1, window=100), target_name="t", drafter_name="d", dtype="")
    rows = calibrate(pair, PROMPTS, prefix=64, shapes=shapes, seconds=0.0, generator=torch.Generator().manual_seed(0),
                     generate=watched)
    assert set(rows["shape"]) == set(shapes)
    drafting = [one for call in rounds for one in call if one.draft_calls]
    assert {one.drafted for one in drafting} == {1, 4} and not any(one.past_window for call in rounds for one in call)


def test_a_drafter_of_a_short_window_competes():
    """Prompts of 9 to 14 tokens and 16 new ones outgrow a window of 24: its chains draft in some rounds alone."""
    found = ask([pair_of(short(4, noise=0.05, target=ASKED))])
    own = [each for each in found.tried if each.entrant.name == "model" and each.is_chain]
    assert own and all(0 < each.sizes[0] < 1 for each in own)
    assert found.recommendation.at(1).speedup.value > 0
