"""The tables of the advice against counting and against numbers by hand."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import cost
from lib.cost import formats as number_formats
from lib.cost import recommendation, roofline
from lib.cost.recommendation import ONE, ForBatch, Interval, Recommendation
from lib.cost.round_cost import RULER
from lib.lab import processor, tables
from lib.lab.chapter import Store
from lib.measure import advice, parameters
from lib.tests.cost import test_cost
from lib.tests.cost.test_recommendation import found, pair_of, prompts_of  # noqa: F401
from lib.trees.tree import Tree

PARAMETERS = 10**8  # numbers of the target


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


def machine(name, found, rows=None):  # noqa: F811
    """A machine with these rows of costs, or those of this one."""
    return advice.Machine(name, found.recommendation, cost.CostTable(found.costs if rows is None else rows))


def over_chains(found, elsewhere=(), size=PARAMETERS):  # noqa: F811
    return advice.over_chains(found, elsewhere, size, np.random.default_rng(0))


def test_all_tables_are_written_and_what_was_recommended_before_stays(found, tmp_path, monkeypatch):  # noqa: F811
    asked = []
    monkeypatch.setattr(advice, "load_pairs", lambda names, **settings: [pair_of(None)])
    monkeypatch.setattr(advice, "load_prompts", lambda *given, **settings: prompts_of(range(6)))
    monkeypatch.setattr(number_formats, "recommend", lambda *given, **settings: (
        asked.append(settings["drafters"]) or found, pd.DataFrame()))
    settings = dict(
        pairs=["t"], prompts="", batches=[1, 2], drafters=["lookup"], seconds=1.0,
        choose_prompts=1, judge_prompts=1, new_tokens=16, most_nodes=4, most_depth=3, larger_pairs=[], elsewhere=[],
        larger_dtype="auto", cell_seconds=0.1, lengths=[], texts_folder="", dtype="auto", formats=[], device="cpu",
        seed=0)
    advice.measure(Store(tmp_path, "mark"), **settings)
    written = {name for name in tables.schemas() if tables.exists(tmp_path, name)}
    assert written == {"costs", "source_grid", *(f"advice_{name}" for name in (
        "candidates", "timed", "errors", "formats", "sizes", "formulas", "map", "ratios", "machines"))}
    assert len(tables.read(tmp_path, "source_grid")) == 6, "what the weblogs say"
    assert recommendation.load(tmp_path / recommendation.FILE).text() == found.recommendation.text()
    advice.measure(Store(tmp_path, "mark"), **settings)
    assert asked == [["lookup"]], "the second call reads what the first wrote"
    advice.measure(Store(tmp_path, "another"), **settings)
    assert len(asked) == 2


def test_formulas_stand_beside_replay(found):  # noqa: F811
    rows = advice.beside_formulas(found.candidates, ["none such", "model"])
    said, own = rows.set_index(["batch", "by", "length"])["speedup"], rows.iloc[0]
    assert said[1, advice.LEVIATHAN, 1] == pytest.approx((1 + own["alpha"]) / (1 + own["cost"]))
    assert np.isnan(said[1, advice.BLOG, 1]) and said[1, advice.BLOG, 3] == 1.8
    chain = found.candidates.query("batch == 1 and drafter == 'model' and shape == 'chain:2'").iloc[0]
    assert said[1, advice.REPLAY, 2] == chain["speedup"]
    assert advice.beside_formulas(found.candidates, ["none such"]).empty


@given(st.floats(0, 1), st.integers(0, 12))
def test_leviathans_tokens_are_the_mean_of_a_capped_geometric_law(alpha, length):
    mean = sum((a + 1) * alpha**a * (1 - alpha) for a in range(length)) + (length + 1) * alpha**length
    assert advice.leviathan_speedup(alpha, length, 0) == pytest.approx(mean)
    assert advice.leviathan_speedup(alpha, length, 0.5) == pytest.approx(mean / (1 + length / 2))


def test_a_larger_pairs_costs_stand_beside_the_same_acceptance(found):  # noqa: F811
    own = test_cost.table()
    dear = own.assign(target="huge", drafter="large", verify_ms=1e4)
    sized = advice.with_costs_of(found.tried, {"own": own, "dear": dear}, [1], np.random.default_rng(0))
    assert set(sized.loc[sized["costs"] == "dear", "free"]) == {64} and set(sized["target"]) == {"t"}
    chains = sized[sized["chain"]].set_index(["costs", "budget"])
    assert (chains.loc["dear", "speedup"] > chains.loc["own", "speedup"]).all()  # a check is nearly free
    assert np.allclose(sized.loc[sized["costs"] == "dear", "check"], 1.0)
    ruled = pd.concat([own.assign(drafter=RULER, verify_ms=7.0), own])
    both = advice.with_costs_of(found.tried, {"own": ruled}, [1], np.random.default_rng(0))
    assert both["check"].tolist() == pytest.approx([1.0] * len(both)), "checks are those of the ruler"
    assert 7 * both["level"].iloc[0] == pytest.approx(sized["plain_ms"].iloc[0] * sized["level"].iloc[0])


def judged(some, price):
    """Tokens per second on each half of the prompts of the candidate that is fastest on the other half, together."""
    names = sorted(some[0].prompts)
    tokens = seconds = 0.0
    for half in (names[::2], names[1::2]):
        def of(candidate, part):
            at = [candidate.prompts.index(name) for name in part]
            rounds = candidate.rounds[at].sum()
            return candidate.accepted[at].sum() + rounds, rounds * candidate.seconds(price)
        others = [name for name in names if name not in half]
        best = max(some, key=lambda candidate: np.divide(*of(candidate, others)))
        own = of(best, half)
        tokens, seconds = tokens + own[0], seconds + own[1]
    return tokens / seconds


def test_a_tree_stands_beside_the_fastest_chain_of_its_drafter(found):  # noqa: F811
    mapped = over_chains(found, [machine("another", found, found.costs[found.costs["batch"] == 1])])
    assert set(mapped["hardware"]) == {advice.HERE, "another", *roofline.HARDWARE} and set(mapped["batch"]) == {1, 2}
    there = mapped[mapped["hardware"] == "another"]
    assert there["batch"].eq(1).all() and there["source"].eq(advice.MEASURED).all()
    here = mapped[(mapped["hardware"] == advice.HERE) & (mapped["batch"] == 1)]
    assert there["over_chain"].tolist() == pytest.approx(here["over_chain"].tolist()), "its costs are those of here"
    assert set(mapped.loc[mapped["hardware"].isin(roofline.HARDWARE), "source"]) == {advice.COMPUTED}
    own, price = here[here["drafter"] == "model"], found.prices[1]["model"]
    tried = [candidate for candidate in found.tried if candidate.entrant.name == "model"]
    chains = [candidate for candidate in tried if candidate.is_chain]
    for row in own.itertuples():
        least, most = (0, np.inf) if row.budget == advice.ANY else (row.budget / 2, row.budget)
        trees = [candidate for candidate in tried if candidate.branches and least < candidate.shape.budget <= most]
        assert row.speedup == pytest.approx(max(candidate.speedup(price) for candidate in trees))
        assert row.over_chain == pytest.approx(judged(trees, price) / judged(chains, price))
    assert set(own["budget"]) == {advice.ANY, 4} and np.isnan(own["over_chain_low"]).all(), "three prompts"


def test_only_drafters_that_were_timed_on_a_machine_are_in_what_is_measured_there(found):  # noqa: F811
    """Nor trees that they were not timed to grow."""
    ruler = found.costs[found.costs["drafter"] == RULER]
    drafting = found.costs[~found.costs["shape"].str.contains("@")]
    rows = over_chains(found, [machine("without drafters", found, ruler), machine("without growth", found, drafting)])
    by_hardware = rows.groupby("hardware")["drafter"].agg(set)
    assert by_hardware["without drafters"] == {"lookup"} and "model" in by_hardware[next(iter(roofline.HARDWARE))]
    static = [candidate for candidate in found.tried if isinstance(candidate.shape, Tree)]
    known = {candidate.label for candidate in static}
    assert set(rows.loc[rows["hardware"] == "without growth", "shape"]) <= known
    assert by_hardware["without growth"] == {"model", "lookup"}


def test_costs_of_another_machine_are_its_own_checks_and_drafting(found):  # noqa: F811
    timed = ["draft_ms", "verify_ms", "commit_ms"]
    rows = found.costs[found.costs["batch"] == 1]
    slow = rows.assign(**{name: 3 * rows[name] for name in timed})
    here, there = found.prices[1], machine("slow", found, slow).prices(1, found.prices[1])
    for name, own in here.items():
        assert there[name].plain == pytest.approx(3 * own.plain)
        assert there[name].check(3) == pytest.approx(3 * own.check(3))
        assert (there[name].once, there[name].level(2)) == pytest.approx((3 * own.once, 3 * own.level(2)))
    assert machine("slow", found, slow).prices(2, found.prices[2]) == {}


def test_a_step_that_takes_far_longer_than_its_weights_is_launch_bound(found):  # noqa: F811
    """By hand: an H200 reads 2 bytes per weight at 4.8 TB/s."""
    made = dataclasses.replace(found.recommendation, dtype="bfloat16")
    other = advice.Machine("NVIDIA H200", made, cost.CostTable(found.costs))
    plain = other.prices(1, found.prices[1])["model"].plain
    size = plain * 4.8e12 / 2 / roofline.LAUNCH_BOUND  # of which a plain step reads the weights five times
    for factor, source in ((0.9, advice.LAUNCHES), (1.1, advice.MEASURED)):
        rows = over_chains(found, [other], size * factor).query("batch == 1")
        assert set(rows.loc[rows["hardware"] == other.name, "source"]) == {source}
        assert set(rows.loc[rows["hardware"] == advice.HERE, "source"]) == {advice.MEASURED}, "of unknown bandwidth"


def test_what_was_timed_of_a_tree_and_a_chain_is_their_ratio_by_prompt(found, tmp_path):  # noqa: F811
    """In turns on the same prompts: the mean ratio by prompt, and the number of prompts."""
    rates = {"lookup, chain:2": [2.0, 8.0, 5.0], "lookup, chain:3": [1.0, 1.0, 1.0], "plain decoding": [1.0, 1.0, 1.0],
             "lookup, kary:2@6": [1.0, 4.0, 5.0], "model, chain:1": [9.0, 9.0, 9.0]}
    rows = [dict(target="t", dtype="d", batch=1, part=part, way=way, prompt=f"p{at}", kind="k", repeat=0, tokens=9,
                 seconds=1.0, rate=rate, round_ms=1.0)
            for part in ("choosing", "judging") for way, own in rates.items() for at, rate in enumerate(own)]
    timed = pd.DataFrame(rows)[lambda all: ~((all["way"] == "lookup, kary:2@6") & (all["prompt"] == "p2"))]
    made = told(over_chain=Interval(0.9, 0.8, 1.1), tree="kary:2@6", prompts=5)
    other = advice.Machine("another", made, cost.CostTable(found.costs))
    here = dataclasses.replace(found, timed=timed, recommendation=told())
    ratios = advice.ratios(here, [other], np.random.default_rng(0))
    tables.write(tmp_path, "advice_ratios", ratios, "mark")
    first, second = ratios.to_dict("records")
    assert (first["hardware"], first["part"], first["n_prompts"]) == (advice.HERE, "choosing", 2)
    assert (first["tree"], first["chain"]) == ("lookup, kary:2@6", "lookup, chain:2")
    assert first["ratio"] == pytest.approx(0.5)
    assert (second["hardware"], second["part"], second["n_prompts"], second["ratio"]) == ("another", "judging", 5, 0.9)


def test_the_run_of_another_machine_is_named_by_its_processor_and_what_it_recommended(found, tmp_path):  # noqa: F811
    facts = dict(processor="a processor", vector_units="AVX2")
    stage = dict(machine=facts, fingerprint="f", finished="now", tables={})
    (tmp_path / "run.json").write_text(json.dumps({"stages": {advice.NOTEBOOK: stage}, "machine": {}}))
    with pytest.raises(ValueError, match="holds no recommendation.json"):
        advice.of_runs([str(tmp_path)], "t")
    tables.write(tmp_path, "costs", found.costs, "mark")
    found.recommendation.save(tmp_path / recommendation.FILE)
    with pytest.raises(ValueError, match="a run for the target t, not other"):
        advice.of_runs([str(tmp_path)], "other")
    with pytest.raises(ValueError, match="a run on a processor, AVX2 as another one"):
        advice.of_runs([str(tmp_path)] * 2, "t")
    listed = advice.machines_table(advice.of_runs([str(tmp_path)], "t"))
    tables.write(tmp_path, "advice_machines", listed, "mark")
    assert listed["machine"].eq("a processor, AVX2").all() and listed["batch"].tolist() == [1, 2]
    assert listed["measured"].tolist() == [own.speedup.value for own in found.recommendation.by_batch]


def test_a_machine_is_named_by_all_units_that_decide_its_costs():
    facts = dict(processor="a processor", vector_units="AVX512", matrix_units="none")
    assert processor.title(facts) == "a processor, AVX512"
    assert processor.title(facts | dict(matrix_units="AMX")) == "a processor, AVX512 and AMX"
    assert processor.title(facts | dict(gpu="a GPU")) == "a GPU"


@pytest.mark.parametrize("pair, spec, said", [
    ("base", "model", "no pair has a draft model"), ("base", "combined", "no pair has a draft model"),
    ("base|small", "combined:behind=eagle3", "eagle3")])
def test_a_drafter_that_the_target_cannot_have_is_refused_before_anything_runs(pair, spec, said):
    with pytest.raises(ValueError, match=said):
        parameters.possible_drafters("drafters", {"pairs": [pair], "drafters": [spec]})


def test_a_larger_pair_needs_a_draft_model():
    parameters.larger_pairs("larger_pairs", {"larger_pairs": ["random:llama-68m@1|random:llama-68m@1"]})
    with pytest.raises(ValueError, match="holds 'random:llama-68m@1', which has no draft model to time"):
        parameters.larger_pairs("larger_pairs", {"larger_pairs": ["random:llama-68m@1"]})


def test_rows_depend_on_the_files_of_models_heads_and_prompts(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text("{}")
    names = [path.name for path in parameters.files_of(["base|small", "random:llama-68m@1"], str(file))]
    assert {"base", "small", "own.jsonl"} <= set(names)
    assert {"chat.jsonl", "family.jsonl"} <= {path.name for path in parameters.files_of(["base"], "")}


def test_published_sizes_with_random_weights_are_timed():
    prompts = [torch.arange(5, 60)]
    timed = advice.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], prompts, dtype="float32", device="cpu",
                                    shapes=("chain:0", "chain:1"), prefix=16, repeats=3, seconds=0.1,
                                    generator=torch.Generator())
    rows = timed["random:llama-68m@1|random:llama-68m@1"]
    assert set(rows["target"]) == {"random:llama-68m@1"} and (rows["verify_ms"] > 0).all()
    assert set(rows["dtype"]) == {"float32"}


def test_no_larger_pair_is_timed_in_a_format_without_units(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    assert advice.calibrate_larger(["random:llama-68m@1|random:llama-68m@1"], [], dtype="bfloat16", device="cpu") == {}
