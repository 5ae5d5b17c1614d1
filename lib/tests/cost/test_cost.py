"""Costs: monotone curves against brute force, what calibration recovers."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from lib import cost
from lib.cost import calibration, round_cost
from lib.decoding import generate
from lib.drafters.controls import RandomDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import tables
from lib.models.load import Pair
from lib.tests import small_models
from lib.tests.replay.test_replay import trees
from lib.trees import named, shapes


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.data())
def test_a_curve_is_the_closest_that_does_not_fall(values, data):
    """Every non-decreasing sequence of pool means is tried: the closest is among them. Weights are repeated points."""
    weights = data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values)))
    found = cost.Curve.through(np.repeat(np.arange(len(values)), weights), np.repeat(values, weights)).seconds

    def distance(candidate):
        return np.average((np.asarray(candidate) - values) ** 2, weights=weights)

    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(values) - 1):
        pools = np.split(np.arange(len(values)), [i + 1 for i, cut in enumerate(cuts) if cut])
        means = [np.average([values[i] for i in pool], weights=[weights[i] for i in pool]) for pool in pools]
        if all(a <= b for a, b in zip(means, means[1:])):
            best = min(best, distance(np.repeat(means, [len(pool) for pool in pools])))
    assert (np.diff(found) >= 0).all() and distance(found) == pytest.approx(best, abs=1e-12)


def test_a_curve_joins_its_points_and_goes_on():
    curve = cost.Curve.through([8, 0, 4, 4], [3.0, 1.0, 1.5, 2.5])
    assert curve(4) == 2.0 and curve(2) == 1.5 and curve(16) == pytest.approx(5.0) and curve(-3) == 1.0
    assert np.allclose(curve([0, 8]), [1, 3])
    with pytest.raises(ValueError, match="missing"):
        cost.Curve.through([1, 2], [1.0, float("nan")])
    step = cost.Curve.through([0, 16, 31, 32], [1.0, 2.0, 2.0, 3.0])
    assert step(48) == pytest.approx(4.0), "a step of one node between the last two points is no slope"


# ---------------------------------------------------------------------------------------------------------------- steps


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 80))
def test_a_check_is_timed_at_both_sides_of_each_power_of_two_of_rows(batch, most):
    powers = [2**power for power in range(14)]
    before = [n for n in range(most + 1) if any(batch * (n + 1) <= rows < batch * (n + 2) for rows in powers)]
    assert round_cost.before_steps(batch, most) == before
    nodes = [named(name).budget for name in cost.check_shapes(batch, most)]
    assert nodes == sorted(set(nodes)) and nodes[0] == 0 and nodes[-1] == most
    assert {side for n in before for side in (n, n + 1) if side <= most} <= set(nodes)


def stepped(rows):
    """Seconds of a check that takes as long for 17 as for 32 rows: matrix units multiply whole blocks."""
    return 0.010 + 0.004 * np.ceil(np.asarray(rows) / 16)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_noise_does_not_smear_a_step(batch, seed):
    """Medians of six rounds with noise of 5 % are a few percent off, at both sides of a step and between two steps."""
    rng, nodes = np.random.default_rng(seed), [named(name).budget for name in cost.check_shapes(batch, 64)]
    noise = np.median(np.exp(0.05 * rng.standard_normal((6, len(nodes)))), axis=0)
    curve = cost.Curve.through(nodes, stepped(batch * (np.array(nodes) + 1)) * noise)
    known = np.arange(0, 32 // batch + 1)
    assert np.abs(curve(known) / stepped(batch * (known + 1)) - 1).max() < 0.06


def on_clock(seconds):
    """The loop with a clock by which a check of so many rows takes `seconds(rows)`, and nothing else takes any time."""
    def timed(*given, **settings):
        done, batch = generate(*given, **settings), given[2].shape[0]
        return replace(done, rounds=[replace(one, draft_seconds=0.0, commit_seconds=0.0,
                                             verify_seconds=float(seconds(batch * (one.drafted + 1))))
                                     for one in done.rounds])
    return timed


def pair_of(target, draft_model):
    return Pair("t/d", target, draft_model, None, "t", "d")


def calibrated(took, batch, **settings):
    target = small_models.llama(0)
    ruler = RandomDrafter(target.config.vocab_size, torch.Generator().manual_seed(0))
    return cost.calibrate(pair_of(target, None), small_models.prompts(0, [30, 40]), batches=[batch], prefix=20,
                          drafter=ruler, generator=torch.Generator().manual_seed(0), generate=on_clock(took),
                          **settings)


@pytest.mark.parametrize(("batch", "most"), [(1, 40), (4, 12)])
def test_calibration_finds_the_steps_of_a_check(batch, most):
    rows = calibrated(stepped, batch, most=most, seconds=1e-3, repeats=1)
    price = cost.CostTable(rows).at("t", "d", batch=batch)
    for edge in (16, 32):
        for nodes in (edge // batch - 1, edge // batch):
            assert price.check(nodes) == pytest.approx(float(stepped(batch * (nodes + 1))))
    assert rows["shape"].tolist() == cost.check_shapes(batch, most), "no time is left for others"


def test_further_numbers_of_nodes_halve_the_intervals_of_the_largest_rises():
    """A step behind 24 rows, which is no power of two: four halvings of 16 .. 31 nodes find it."""
    def at_24(rows):
        return 1.0 + (rows > 24)

    rows = calibrated(at_24, 1, most=40, seconds=1e6, repeats=6)
    further = set(rows["nodes"]) - {named(name).budget for name in cost.check_shapes(1, 40)}
    assert further == {23, 27, 25, 24}
    check = cost.CostTable(rows).at("t", "d").check
    assert check(23) == pytest.approx(1.0) and check(24) == pytest.approx(2.0)
    assert rows["nodes"].is_monotonic_increasing and (rows["rounds"] >= 2 * calibration.TURNS).all()
    flat = calibrated(lambda rows: 1.0, 1, most=16, seconds=1e6, repeats=4)
    assert flat["shape"].tolist() == cost.check_shapes(1, 16), "there is no rise to find"


@settings(deadline=None)
@given(trees())
def test_widths_count_the_nodes_that_a_drafter_forwards(tree):
    by_level = [sum(1 for node in range(tree.size) if tree.depth[node] == depth and tree.children(node))
                for depth in range(tree.max_depth)]
    assert cost.widths(tree).tolist() == by_level


TRUE = cost.RoundCost(2.0, 0.3, cost.Curve.through([1, 4, 16], [0.5, 0.6, 1.0]),
                      cost.Curve.through([0, 8, 64], [2.0, 3.0, 6.0]))


def whole(price, tree):
    """Seconds of a whole round."""
    return price.draft(tree) + float(price.check(tree.budget)) if tree.budget else price.plain


def table(truth=TRUE, batch=1, prefix=64, scale=1.0, noise=0.0, seed=0):
    """Rows as calibration makes them, of a machine that is `truth`, in milliseconds."""
    rng, rows = np.random.default_rng(seed), []
    for name in cost.check_shapes(batch, 64):
        tree, jitter = named(name), np.exp(noise * rng.standard_normal(2))
        rows.append(dict(target="t", drafter="d", dtype="float64", batch=batch, prefix=prefix, shape=name,
                         nodes=tree.budget, rounds=9, draft_ms=1000 * scale * truth.draft(tree) * jitter[0],
                         verify_ms=1000 * scale * truth.check(tree.budget) * jitter[1], commit_ms=0.0,
                         round_ms=0.0, lower_ms=0.0, upper_ms=0.0))
    return pd.DataFrame(rows)


def test_calibration_without_noise_gives_every_tree_its_cost():
    found = cost.CostTable(table()).at("t", "d", batch=1)
    for name in ("chain:0", "chain:3", "kary:2,3", "independent:4x6", "expansion:4,2,1", "comb:3@15"):
        tree = named(name)  # n above 8 lies between points of other places than the truth's, but on its lines
        assert whole(found, tree) == pytest.approx(whole(TRUE, tree), rel=0.02), name
    noisy = cost.CostTable(table(noise=0.03)).at("t", "d", batch=1)
    assert whole(noisy, named("kary:2,3")) == pytest.approx(whole(TRUE, named("kary:2,3")), rel=0.1)


def test_growing_a_tree_costs_what_was_timed_by_its_budget_and_changes_no_other_cost():
    rule = dict(table().iloc[1], verify_ms=1e6)
    rows = [dict(rule, shape=f"dyspec:8@{nodes}", nodes=nodes, draft_ms=ms) for nodes, ms in ((8, 400.0), (32, 1000.0))]
    static, found = (cost.CostTable(pd.concat([table(), pd.DataFrame(more)])).at("t", "d") for more in ([], rows))
    assert static.grown is None and found.grown(20) == pytest.approx(0.7)
    for name in ("chain:3", "kary:2,3"):
        assert whole(found, named(name)) == pytest.approx(whole(static, named(name)))
    slow = replace(static, plain=3 * static.plain)
    assert slow.growing_as(found).grown(8) == pytest.approx(1.2) and found.growing_as(slow) is found
    assert slow.drafting_as(found).grown(8) == pytest.approx(1.2) and slow.growing_as(static).grown is None


def test_a_drafter_that_a_clock_cannot_see_costs_nothing():
    found = cost.CostTable(table().assign(draft_ms=0.0)).at("t", "d")
    assert found.draft(named("kary:2,3")) < 1e-6


def test_the_cost_of_drafting_is_plain_least_squares_where_no_term_is_negative():
    names = ["chain:1", "chain:4", "chain:8", "independent:2x4", "independent:4x4"]
    seconds = np.array([1.3, 2.7, 4.6, 2.9, 3.4])
    once, level = round_cost._draft_model(names, seconds)
    counts = [cost.widths(named(name)) for name in names]
    design = np.array([[1.0, *((widths == width).sum() for width in (1, 2, 4))] for widths in counts])
    terms = np.linalg.lstsq(design / seconds[:, None], np.ones(5), rcond=None)[0]
    assert (terms >= 0).all() and once == pytest.approx(terms[0])
    assert np.allclose(level.seconds, cost.Curve.through([1, 2, 4], terms[1:]).seconds)


def test_calibration_reads_the_loop(tmp_path):
    target = small_models.llama(0, dtype=torch.float32)
    pair = pair_of(target, small_models.related(target, 1, 0.3))
    rows = cost.calibrate(pair, small_models.prompts(0, [30, 40]), batches=(1, 2), prefix=20, seconds=1.0,
                          shapes=("chain:0", "chain:2", "independent:2x2", "dyspec:3@4"), repeats=1,
                          generator=torch.Generator().manual_seed(0))
    assert len(rows) == 8 and (rows["round_ms"] > 0).all() and (rows["rounds"] > 0).all()
    assert (rows["draft_ms"][rows["nodes"] == 0] < rows["verify_ms"][rows["nodes"] == 0]).all()
    tables.write(tmp_path, "costs", rows, "mark")
    again = cost.CostTable(tables.read(tmp_path, "costs")).at("t", "d", batch=2)
    other = cost.CostTable(rows).at("t", "d", batch=2)
    assert whole(again, shapes.chain(1)) == pytest.approx(whole(other, shapes.chain(1)))
    assert again.grown(4) == pytest.approx(other.grown(4)) and other.grown(4) > 0


def test_a_text_that_is_cut_before_the_padding_token_is_still_text():
    target, prompts = small_models.llama(1), small_models.prompts(0, [30, 40])
    first = calibration.rows_of_text(prompts, 2, 19)[:, 0]
    assert first[0] != first[1], "one row alone begins with it"
    target.generation_config = GenerationConfig(pad_token_id=int(first[0]))
    pair = pair_of(target, target)
    rows = cost.calibrate(pair, prompts, batches=(2,), prefix=20, seconds=0.1, shapes=("chain:0", "chain:1"), most=1,
                          generator=torch.Generator().manual_seed(0))
    assert (rows["round_ms"] > 0).all()


@pytest.mark.parametrize("names", [("chain:0", "chain:2", "independent:2x2", "chain:1"), ("chain:0", "chain:2")])
def test_shapes_take_turns_in_calls_that_have_as_many_rounds_as_those_of_plain_decoding(names):
    target, asked = small_models.llama(0), []
    pair = pair_of(target, small_models.related(target, 1, 0.3))

    def spied(*given, **settings):
        done = generate(*given, **settings)
        asked.append((given[2].shape[1] + len(done.rounds) // 2, [one.drafted for one in done.rounds]))
        return done

    rows = cost.calibrate(pair, small_models.prompts(0, [30, 40]), prefix=20, seconds=1e-3, shapes=names, repeats=1,
                          generator=torch.Generator().manual_seed(0), generate=spied)
    warm = calibration.TURNS * (len(names) - 1)
    assert {middle for middle, _ in asked} == {20} and {len(nodes) for _, nodes in asked} == {calibration.COLD + warm}
    drafted = [nodes[calibration.COLD :] for _, nodes in asked if any(nodes)]
    assert len(drafted) == len(asked) - len(drafted) == calibration.LEAST_REPEATS
    assert all(nodes.count(named(name).budget) == calibration.TURNS for nodes in drafted for name in names[1:])
    counted = calibration.LEAST_REPEATS - 1  # the first call warms up
    assert rows["rounds"].tolist() == [counted * warm] + [counted * calibration.TURNS] * (len(names) - 1)


def test_each_round_counts_for_its_own_shape():
    """A clock whose first rounds after a prefill take longer, and each node 1/8 s."""
    target = small_models.llama(0)
    pair = pair_of(target, small_models.related(target, 1, 0.3))
    prompts = small_models.prompts(0, [30, 40])

    def clocked(*given, **settings):
        done = generate(*given, **settings)
        cold = (3.0, 2.0, 1.0, *[0.0] * len(done.rounds))
        rounds = [replace(one, draft_seconds=one.drafted / 8, verify_seconds=1.0 + extra, commit_seconds=0.0)
                  for one, extra in zip(done.rounds, cold)]
        return replace(done, rounds=rounds)

    rows = cost.calibrate(pair, prompts, prefix=20, seconds=1e-3, shapes=("chain:0", "chain:2", "independent:2x4"),
                          repeats=1, generator=torch.Generator().manual_seed(0), generate=clocked)
    assert rows.set_index("shape")["round_ms"].to_dict() == {"chain:0": 1000, "chain:2": 1250, "independent:2x4": 2000}
    assert whole(cost.CostTable(rows).at("t", "d"), shapes.chain(2)) == pytest.approx(1.25)


def test_only_rounds_of_the_whole_batch_count():
    """Rows end at different rounds; rounds after the first row has ended are those of a smaller batch."""
    target, running = small_models.llama(0), []
    ids = torch.stack(small_models.prompts(0, [6, 6, 6]))
    done = generate(target, LanguageModelDrafter(small_models.related(target, 1, 0.5)), ids, shape="chain:3",
                    max_new_tokens=14, observe=lambda alive, *_: running.append(len(alive)))
    assert len(calibration.full_rounds(done.rounds, 3)) == sum(rows == 3 for rows in running)
