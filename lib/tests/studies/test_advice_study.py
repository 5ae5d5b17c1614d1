"""The tables of the advice against counting, the sentences made of them, and the drafters that compete."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost, models
from lib.cost import advice, formulas
from lib.drafters.eagle import EagleDrafter
from lib.lab import processor, tables
from lib.studies.advice import findings, measure
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.cost.test_advice import LIMITS, costs, given_advice, recorded  # noqa: F401
from lib.trees import Tree


def test_speed_over_budget_holds_to_the_limits_and_batches(tmp_path):
    both = cost.Costs(pd.concat([costs(1).rows, costs(4, 3.0).rows]))
    found = measure.over_budget(recorded(), both, "good", batches=[1, 4], prefix=64, budgets=[1, 4, 8],
                                      limits=LIMITS, generator=np.random.default_rng(0))
    assert set(found["batch"]) == {1, 4} and (found["nodes"] == found["budget"]).all()
    assert found["depth"].max() <= LIMITS.depth and set(found["family"]) == {*measure.RIVALS, measure.OURS}
    one, four = (found[found["batch"] == batch] for batch in (1, 4))
    assert np.allclose(one["speedup"], four["speedup"])  # all three times as dear
    assert np.allclose(four["tokens_per_second"], one["tokens_per_second"] * 4 / 3)
    tables.write(tmp_path, "advice_budgets", found, "mark")


def test_formulas_stand_beside_replay(tmp_path):
    made = recorded()
    made = replace(made, alpha={name: np.full_like(made.probs["d"], 0.5) for name in made.ranks})
    found = measure.beside_formulas(made, costs(), "good", batches=[1], prefix=64, lengths=[1, 4],
                                          generator=np.random.default_rng(0))
    own = costs().at("t", "good", prefix=64)
    said = found.set_index(["by", "length"])["speedup"]
    assert said[measure.LEVIATHAN, 1] == pytest.approx(1.5 / (1 + own.level(1) / own.plain))
    assert np.isnan(said[measure.BLOG, 1]) and said[measure.BLOG, 4] == pytest.approx(1.95)
    tables.write(tmp_path, "advice_formulas", found, "mark")


def test_the_table_as_a_person_reads_it(given_advice):  # noqa: F811
    table = given_advice.table
    found = findings.readable(table).xs(("t", 1))
    top, chain = found.loc[advice.RECOMMENDED], found.loc[advice.SAME_BUDGET]
    assert sum(map(int, top["by level"].split(", "))) == top["nodes"] == given_advice.tree.budget
    assert chain["by level"] == ", ".join(["1"] * chain["nodes"]) and found.loc[advice.PLAIN, "by level"] == ""
    assert top["against [95 %]"] == "1.00 [1.00, 1.00]"
    said = findings.promises({("t", 1): given_advice}).xs(("t", 1))
    assert list(said.index) == list(given_advice.promised)
    assert said.loc[formulas.BLOG, "promised speedup"] == pytest.approx(1.95)
    share = table.set_index("what").loc[formulas.BLOG, "against"]
    assert f", {formulas.BLOG} {share:.0%} of the recommended" in findings.followed(table).claim
    assert findings.followed(table.iloc[:2]) is None
    assert f"with {top['nodes']} nodes" in findings.recommended(table).text
    assert "plain decoding, which no tree beats" in findings.recommended(table.assign(nodes=0)).text


def test_a_larger_pairs_costs_stand_beside_the_same_acceptance(tmp_path):
    own, dear = test_cost.table(), test_cost.table()
    dear = dear.assign(target="huge", drafter="large", verify_ms=1e4)
    found = measure.over_budget_with_costs_of(recorded(), "d", {"own": own, "dear": dear}, batches=[1], prefix=64,
                                     budgets=[1, 4, 8], limits=LIMITS, generator=np.random.default_rng(0))
    chains = found[found["family"] == "chain"].set_index(["costs", "budget"])
    assert (chains.loc["own", "tokens"] == chains.loc["dear", "tokens"]).all()  # who accepts is the same
    assert (chains.loc["dear", "speedup"] > chains.loc["own", "speedup"]).all()  # but a check is nearly free
    assert set(found.loc[found["costs"] == "dear", "free"]) == {LIMITS.nodes}
    assert set(found["target"]) == {"t"} and set(found["drafter"]) == {"d"}
    best = found[found["family"] == measure.OURS].groupby("costs")["speedup"].max()
    terms = findings.terms(found).droplevel("batch")
    assert terms["its speedup"].to_dict() == best.round(2).to_dict() and terms.loc["dear", "its check / plain"] == 1
    finding = findings.larger_pairs(found)
    assert finding.text.startswith(f"at batch 1 {best['own']:.2f} [") and "`dear`" in finding.text
    assert "No larger pair was timed" in findings.larger_pairs(found[found["costs"] == "own"]).text
    tables.write(tmp_path, "advice_sizes", found, "mark")
    assert len(tables.read(tmp_path, "advice_sizes")) == len(found)


def test_published_sizes_with_random_weights_are_timed():
    prompts = [torch.arange(5, 60)]
    found = measure.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], prompts, dtype="float32", device="cpu",
                                   shapes=("chain:0", "chain:1"), prefixes=[16], new_tokens=2, repeats=3, seconds=0.1,
                                   generator=torch.Generator())
    rows = found["random:llama-68m@1|random:llama-68m@1"]
    assert set(rows["target"]) == {"random:llama-68m@1"} and (rows["verify_ms"] > 0).all()



def test_heads_compete_with_the_models_of_their_target():
    pairs = models.load_pairs(["small/tiny", "small/tiny-small"])
    found = measure.of_target(pairs, ["eagle"])
    assert list(found) == ["tiny", "tiny-small", "eagle"] and isinstance(found["eagle"], EagleDrafter)
    assert found["tiny"] is pairs[0].draft_model
    folders = [Path(folder).relative_to(models.SHIPPED).as_posix() for folder in measure.folders(pairs, ["eagle"])]
    assert folders == ["heads/small/eagle", "small", "tiny", "tiny-small"]
    rows = measure.calibrate(
        pairs[:1], ["eagle"], small_models.prompts(0, [40]), batches=[1], prefixes=[24], new_tokens=3, repeats=1,
        seconds=0.1, shapes=("chain:0", "chain:1", "chain:2"), generator=torch.Generator().manual_seed(0))
    known = cost.Costs(rows)
    assert known.at("small", "eagle", prefix=24).plain > 0 and known.at("small", "tiny", prefix=24).plain > 0


def test_where_plain_decoding_is_fastest_there_is_no_tree_to_draw(given_advice):  # noqa: F811
    finding = findings.recommended_tree("t", 1, replace(given_advice, tree=Tree([-1])), np.ones(1))
    assert finding.figure is None and "plain decoding is fastest" in finding.claim
    drawn = findings.recommended_tree("t", 1, given_advice, np.ones(given_advice.tree.size))
    assert drawn.figure is not None and "100% of its nodes" in drawn.text


def test_no_larger_pair_is_timed_in_a_format_without_units(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    assert measure.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], [], dtype="bfloat16", device="cpu") == {}


@pytest.mark.parametrize(("target", "kind", "complaint"), [
    ("small", "hydra", "drafter is 'hydra'; choose one of none, model"),
    ("gpt2", "eagle", "no head of kind 'eagle' ships for target 'gpt2'"),
])
def test_a_head_that_is_not_there_is_named(target, kind, complaint):
    pair = SimpleNamespace(target_name=target, drafter_name="d", draft_model=None)
    with pytest.raises(ValueError, match=complaint):
        measure.of_target([pair], [kind])
