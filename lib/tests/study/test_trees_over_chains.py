"""The best tree over the best chain from tables alone, beside tables whose speeds are known."""

import numpy as np
import pandas as pd
import pytest

from lib.study import costs_files
from lib.study.trees_over_chains import ANY, best, round_times, times_elsewhere, tokens_per_round

TOKENS = 61  # of each answer, the first of which is the prefill's
COSTS = pd.DataFrame([dict(backend="own", batch=1, method="plain", nodes=0, ms=10.0, shape="nodes:0"),
                      *(dict(backend="own", batch=1, method="forced", nodes=nodes, ms=10.0 + nodes, shape="n")
                        for nodes in (1, 3, 8))])
NODES = {"chain:1": 1, "chain:3": 3, "independent:2@3": 3, "optimal@3": 3, "independent:4@8": 8}
# Rounds of each shape on prompts of an even and of an odd number; "optimal@3" is a chain.
ROUNDS = {"chain:1": (40, 40), "chain:3": (30, 30), "independent:2@3": (25, 24), "optimal@3": (30, 30),
          "independent:4@8": (26, 10)}
DRAFTING = 0.2  # plain steps per round


@pytest.fixture
def tables():
    """Rounds and predictions of one drafter whose drafting takes DRAFTING, on 20 prompts that choose."""
    prompts = [f"p{number:02d}" for number in range(20)]
    source = dict(target="t", backend="own", temperature=0.0)
    rounds = pd.DataFrame([
        dict(source, drafter="d", shape=shape, prompt=prompt, unit=prompt, part="choosing", rounds=counts[index % 2],
             drafted=counts[index % 2] * NODES[shape], accepted=0)
        for shape, counts in ROUNDS.items() for index, prompt in enumerate(prompts)])
    texts = pd.DataFrame([dict(source, prompt=prompt, tokens=TOKENS) for prompt in prompts])
    tokens = tokens_per_round(rounds, texts)
    steps = {shape: 1 + DRAFTING + nodes / 10 for shape, nodes in NODES.items()}
    speeds = np.exp(tokens.groupby("shape", sort=False)["log"].mean()) / pd.Series(steps)
    predictions = pd.DataFrame([
        dict(backend=backend, batch=1, way=f"d, {shape}", part="choosing", drafter="d", shape=shape, nodes=nodes,
             value=speeds[shape]) for backend in ("own", "format") for shape, nodes in NODES.items()])
    return tokens, predictions, steps


def test_half_of_the_units_choose_and_the_others_judge(tables):
    """The wide tree is best on the half that judges alone, so that it is not the best tree; a chain is none."""
    tokens, predictions, steps = tables
    times = round_times(predictions, tokens)
    assert "optimal@3" not in set(times["shape"]) and times["time"].to_numpy() == pytest.approx(
        times["shape"].map(steps).to_numpy())
    rows = best(times, tokens, np.random.default_rng(0))
    assert rows[["backend", "drafter"]].to_numpy().tolist() == [
        ["own", ANY], ["own", "d"], ["format", ANY], ["format", "d"]]
    for row in rows.itertuples(index=False):
        assert (row.chain, row.tree, row.n) == ("d, chain:3", "d, independent:2@3", 10)
        assert (row.value, row.low, row.high) == pytest.approx((30 / 24,) * 3)
    assert rows["tree tokens"].to_numpy() == pytest.approx(60 / 24)
    assert rows["value"].to_numpy() == pytest.approx(
        (rows["tree tokens"] / rows["chain tokens"] / (rows["tree time"] / rows["chain time"])).to_numpy())


def test_elsewhere_a_round_takes_that_machines_check_and_drafts_for_as_many_plain_steps(tables, monkeypatch):
    """Trees beyond its checks, and ways whose drafts are often smaller, are left out."""
    tokens, predictions, _ = tables
    curve = pd.DataFrame([dict(backend="gpu", batch=4, method="forced", nodes=nodes, ms=20.0 + 5 * (nodes == 3),
                               shape="n") for nodes in (1, 2, 3)])
    monkeypatch.setattr(costs_files, "names", lambda: ["elsewhere"])
    monkeypatch.setattr(costs_files, "read", lambda name: curve)
    times = round_times(predictions, tokens)
    found = times_elsewhere(times, COSTS).set_index("shape")
    assert found["backend"].eq("gpu (elsewhere)").all() and found["batch"].eq(4).all()
    assert found["time"].to_dict() == pytest.approx({"chain:1": 1.2, "chain:3": 1.45, "independent:2@3": 1.45})
    partial = tokens.assign(drafted=tokens["drafted"].where(tokens["shape"] != "independent:2@3", tokens["rounds"]))
    assert "independent:2@3" not in set(times_elsewhere(round_times(predictions, partial), COSTS)["shape"])
    assert times_elsewhere(times, COSTS.iloc[:0]).empty and times_elsewhere(times.iloc[:0], COSTS).empty


def test_one_prompt_has_no_interval_and_a_drafter_without_trees_no_row(tables):
    tokens, predictions, _ = tables
    tokens = tokens[tokens["prompt"] == "p00"]
    rows = best(round_times(predictions, tokens), tokens, np.random.default_rng(0))
    assert rows["n"].eq(1).all() and rows["value"].gt(0).all() and rows["low"].isna().all()
    chains = round_times(predictions[predictions["shape"].str.startswith("chain:")], tokens)
    assert best(chains, tokens, np.random.default_rng(0)).empty and len(chains)
    assert best(chains.iloc[:0], tokens.iloc[:0], np.random.default_rng(0)).empty
