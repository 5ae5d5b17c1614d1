"""Trees against chains on a GPU: brute force of small trees, free and dear rows, measured costs, and rates of files."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from lib.cost import by_depth_and_rank, on_gpus
from lib.cost.by_depth_and_rank import Rates
from lib.cost.round_cost import FREE, RULER, Curve, RoundCost
from lib.lab import provenance, tables
from lib.measure.parameters import CHECKS
from lib.trees import shapes
from lib.trees.tree import Tree

TABLE = np.array([[0.6, 0.2, 0.1], [0.5, 0.25, 0.1], [0.4, 0.3, 0.1], [0.4, 0.3, 0.1]])
RATES = Rates("d", "s", TABLE[None])


def cost(per_node: float) -> RoundCost:
    """A plain round of one second, and so many seconds for each node of a check."""
    nodes = np.arange(65.0)
    return RoundCost(1.0, 0.0, FREE, Curve(nodes, 1 + per_node * nodes))


def over(per_node: float, rates=RATES, **asked) -> pd.DataFrame:
    return on_gpus.over_chains(rates, {("gpu", "computed", "t", 1): cost(per_node)}, **asked)


@pytest.mark.parametrize("level", [0.0, 0.1, 0.5])
def test_the_best_tree_is_that_of_all_trees(level):
    found = over(0.05, budgets=(1, 2, 3, 4), levels=(level,)).set_index("budget")
    for budget in (1, 2, 3, 4):
        trees = [Tree([-1, *parents]) for parents in itertools.product(*(range(node + 1) for node in range(budget)))]
        best = max((1 + shapes.expected_accepted(tree, TABLE)) / (1 + 0.05 * budget + level * tree.max_depth)
                   for tree in trees if tree.rank.max() < TABLE.shape[1])
        assert found.loc[budget, "speedup"] == pytest.approx(best)


def test_with_free_checks_more_nodes_never_lose_and_where_rows_are_dear_the_chain_wins():
    free = over(0.0, levels=(0.0,))
    assert free["value"].is_monotonic_increasing and free["value"].iloc[-1] > 1.3 and free["chain"].eq(4).all()
    dear = over(0.3, levels=(0.0,)).query("budget > 1")
    assert (dear["value"] < 1).all() and dear["chain"].eq(1).all() and dear["value"].is_monotonic_decreasing
    sure = over(0.0, Rates("d", "s", np.array([[[1.0, 0.0]] * 8])), levels=(0.0,))
    assert sure["value"].max() == 1, "where the favourite is always right, no tree accepts more than a chain"


def test_computed_checks_are_free_up_to_the_free_rows_of_the_batch():
    for batch, free in ((1, 128), (4, 72), (16, 17), (64, 3)):
        price = on_gpus.computed("llama-3-8b", batch)
        assert price.check(free) == pytest.approx(price.plain, rel=0.005), "but for a little attention"
        assert free == 128 or price.check(free + 2) > 1.005 * price.plain
    assert on_gpus.sizes("llama-3-8b")[0] * 2 / 1e9 == pytest.approx(15.0, abs=0.05)
    assert on_gpus.sizes("random:llama-3-8b@16")[1] * 2 == on_gpus.sizes("llama-3-8b")[1] == 2 * 32 * 8 * 128
    share = {size: on_gpus.computed(size, 64).check(16) / on_gpus.computed(size, 64).plain for size in on_gpus.TARGETS}
    assert share["smollm2-1.7b"] < share["llama-3-8b"] < share["llama-3-70b"], "keys and values are read in both"


def test_many_tables_at_once_are_as_one_by_one():
    drawn = np.random.default_rng(0).dirichlet(np.ones(4), size=(5, 6))[:, :, :3]
    for tree in on_gpus.candidates(drawn[0], 12):
        alone = [shapes.expected_accepted(tree, table) for table in drawn]
        assert on_gpus.accepted(tree, drawn) == pytest.approx(alone)
    assert on_gpus.candidates(TABLE[:1], 4) == [], "three ranks are too few for four nodes at one level"


@pytest.mark.parametrize("seconds, used", [(0.0002, True), (0.011, False)])
def test_measured_costs_are_used_unless_they_are_of_launches(tmp_path, monkeypatch, seconds, used):
    monkeypatch.setattr(on_gpus, "RESULTS", tmp_path)
    facts = {"gpu": "NVIDIA H200", "processor": "p", "vector_units": "v"}
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "run.json").write_text(json.dumps({"stages": {}, "machine": facts}))
    rows = [dict(target="random:smollm2-135m", drafter=RULER, dtype="bfloat16", batch=1, prefix=8, shape=shape,
                 nodes=nodes, rounds=3, draft_ms=0.0, verify_ms=1000 * seconds, commit_ms=0.0, round_ms=1.0,
                 lower_ms=1.0, upper_ms=1.0) for nodes, shape in enumerate(("chain:0", "chain:1", "chain:2"))]
    tables.write(tmp_path / "h", "costs", rows, "f")
    prices, left_out = on_gpus.all_costs()
    measured = {cell: price for cell, price in prices.items() if cell[1] == "measured"}
    assert (len(measured), len(left_out)) == (used, not used)
    if used:
        assert set(on_gpus.over_chains(RATES, measured)["budget"]) == {1, 2}, "not beyond what was timed"


def test_a_run_gives_acceptance_with_its_prompts_and_published_tables_are_read():
    reference = provenance.HOME / "data" / "results" / "reference"
    frames = [tables.read(reference, name) for name in ("rank", "depth")]
    found = by_depth_and_rank.of_run(*frames, "smollm2-135m", np.random.default_rng(0))
    for one in [*found, *(one for path in by_depth_and_rank.PUBLISHED for one in by_depth_and_rank.read(path))]:
        assert one.source and (one.tables >= 0).all() and (one.tables.sum(2) <= 1 + 1e-9).all()
    assert len(found) == 2 and found[0].tables.shape == (201, 16, 16) and len(by_depth_and_rank.PUBLISHED) == 2
    shown = over(0.0, found[0])
    assert (shown["low"] <= shown["value"]).all() and (shown["value"] <= shown["high"]).all()


@pytest.mark.parametrize("text, message", [
    ("depth,rank\n1,0\n", "has 1 rows of depth, rank; give rows of depth, rank, acceptance"),
    ("depth,rank,acceptance\n1,0,x\n", "no table of acceptance"), ("depth,rank,acceptance\n", "has 0 rows"),
    ("depth,rank,acceptance\n0,0,0.5\n", "has depth 0; give whole numbers from 1"),
    ("depth,rank,acceptance\n1,0.5,0.5\n", "has rank 0.5; give whole numbers from 0"),
    ("depth,rank,acceptance\n1,0,1.5\n", "has acceptance 1.5; give a share from 0 to 1"),
    ("depth,rank,acceptance\n1,0,0.7\n1,1,0.7\n", "1.4 as the acceptance of all ranks"),
    ("depth,rank,acceptance\n1,0,0.7\n,1,0.1\n", "with a depth and without one")])
def test_rates_that_cannot_be_are_refused_with_one_reason(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as told:
        CHECKS["07_speed"]["rates"]("rates", {"rates": str(tmp_path / "r.csv")})
    assert "\n" not in str(told.value)
    CHECKS["07_speed"]["rates"]("rates", {"rates": ""})
    with pytest.raises(FileNotFoundError, match="no rates at .*; give a CSV file"):
        CHECKS["07_speed"]["rates"]("rates", {"rates": "nothing.csv"})
