"""The tables of the advice against counting, and the figures and sentences that are made of them."""

import dataclasses
import json
from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost
from lib.cost import formulas, recommendation, roofline
from lib.cost.recommendation import ONE, ForBatch, Formats, Interval, OtherFormat, Recommendation
from lib.lab import processor, tables
from lib.lab.findings import Results
from lib.studies.advice import answer, figures, findings, machines, measure, trees_and_chains
from lib.studies.advice.schema import NOTEBOOK, PARAMETERS
from lib.studies.report import Ask
from lib.tests.cost import test_cost
from lib.tests.cost.test_recommendation import found  # noqa: F401
from lib.trees.tree import Tree

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def told(**other):
    """A recommendation at batch 1."""
    own = dict(
        batch=1, drafter="lookup", pair="t", tree="chain:2", choices=[[0], [0, 0]], budget=2, depth=2,
        chain={"drafter": "lookup", "pair": "t", "tree": "chain:2"}, predicted=1.5, speedup=Interval(1.4, 1.2, 1.6),
        over_chain=ONE, with_prefill=Interval(1.3, 1.1, 1.5), kinds={"code": Interval(1.4, 1.2, 1.6)},
        tokens_per_second={way: Interval(10.0, 9.0, 11.0) for way in ("recommended", "plain decoding", "best chain",
                                                                      "generate")},
        prompts=9, repeats=3, settings=[dict(engine="e", setting="--x", draft="the tree", versions="1")],
        warnings=["a note"]) | other
    return Recommendation("t", [], ["lookup"], "float32", "cpu", "a processor", 2, {}, 16, 9, 9, 0.1, [ForBatch(**own)])


def test_what_is_found_fits_its_tables_and_the_report_quotes_the_file(found, tmp_path):  # noqa: F811
    beside = measure.beside_formulas(found.candidates, ["none such", "model"])
    priced = found.costs[found.costs["drafter"] == "model"]
    sized = measure.with_costs_of(found.tried, "t", {"t/d": priced}, [1, 2], np.random.default_rng(0))
    for name, rows in {"advice_candidates": found.candidates, "advice_timed": found.timed, "costs": found.costs,
                       "advice_errors": found.errors, "advice_sizes": sized, "advice_formulas": beside}.items():
        tables.write(tmp_path, name, rows, "mark")
    found.recommendation.save(tmp_path / recommendation.FILE)
    parts = list(findings.report(Results(tmp_path), Ask("t/d", 2), np.random.default_rng(0)))
    shown = "\n".join(f"{part.claim} {part.text}" for part in parts if hasattr(part, "claim"))
    kinds = found.recommendation.at(1).kinds
    assert f"to {max(each.value for each in kinds.values()):.2f} times as fast" in shown
    assert len([part for part in parts if getattr(part, "figure", None)]) == 4


def test_the_fastest_over_all_formats_has_a_sentence_and_a_table_and_is_not_the_headline():
    made = told()
    assert "formats" not in answer.in_short(made) and "none was asked for" in findings.other_formats(made).text
    own = OtherFormat(1, "int8", "sam", "chain:3", Interval(150.0, 140.0, 160.0), Interval(1.5, 1.25, 1.75), 9,
                      Interval(0.975, 0.95, 0.99), Interval(0.0123, 0.01, 0.02), 12)
    left_out = {"bfloat16": "it does not fit"}
    both = replace(made, formats=Formats("float32", "float32", [own], left_out, Interval(0.98), 5))
    sentence = ("the fastest is sam with chain:3 in int8, 150 [140, 160] tokens per second, 1.50 [1.25, 1.75] times "
                "the recommendation (9 prompts); its most likely next token is that of float32 at 97.5 [95, 99] % of "
                "places, with a mean KL divergence of 0.0123 [0.01, 0.02] nats per token (12 prompts).")
    assert f"**Over all number formats.** At batch 1 {sentence}" in answer.in_short(both)
    assert "**Batch 1: `lookup` with `chain:2`**" in answer.in_short(both), "the headline stays"
    shown = findings.other_formats(both)
    assert sentence in shown.claim and "bfloat16: it does not fit." in shown.text
    assert "was 0.98 times as fast" in shown.text
    assert shown.table.loc[1, "over the recommendation"] == "1.50 [1.25, 1.75]"


def test_the_time_of_a_round_is_as_predicted_where_the_calibration_read_the_same_clock(found):  # noqa: F811
    both = measure.beside(found.candidates, found.timed)
    assert set(both["batch"]) == {1, 2} and both["ratio"].to_numpy() == pytest.approx(1.0, abs=0.02)
    finding = findings.calibrated_and_timed(found.candidates, found.timed)
    assert finding.claim.endswith("a round took, over its calibrated time, 1.00 at batch 1, 1.00 at batch 2 (medians).")


@pytest.mark.parametrize("cases", [1, 5, 21])
def test_the_error_of_predictions_is_told_whole_and_in_its_parts(found, cases):  # noqa: F811
    """The interval of the median is that of the sign test: its ends are the k-th smallest and largest errors."""
    rng = np.random.default_rng(cases)
    rows = pd.DataFrame(dict(batch=1 + np.arange(cases) % 2, predicted=1.5, error=rng.normal(0.05, 0.1, cases),
                             tokens_error=0.1, time_error=-0.02, optimism=0.97))
    rows = rows.assign(measured=rows["predicted"] / (1 + rows["error"]), measured_low=1.0, measured_high=2.0)
    own, finding = measure.medians(rows), findings.predicted_and_measured(rows)
    inside = np.sort(rows["error"])[[5, -6]] if cases == 21 else (np.nan, np.nan)
    assert (own["n"], own["size"], own["value"]) == (cases, rows["error"].abs().median(), rows["error"].median())
    assert np.array([own["low"], own["high"]]) == pytest.approx(inside, nan_ok=True), "of 21: the 6th, P = 0.027"
    assert f"a median of {own['size']:.0%}; its signed error has the median {own['value']:+.0%}" in finding.claim
    assert f"(n = {cases})" in finding.claim and ("[" in finding.claim) == (cases == 21)
    assert "+10%, time of a round -2%, and -3% for the optimism" in finding.text
    assert "over" in findings.predicted_and_measured(found.errors).text


def test_ties_and_trees_are_shown_where_the_recommendation_is(found):  # noqa: F811
    finding, own = findings.raced(found.recommendation), found.recommendation.at(1)
    assert own.ties in finding.text and own.trees in finding.text and "too few to tell them apart" in finding.text
    shown = finding.table.loc[1]
    assert list(shown.index) == [each.name for each in own.raced] and set(shown["n"]) == {own.raced_on}
    assert findings.raced(told()).table is None, "of a run that kept no race"
    assert findings.recommended(found.recommendation).table.loc[1, "best tree over best chain"] == str(
        own.tree_over_chain)
    plain = told(drafter="none", reason="whole calls are slower")
    assert "Batch 1: whole calls are slower" in findings.recommended(plain).text


def test_formulas_stand_beside_replay(found):  # noqa: F811
    rows = measure.beside_formulas(found.candidates, ["none such", "model"])
    said, own = rows.set_index(["batch", "by", "length"])["speedup"], rows.iloc[0]
    assert said[1, measure.LEVIATHAN, 1] == pytest.approx((1 + own["alpha"]) / (1 + own["cost"]))
    assert np.isnan(said[1, measure.BLOG, 1]) and said[1, measure.BLOG, 3] == formulas.blog_speedup(3)
    chain = found.candidates.query("batch == 1 and drafter == 'model' and shape == 'chain:2'").iloc[0]
    assert said[1, measure.REPLAY, 2] == chain["speedup"]
    assert [text.get_text() for text in figures.formulas(rows).legends[0].get_texts()] == list(figures.BY)


def test_the_best_lengths_are_a_table_by_chance_and_cost():
    rows = formulas.best_lengths()
    tables.Table("", "formula_lengths", "mark").extend(rows)
    shown = findings.best_lengths(rows).table
    assert shown.shape == (4, 3) and shown.loc[(measure.LEVIATHAN, 0.8), 0.1].startswith("6 (")


def test_a_larger_pairs_costs_stand_beside_the_same_acceptance(found):  # noqa: F811
    own = test_cost.table()
    dear = own.assign(target="huge", drafter="large", verify_ms=1e4)
    sized = measure.with_costs_of(found.tried, "t", {"own": own, "dear": dear}, [1], np.random.default_rng(0))
    assert set(sized.loc[sized["costs"] == "dear", "free"]) == {64} and set(sized["target"]) == {"t"}
    chains = sized[sized["chain"]].set_index(["costs", "budget"])
    assert (chains.loc["dear", "speedup"] > chains.loc["own", "speedup"]).all()  # a check is nearly free
    best = sized.groupby("costs")["speedup"].max()
    terms = findings.terms(sized).droplevel("batch")
    assert terms["its speedup"].to_dict() == best.round(2).to_dict() and terms.loc["dear", "its check / plain"] == 1
    finding = findings.larger_pairs(sized)
    assert f"{best['own']:.2f} [" in finding.claim or f"{best['own']:.2f} with" in finding.claim
    assert "`dear`" in finding.claim
    axis, = finding.figure.axes
    assert len(axis.lines) == 2 * 2 + 1 and len(axis.collections) == 2  # and the line at 1
    assert "No larger pair was timed" in findings.larger_pairs(sized[sized["costs"] == "own"]).text
    ruled = pd.concat([own.assign(drafter=findings.RULER, verify_ms=7.0), own])
    both = measure.with_costs_of(found.tried, "t", {"own": ruled}, [1], np.random.default_rng(0))
    assert both["check"].tolist() == pytest.approx([1.0] * len(both)), "checks are those of the ruler"
    assert 7 * both["level"].iloc[0] == pytest.approx(sized["plain_ms"].iloc[0] * sized["level"].iloc[0])


def judged(some, price):
    """Tokens per second on each half of the prompts of the candidate that is fastest on the other half, together."""
    names = sorted(some[0].prompts)
    tokens = seconds = 0.0
    for half in (names[::2], names[1::2]):
        def of(each, part):
            at = [each.prompts.index(name) for name in part]
            return (each.accepted + each.rounds)[at].sum(), each.rounds[at].sum() * each.seconds(price)
        best = max(some, key=lambda each: np.divide(*of(each, [name for name in names if name not in half])))
        own = of(best, half)
        tokens, seconds = tokens + own[0], seconds + own[1]
    return tokens / seconds


def listed_at(found, batch):
    """The candidates at a batch that are chains of drafters that have a tree, too."""
    rows = found.candidates[found.candidates["batch"] == batch]
    both = rows.groupby("drafter")["chain"].transform(lambda own: not own.all())
    return rows[rows["chain"] & both]


def test_a_tree_stands_beside_the_fastest_chain_of_its_drafter(found):  # noqa: F811
    other = machines.Machine("another", found.recommendation, cost.CostTable(found.costs[found.costs["batch"] == 1]))
    mapped = trees_and_chains.over_chains(found, [other], np.random.default_rng(0))
    assert set(mapped["hardware"]) == {trees_and_chains.HERE, "another", *roofline.HARDWARE}
    assert set(mapped["batch"]) == {1, 2}
    there = mapped[mapped["hardware"] == "another"]
    assert there["batch"].eq(1).all() and there["source"].eq("measured").all()
    same = mapped[(mapped["hardware"] == trees_and_chains.HERE) & (mapped["batch"] == 1)]
    assert there["over_chain"].tolist() == pytest.approx(same["over_chain"].tolist()), "its costs are those of here"
    own = same[same["drafter"] == "model"]
    tried = [each for each in found.tried if each.entrant.name == "model"]
    price = found.prices[1]["model"]
    for row in own.itertuples():
        least = 0 if row.budget == trees_and_chains.ANY else row.budget / 2
        trees = [each for each in tried if each.branches and least < each.shape.budget <= (row.budget or np.inf)]
        assert row.speedup == pytest.approx(max(each.speedup(price) for each in trees))
        assert row.over_chain == pytest.approx(judged(trees, price) / judged([e for e in tried if e.is_chain], price))
    assert set(own["budget"]) == {trees_and_chains.ANY, 4} and np.isnan(own["over_chain_low"]).all(), "three prompts"
    tables.Table("", "advice_map", "mark").extend(mapped)
    finding = findings.tree_or_chain(mapped)
    best = mapped[(mapped["batch"] == 1) & (mapped["budget"] == trees_and_chains.ANY)]
    here = best[best["hardware"] == trees_and_chains.HERE]
    top, own_costs = here.loc[here["over_chain"].idxmax()], finding.table.loc["this machine (measured)"]
    assert f"`{top['drafter']}` with `{top['shape']}`, {top['over_chain']:.2f}" in finding.claim
    assert own_costs.tolist() == finding.table.loc["another (measured)"].tolist()
    wins = f"{(here['over_chain'] > 1).sum()} of {len(here)} drafters (too few prompts for intervals)"
    assert f"{wins} at the costs measured on another" in findings.where_trees_pay(mapped)
    assert "No tree" in findings.tree_or_chain(mapped[:0]).claim and "No tree" in findings.where_trees_pay(mapped[:0])
    chains = listed_at(found, 1)
    fastest = chains.loc[chains["speedup"].idxmax()]
    assert own_costs["fastest chain"] == f"{fastest['drafter']}, {fastest['shape']}: {fastest['speedup']:.2f}"
    named = [axis.get_title() or axis.get_title("left") for axis in finding.figure.axes]  # wherever the theme has it
    titles = [title for title in named if title]
    assert len(titles) == 1 + len(finding.table) and titles[1] == "this machine\nmeasured, batch 2"


def test_only_drafters_that_were_timed_on_a_machine_are_in_what_is_called_measured_there(found):  # noqa: F811
    """Nor trees that they were not timed to grow; of other runs' tables, which may be older, neither."""
    ruler = found.costs[found.costs["drafter"] == findings.RULER]
    drafting = found.costs[~found.costs["shape"].str.contains("@")]
    others = [machines.Machine("without drafters", found.recommendation, cost.CostTable(ruler)),
              machines.Machine("without growth", found.recommendation, cost.CostTable(drafting))]
    for made in (trees_and_chains.over_chains, trees_and_chains.orders):
        rows = made(found, others, np.random.default_rng(0))
        assert rows.loc[rows["source"] == "measured", "timed"].all()
        alone = rows[rows["hardware"] == "without drafters"]
        assert "model" not in set(alone["drafter"])
        assert "model" in set(rows.loc[rows["source"] == "computed", "drafter"])
    assert {"without growth", trees_and_chains.HERE} & set(rows["hardware"]) == {trees_and_chains.HERE}, "grown trees"
    mapped = trees_and_chains.over_chains(found, others, np.random.default_rng(0))
    assert set(mapped.loc[mapped["hardware"] == "without growth", "drafter"]) == {"model", "lookup"}
    old = mapped.assign(hardware="without drafters", drafter="absent", timed=False, source="measured")
    others[0] = machines.Machine(others[0].name, found.recommendation, cost.CostTable(ruler), {"advice_map": old})
    assert "absent" not in set(trees_and_chains.over_chains(found, others, np.random.default_rng(0))["drafter"])
    untimed = mapped.assign(timed=mapped["drafter"] != "model")
    own = findings.tree_or_chain(untimed).table.loc["this machine (measured)"]
    assert f" of {mapped['drafter'].nunique() - 1} drafters" in own["a tree beats every chain of its drafter"]


def test_computed_costs_that_say_the_same_are_one_row(found):  # noqa: F811
    """All checks are free on two machines; intervals of resampling may differ in their last digits."""
    rows = trees_and_chains.over_chains(found, [], np.random.default_rng(0)).query("batch == 1")
    first, *_ = roofline.HARDWARE
    free = rows[rows["hardware"] == first]
    twice = pd.concat([rows[rows["source"] == "measured"], free, free.assign(hardware="b", over_chain_low=0.123)])
    assert list(findings.tree_or_chain(twice).table.index) == ["this machine (measured)", f"{first}; b (computed)"]
    apart = pd.concat([twice, free.assign(hardware="c", over_chain=free["over_chain"] + 1e-3)])
    assert list(findings.tree_or_chain(apart).table.index)[2] == "c (computed)"


def test_what_was_timed_of_a_tree_and_a_chain_stands_beside_what_is_predicted(found):  # noqa: F811
    """In turns on the same prompts: the mean ratio by prompt, and the number of prompts."""
    rates = {"lookup, chain:2": [2.0, 8.0, 5.0], "lookup, chain:3": [1.0, 1.0, 1.0], "plain decoding": [1.0, 1.0, 1.0],
             "lookup, kary:2@6": [1.0, 4.0, 5.0], "model, chain:1": [9.0, 9.0, 9.0]}
    rows = [dict(target="t", dtype="d", batch=1, part=part, way=way, prompt=f"p{at}", kind="k", repeat=0, tokens=9,
                 seconds=1.0, rate=rate, round_ms=1.0)
            for part in ("choosing", "judging") for way, own in rates.items() for at, rate in enumerate(own)]
    timed = pd.DataFrame(rows)[lambda all: ~((all["way"] == "lookup, kary:2@6") & (all["prompt"] == "p2"))]
    made = told(over_chain=Interval(0.9, 0.8, 1.1), tree="kary:2@6", prompts=5)
    other = machines.Machine("another", made, cost.CostTable(found.costs))
    here = dataclasses.replace(found, timed=timed, recommendation=told())
    ratios = trees_and_chains.ratios(here, [other], np.random.default_rng(0))
    tables.Table("", "advice_ratios", "mark").extend(ratios)
    first, second = ratios.to_dict("records")
    assert (first["hardware"], first["part"], first["n_prompts"]) == (trees_and_chains.HERE, "choosing", 2)
    assert (first["tree"], first["chain"]) == ("lookup, kary:2@6", "lookup, chain:2")
    assert first["ratio"] == pytest.approx(0.5)
    assert (second["hardware"], second["part"], second["n_prompts"], second["ratio"]) == ("another", "judging", 5, 0.9)
    mapped = trees_and_chains.over_chains(found, [other], np.random.default_rng(0))
    shown = findings.tree_or_chain(mapped, ratios).table["timed in turns"]
    assert shown["this machine (measured)"] == "lookup, kary:2@6 over lookup, chain:2: 0.50 (n = 2, choosing)"
    assert shown["another (measured)"].endswith("0.90 [0.80, 1.10] (n = 5, judging)")


def test_a_step_that_takes_far_longer_than_its_weights_is_launch_bound(found):  # noqa: F811
    """By hand: 1e9 weights of 2 bytes are read in 1 / 2400 s at 4.8 TB/s, 5 times of it are 480 steps per second."""
    rows = pd.DataFrame([dict(machine=name, batch=batch, dtype="bfloat16", plain=rate) for name, batch, rate in [
        ("NVIDIA H200", 4, 4 * 470.0), ("NVIDIA H200", 8, 1e9), ("a processor", 1, 1.0)]])
    assert machines.launch_bound(rows, 1e9) == {"NVIDIA H200": pytest.approx(2400 / 470)}
    assert machines.launch_bound(rows.assign(plain=4 * 490.0), 1e9) == {}
    assert machines.launch_bound(rows.assign(dtype="stored"), 1e9) == {}
    launched = machines.launch_bound(rows, 1e9, "NVIDIA H200")
    mapped = trees_and_chains.over_chains(found, [], np.random.default_rng(0))
    finding = findings.tree_or_chain(mapped, None, launched)
    assert "this machine (measured, launch-bound)" in finding.table.index and "5 times as long" in finding.text
    assert "aunch-bound" not in findings.tree_or_chain(mapped).text


def test_no_sentence_of_the_first_page_rests_on_another_machine_that_is_launch_bound(found, tmp_path):  # noqa: F811
    others = [machines.Machine(name, found.recommendation, cost.CostTable(found.costs)) for name in ("slow", "NVIDIA H200")]
    listed = machines.table(others).assign(dtype="bfloat16", plain=1.0)
    facts = dict(processor="a processor", vector_units="AVX2")
    stage = dict(machine=facts, fingerprint="f", finished="now", tables={})
    (tmp_path / "run.json").write_text(json.dumps({"stages": {NOTEBOOK: stage}, "machine": {}}))
    found.recommendation.save(tmp_path / recommendation.FILE)
    for name, rows in {"advice_machines": listed, "costs": found.costs, "models": pd.DataFrame([dict(
            model="t", parameters=10**8, layers=1, hidden=1, vocabulary=9, dtype="bfloat16")]),
            "advice_map": trees_and_chains.over_chains(found, others, np.random.default_rng(0))}.items():
        tables.write(tmp_path, name, rows, "mark")
    text = next(answer.opening(Results(tmp_path), np.random.default_rng(0)))
    assert "H200" not in text and "measured on slow" in text and "On slow, where" in text


def test_published_orders_of_trees_are_tested_at_each_machines_costs(found):  # noqa: F811
    rows = trees_and_chains.orders(found, [], np.random.default_rng(0))
    tables.Table("", "advice_orders", "mark").extend(rows)
    assert set(rows["order"]) == {"grown trees over static trees"} and set(rows["drafter"]) == {"model"}
    tried, price = [each for each in found.tried if each.entrant.name == "model"], found.prices[1]["model"]
    grown, static = ([each for each in tried if isinstance(each.shape, Tree) == kind and each.branches]
                     for kind in (False, True))
    first = rows[(rows["hardware"] == trees_and_chains.HERE) & (rows["batch"] == 1)].iloc[0]
    assert first["ratio"] == pytest.approx(judged(grown, price) / judged(static, price))
    assert "too few prompts" in findings.tree_orders(rows).text
    assert "no drafter was tried" in findings.tree_orders(rows[:0]).text
    sure = rows.assign(ratio_low=1.1, ratio_high=1.3)
    assert "1 of 1 at the costs measured on this machine (0 reversed)" in findings.tree_orders(sure).claim


def test_a_drafter_that_did_not_compete_here_is_as_another_run_found_it(found):  # noqa: F811
    """Of what another run has: no drafter that competed here, no hardware that is not in this run's table."""
    def made(elsewhere):
        return trees_and_chains.over_chains(found, elsewhere, np.random.default_rng(0))
    own = made([])
    model = own[own["drafter"] == "model"]
    theirs = pd.concat([model.assign(drafter="absent"), model.assign(over_chain=9.0),
                        model[model["hardware"] == trees_and_chains.HERE].assign(drafter="absent", hardware="a third")])
    run, later = {"advice_map": theirs}, {"advice_map": theirs.assign(shape="of a later run")}
    costs = cost.CostTable(found.costs)
    others = [machines.Machine(name, found.recommendation, costs, each) for name, each in
              {"another": run, "one more": later, "without tables": {}}.items()]
    both = made(others)
    absent = both[both["drafter"] == "absent"]
    assert set(absent["hardware"]) == {"another", *roofline.HARDWARE} and (absent["shape"] != "of a later run").all()
    at_theirs = absent[absent["hardware"] == "another"]
    at_home = model[model["hardware"] == trees_and_chains.HERE]
    assert at_theirs["over_chain"].tolist() == at_home["over_chain"].tolist()
    pd.testing.assert_frame_equal(both[both["drafter"] != "absent"].reset_index(drop=True), made(
        [machines.Machine(each.name, each.made, each.costs) for each in others]))
    tables.Table("", "advice_map", "mark").extend(both)
    assert "Of `absent`, which did not compete here, the acceptance is that of another" in findings.where_trees_pay(both)
    assert "did not compete" not in findings.where_trees_pay(own)


def test_each_form_of_a_drafter_is_its_fastest():
    shapes = {"chain:2": 1.2, "chain:4": 1.4, "optimal@4": 1.3, "dyspec:8@8": 1.1, "dyspec:8@auto": 1.5}
    rows = pd.DataFrame([dict(batch=1, drafter=drafter, shape=shape, chain=shape.startswith("chain"),
                              speedup=speed * factor, speedup_low=1.0, speedup_high=2.0)
                         for drafter, factor in (("model", 1.0), ("eagle3", 2.0)) for shape, speed in shapes.items()])
    rows = rows[(rows["drafter"] == "eagle3") | rows["chain"]]
    found = findings.by_form(rows)
    assert found.claim == ("At batch 1 a drafter's fastest form, of those that it was tried with, is chain for 1 of 2, "
                           "static tree for 0 of 1, grown tree for 0 of 1, automatic budget for 1 of 1 drafters.")
    assert "An automatic budget is predicted to be 1.07 to 1.07 times as fast" in found.text
    assert list(found.table.loc[1, "model"]) == ["1.40 [1.00, 2.00] chain:4", "", "", ""]
    assert found.table.loc[(1, "eagle3"), "grown tree"] == "2.20 [1.00, 2.00] dyspec:8@8"


def test_a_drafter_that_was_not_timed_elsewhere_takes_as_large_a_share_of_a_round(found):  # noqa: F811
    rows = found.costs[(found.costs["batch"] == 1) & (found.costs["drafter"] == findings.RULER)]
    slow = rows.assign(**{name: 3 * rows[name] for name in ("draft_ms", "verify_ms", "commit_ms")})
    here = found.prices[1]
    there = machines.Machine("slow", found.recommendation, cost.CostTable(slow)).prices(1, here)
    for name, own in here.items():
        assert there[name].plain == pytest.approx(3 * own.plain)
        assert there[name].check(3) == pytest.approx(3 * own.check(3))
        assert (there[name].once, there[name].level(2)) == pytest.approx((3 * own.once, 3 * own.level(2)))
    assert machines.Machine("slow", found.recommendation, cost.CostTable(slow)).prices(2, found.prices[2]) == {}


def test_the_run_of_another_machine_is_named_by_its_processor_and_what_it_recommended(found, tmp_path):  # noqa: F811
    facts = dict(processor="a processor", vector_units="AVX2")
    stage = dict(machine=facts, fingerprint="f", finished="now", tables={})
    (tmp_path / "run.json").write_text(json.dumps({"stages": {NOTEBOOK: stage}, "machine": {}}))
    with pytest.raises(ValueError, match="holds no recommendation.json"):
        machines.of_runs([str(tmp_path)], "t")
    tables.write(tmp_path, "costs", found.costs, "mark")
    found.recommendation.save(tmp_path / recommendation.FILE)
    with pytest.raises(ValueError, match="a run for the target t, not other"):
        machines.of_runs([str(tmp_path)], "other")
    with pytest.raises(ValueError, match="a run on a processor, AVX2 as another one"):
        machines.of_runs([str(tmp_path)] * 2, "t")
    listed = machines.table(machines.of_runs([str(tmp_path)], "t"))
    tables.Table("", "advice_machines", "mark").extend(listed)
    assert listed["machine"].eq("a processor, AVX2").all() and listed["batch"].tolist() == [1, 2]
    first = found.recommendation.at(1)
    assert f"{first.speedup} times plain decoding" in findings.in_words(listed)
    few = findings.in_words(listed.assign(measured_low=np.nan, measured_high=np.nan, judged=3))
    assert "; 3 prompts, too few for an interval)" in few and "; 3 batches of prompts, too few for an interval)" in few
    assert "too few" not in findings.in_words(listed.assign(measured_low=1.0, measured_high=2.0))
    threads = f"{found.recommendation.threads} threads"
    shown = findings.machines(listed).table.loc[(f"a processor, AVX2, {threads}", 1), :]
    assert shown["speedup [95 %]"] == str(first.speedup)
    tables.write(tmp_path, "advice_machines", listed, "mark")
    text = next(answer.opening(Results(tmp_path), np.random.default_rng(0)))
    assert "- **Other machines.** On a processor, AVX2, where 2 drafters competed: `" in text


def test_a_machine_is_named_by_all_units_that_decide_its_costs():
    facts = dict(processor="a processor", vector_units="AVX512", matrix_units="none")
    assert processor.title(facts) == "a processor, AVX512"
    assert processor.title(facts | dict(matrix_units="AMX")) == "a processor, AVX512 and AMX"
    assert processor.title(facts | dict(gpu="a GPU")) == "a GPU"


def test_the_star_is_the_measured_speedup_at_the_recommended_budget(found):  # noqa: F811
    figure = figures.speed_over_budget(found.candidates, found.recommendation)
    for axis, own in zip(figure.axes, found.recommendation.by_batch):
        star = [line for line in axis.lines if line.get_marker() == "*"]
        assert [line.get_xydata()[0].tolist() for line in star] == [[own.budget, own.speedup.value]]


def test_the_curve_of_checks_has_a_point_for_each_shape_and_a_line_for_each_batch(found):  # noqa: F811
    axis, = figures.check_curves(cost.CostTable(found.costs), "t").axes
    sizes = found.costs[found.costs["drafter"] == findings.RULER].groupby("batch").size() - 1
    assert [len(points.get_offsets()) for points in axis.collections] == sizes.tolist()


def test_sentences_are_those_of_the_recommendation():
    finding = findings.recommended(told())
    row = finding.table.loc[1]
    assert (row["drafter"], row["tree"], row["speedup [95 %]"]) == ("lookup", "chain:2", "1.40 [1.20, 1.60]")
    assert "*Batch 1: a note.*" in finding.text and "float32" in finding.claim
    judged = pd.DataFrame([dict(part="judging", batch=1, kind="code", prompt=name) for name in "ab"])
    kinds = findings.kinds(told(), judged).table
    assert kinds.loc["code", "batch 1"] == "1.40 [1.20, 1.60]" and kinds.loc["code", "prompts"] == 2
    assert findings.recommended_tree(told().at(1)).figure is not None
    assert findings.as_engines_take_it(told().at(1)).table.loc["e", "setting"] == "--x"
    plain = told(drafter="none", tree="chain:0", choices=[], budget=0, depth=0, settings=[]).at(1)
    assert findings.recommended_tree(plain).figure is None
    assert "leave speculation off" in findings.as_engines_take_it(plain).text
    assert findings.as_engines_take_it(told(drafter="ngrams", settings=[]).at(1)).text == "no engine runs ngrams."
    served = told(drafter="ngrams", served={"drafter": "lookup", "tree": "chain:1", "predicted": 1.21})
    told_of = findings.as_engines_take_it(served.at(1)).text
    assert "the fastest that one runs is lookup with chain:1, predicted to decode 1.21 times" in told_of
    assert "no engine runs ngrams; the fastest" in served.text()


@pytest.mark.parametrize("pair, spec, told", [
    ("base", "model", "no pair has a draft model"), ("base", "combined", "no pair has a draft model"),
    ("base|small", "combined:behind=eagle3", "eagle3"), ("base|small", "graft:behind=dspark", "dspark")])
def test_a_drafter_that_the_target_cannot_have_is_refused_before_anything_runs(pair, spec, told):
    with pytest.raises(ValueError, match=told):
        PARAMETERS["drafters"]("drafters", {"pairs": [pair], "drafters": [spec]})


def test_a_larger_pair_needs_a_draft_model():
    PARAMETERS["larger_pairs"]("larger_pairs", {"larger_pairs": ["random:llama-68m@1|random:llama-68m@1"]})
    with pytest.raises(ValueError, match="holds 'random:llama-68m@1', which has no draft model to time"):
        PARAMETERS["larger_pairs"]("larger_pairs", {"larger_pairs": ["random:llama-68m@1"]})


def test_published_sizes_with_random_weights_are_timed():
    prompts = [torch.arange(5, 60)]
    timed = measure.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], prompts, dtype="float32", device="cpu",
                                     shapes=("chain:0", "chain:1"), prefix=16, repeats=3, seconds=0.1,
                                     generator=torch.Generator())
    rows = timed["random:llama-68m@1|random:llama-68m@1"]
    assert set(rows["target"]) == {"random:llama-68m@1"} and (rows["verify_ms"] > 0).all()
    assert set(rows["dtype"]) == {"float32"}


def test_no_larger_pair_is_timed_in_a_format_without_units(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    assert measure.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], [], dtype="bfloat16", device="cpu") == {}
