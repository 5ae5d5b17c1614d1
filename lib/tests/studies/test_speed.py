"""Speed's rows and their sums, the ways that take part, and number formats. No time is asserted."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost
from lib.cost import calibration, ways
from lib.cost.llama_cpp import LLAMA
from lib.cost.recommendation import FILE, NO_DRAFTER
from lib.cost.ways import GENERATE, MIXED
from lib.decoding import Round
from lib.drafters import NoDrafter
from lib.lab import processor, tables
from lib.lab.tables import Table
from lib.models import Pair
from lib.studies.acceptance import recording
from lib.studies.speed import alternatives, findings, formats, measure, sampled
from lib.studies.speed.alternatives import PLAIN
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.studies.test_advice_study import told
from lib.trees import shapes

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
KINDS = ("code", "code", "prose", "prose")
ASKED = recording.Prompts(tuple("abcd"), KINDS, tuple(PROMPTS), np.zeros(4, bool))


@pytest.fixture
def pair():
    for model in (TARGET, DRAFTER):
        model.generation_config.eos_token_id = None
    return Pair("t/d", TARGET, DRAFTER, _Tokenizer(), "t", "d")


class _Tokenizer:
    eos_token_id = None


def test_every_way_writes_what_generate_writes_and_an_interrupted_table_goes_on(pair, tmp_path):
    ways = alternatives.all_of(
        pair, {("model", "chain:3"): "chain:3", ("lookup", "chain:3"): "chain:3"}, draft=3, new_tokens=8
    )
    settings = dict(repeats=1, generator=torch.Generator().manual_seed(0))

    def stopped(prompts):
        raise KeyboardInterrupt

    broken = [*ways, alternatives.Alternative("stopped", stopped)]
    table = Table(tmp_path, "speed", "mark")
    with pytest.raises(KeyboardInterrupt):
        measure.measure(table, pair, broken, ASKED, batch=1, **settings)
    for batch in (1, 2, 3):
        measure.measure(table, pair, ways, ASKED, batch=batch, **settings)
        measure.measure(table, pair, ways, ASKED, batch=batch, **settings)  # nothing is left to do
    rows = table.frame()
    assert rows["same"].all() and (rows["tokens"] == 8 * rows["batch"]).all()
    assert (rows.groupby("batch").size() == [4 * len(ways), 2 * (len(ways) - 4), 2 * (len(ways) - 4)]).all()
    left = measure.outside(rows)
    assert ((left["outside"] > 0) & (left["outside"] < 1)).all() and PLAIN in set(left["alternative"])


def test_whole_rounds_are_those_in_which_every_row_runs():
    def record(row, accepted):
        return Round(row, 0, 2, accepted, (0,) * accepted, True, 1, 1, 0.25, 0.5, 0.25, 0, 0.5)

    rounds = [record(0, 1), record(1, 2), record(0, 0), record(1, 1), record(0, 2)]
    assert calibration.full_rounds(rounds, 2) == [rounds[:2], rounds[2:4]] and calibration.full_rounds([], 2) == []
    assert measure.one_per_round(rounds) == [rounds[0], rounds[2], rounds[4]] and measure.one_per_round([]) == []


@pytest.mark.parametrize("spec", [alternatives.OWN, "lookup"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_policy_that_may_stop_writes_the_same_text(pair, rows, spec):
    price = cost.CostTable(test_cost.table()).at("t", "d")
    way = alternatives.adaptive(pair, spec, price, price, "chain:4", "up to 4", 20)
    done, plain = way.run(PROMPTS[:rows]), ways.ours(pair, NoDrafter(), "chain:0", 20)(PROMPTS[:rows])
    assert done.tokens == plain.tokens and {found.drafted for found in done.rounds} <= set(range(5))


def test_what_decides_about_rows_is_made_once_a_run(tmp_path):
    made = []

    def make(value):
        made.append(value)
        return test_cost.table(scale=value)

    first, again = (tables.once(tmp_path, "speed_costs", "mark", lambda: make(value)) for value in (1.0, 2.0))
    assert made == [1.0] and first["draft_ms"].tolist() == again["draft_ms"].tolist()
    other = tables.once(tmp_path, "speed_costs", "other", lambda: make(3.0))
    assert other["draft_ms"].iloc[1] != first["draft_ms"].iloc[1]
    assert len(tables.once("", "speed_costs", "mark", lambda: make(4.0))) == len(first) and made == [1.0, 3.0, 4.0]


def test_groups_hold_one_kind_where_it_has_enough_prompts():
    found, mixed = ([(name, kind, list(map(len, prompts))) for name, kind, prompts in ways.groups(ASKED, size)]
                    for size in (2, 3))
    assert found == [("a", "code", [3, 11]), ("c", "prose", [6, 17])]
    assert mixed == [("a", MIXED, [3, 11, 6]), ("d", MIXED, [17, 3, 11])]


def test_gains_are_geometric_means_of_prompts_and_the_two_factors_multiply():
    speeds = {GENERATE: (1.0, 1.0), PLAIN: (2.0, 8.0), "top_k, chain:4": (6.0, 24.0)}
    rows = pd.DataFrame(
        [
            {"pair": "p", "batch": 1, "alternative": name, "prompt": f"{i}", "kind": "k", "tokens": 10,
             "seconds": 10 / value, "round_seconds": np.nan if name == GENERATE else 9 / value / (1 + i)}
            for name, values in speeds.items()
            for i, value in enumerate(values)
        ]
    )
    found = measure.factors(rows, np.random.default_rng(0)).set_index("alternative")
    assert found.loc[PLAIN, "value"] == pytest.approx(4.0)
    assert found.loc["top_k, chain:4", "over_plain"] == pytest.approx(3.0)
    assert np.allclose(found["value"], found["loop"] * found["over_plain"])
    assert found.loc["top_k, chain:4", "alone"] == pytest.approx(3.0) and np.isnan(found.loc[GENERATE, "alone"])


def test_decoding_alone_leaves_out_prefill_and_the_first_tokens():
    done = ways.Continued([[1, 2, 3], [4, 5]], [], prefilled=3.0)
    rows = pd.DataFrame([dict(batch=2) | measure.counted(done, 1.0, 5.0),
                         dict(batch=2) | measure.counted(replace(done, prefilled=float("nan")), 1.0, 5.0)])
    [alone] = measure.decoding_alone(rows).itertuples()
    assert (alone.tokens, alone.seconds) == (3, 2.0) and rows["seconds"].eq(4.0).all()


def test_llama_cpp_stands_beside_the_number_formats(monkeypatch, pair):
    own = ways.ours(pair, NoDrafter(), "chain:0", 8)
    monkeypatch.setattr(alternatives.llama_cpp, "file_of", lambda name: Path(__file__))
    monkeypatch.setattr(alternatives.llama_cpp, "llama", lambda *given: lambda prompts: ways.Continued(
        own(prompts).tokens, [], time.perf_counter() - 1e-6))
    rows = formats.compare("t/d", {("float32", "none"): pair}, ASKED, [], new_tokens=8,
                           generator=torch.Generator().manual_seed(0))
    stored = rows[rows["alternative"] == LLAMA]
    assert len(stored) == 4 and stored["rounds"].isna().all() and stored["agreeing"].eq(8).all()
    over = formats.over_llama(rows, np.random.default_rng(0))
    assert over.index.tolist() == ["float32 none"] and over["value"].between(0, 1).all()
    told = findings.number_formats(rows, np.random.default_rng(0))
    assert "as fast as llama.cpp on the same file" in told.text and len(told.table) == 2


def test_the_runs_own_recommendation_is_quoted_and_another_is_made_where_it_does_not_fit(tmp_path):
    made, other = told(), told(batch=4)
    made.save(tmp_path / FILE)
    assert measure.recommended(str(tmp_path), "t", "float32", [1], lambda: other).text() == made.text()
    for target, dtype, batches in (("u", "float32", [1]), ("t", "bfloat16", [1]), ("t", "float32", [1, 4])):
        assert measure.recommended(str(tmp_path), target, dtype, batches, lambda: other) is other
    assert measure.recommended("", "t", "float32", [1], lambda: other) is other
    assert made.at(1).sentence in findings.quoted(made).text


def test_what_is_recommended_is_decoded_and_may_be_plain(pair):
    advised = alternatives.advised(pair, told().at(1), 8)
    plain = told(drafter=NO_DRAFTER, tree="chain:0", choices=[], budget=0, depth=0).at(1)
    assert (advised.drafter, advised.shape) == ("lookup", "chain:2")
    own = ways.ours(pair, NoDrafter(), "chain:0", 8)(PROMPTS).tokens
    assert advised.run(PROMPTS).tokens == alternatives.advised(pair, plain, 8).run(PROMPTS).tokens == own


def test_a_drafter_takes_part_where_the_pair_can_have_it(pair):
    base, alone = replace(pair, target_name="small"), replace(pair, draft_model=None)
    asked = ["lookup:frequent", "eagle", alternatives.OWN, "lookup:frequent"]
    assert alternatives.possible(base, asked) == [alternatives.OWN, "lookup:frequent", "eagle"]
    assert alternatives.possible(pair, asked) == [alternatives.OWN, "lookup:frequent"]
    assert alternatives.possible(alone, asked) == ["lookup:frequent"]
    names = {way.name for way in alternatives.all_of(alone, {}, draft=3, new_tokens=8)}
    assert names == {GENERATE, ways.LOOKUP, PLAIN}
    with pytest.raises(ValueError, match="drafter is 'topk'"):
        alternatives.possible(base, ["topk"])


def test_each_number_format_speaks_its_own_targets_text_in_every_way_of_decoding(monkeypatch, pair):
    other = small_models.llama(5)  # whose text is another
    other.generation_config.eos_token_id = None
    pairs = {"float32": pair, "bfloat16": Pair("t/d", other, DRAFTER, _Tokenizer(), "t", "d")}
    monkeypatch.setattr(alternatives.llama_cpp, "file_of", lambda name: None)
    drafting = [("model", "chain:2"), ("lookup", "chain:3")]
    rows = formats.compare("t/d", {(dtype, "none"): own for dtype, own in pairs.items()}, ASKED, drafting,
                           new_tokens=8, generator=torch.Generator().manual_seed(0))
    assert len(rows) == 4 * 2 * 3 and set(rows["alternative"]) == {PLAIN, "model, chain:2", "lookup, chain:3"}
    alone = {way: ways.ours(pairs[way], NoDrafter(), shapes.parse("chain:0"), 8)(PROMPTS).tokens
             for way in pairs}
    shared = [next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), 8) for texts in zip(*alone.values())]
    for dtype, wanted in (("float32", [8] * 4), ("bfloat16", shared)):
        for _, own in rows[rows["dtype"] == dtype].groupby("alternative"):
            assert own["agreeing"].tolist() == wanted
    said = formats.by_format(rows, np.random.default_rng(0))
    assert (said.xs(PLAIN, level="alternative")["value"] == 1).all() and said["n_prompts"].eq(4).all()
    assert said.loc[("float32", "none"), "text shared with the first row"].eq(1).all()
    assert "The fastest number format is" in findings.number_formats(rows, np.random.default_rng(0)).claim


def test_sampled_texts_are_timed_in_turns_and_compared_with_the_plain_loop(pair):
    shape = shapes.parse("kary:2@6")
    rows = sampled.compare(pair, ASKED, [("model", "kary:2@6", shape), ("lookup", "chain:2", "chain:2")], [0.5, 1.0],
                           new_tokens=8, repeats=2, seed=0, generator=torch.Generator().manual_seed(0))
    tables.Table("", "sampled", "mark").extend(rows)
    assert rows.groupby(["temperature", "alternative", "prompt"]).size().tolist() == [2] * (2 * 3 * 4)
    assert rows["tokens"].eq(8).all() and rows.loc[rows["alternative"] == PLAIN, "accepted"].eq(0).all()
    assert rows["accepted"].sum() > 0
    times = {PLAIN: 1.0, "model, kary:2@6": 0.5, "lookup, chain:2": 2.0}
    rows["round_seconds"] = rows["alternative"].map(times)
    over = sampled.over_plain(rows, np.random.default_rng(0)).set_index(["temperature", "alternative"])
    for way, seconds in times.items():
        assert over.loc[(0.5, way), "value"] == pytest.approx(1 / seconds)
    assert over.loc[(1.0, PLAIN), "tokens"] == 1
    finding = findings.sampled_speed(rows, np.random.default_rng(0))
    assert "temperature 1 the best of 2 drafters and trees on 4 prompts, `model, kary:2@6`, decodes 2.00" in finding.claim
    assert len(finding.table) == 4


def test_formats_are_those_of_the_processor_and_of_the_file(monkeypatch):
    loaded = []
    monkeypatch.setattr(formats, "load_pair", lambda name, **settings: loaded.append(settings))
    source = SimpleNamespace(is_gguf=True)
    monkeypatch.setattr(formats, "sources", lambda name: (source, None))
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    assert list(formats.load("t", "cpu")) == [("float32", "none"), ("float32", "int8"), ("float32", "stored")]
    assert loaded[-1] == {"dtype": "float32", "device": "cpu", "quantize": "stored"}
    source.is_gguf = False
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx512_bf16"}))
    assert list(formats.load("t", "cpu")) == list(formats.FORMATS)


@pytest.mark.parametrize("seconds", [0.2, 0.0], ids=["time", "a stall"])
def test_a_pass_costs_what_its_nodes_cost_and_leaves_no_trace(monkeypatch, pair, seconds):
    """Each timed call sees the same prefix, and each pass is timed, even where the machine stood still meanwhile."""
    monkeypatch.setattr(formats.llama_cpp, "file_of", lambda name: None)
    found = formats.passes("t/d", {("float32", "none"): pair}, PROMPTS, prefix=5, seconds=seconds,
                           generator=torch.Generator().manual_seed(0))
    assert found["nodes"].tolist() == list(formats.NODES) and found["engine"].eq("loop").all()
    assert found["median_ms"].gt(0).all() and "passes over one node" in findings.pass_costs(found).claim


def test_the_best_tree_of_a_format_is_the_fastest_at_its_own_costs():
    nodes = [1, 2, 4, 8]
    costs = pd.DataFrame([dict(dtype=dtype, quantised="none", engine=engine, nodes=n, median_ms=ms)
                          for dtype, engine, own in (("float32", "loop", [10, 10, 10, 10]),
                                                     ("float16", "loop", [4, 6, 10, 18]), ("float16", LLAMA, [1, 1, 1, 1]))
                          for n, ms in zip(nodes, own)])
    tokens = {1: 1.5, 3: 2.0, 7: 2.4}
    drafts = pd.DataFrame([dict(batch=1, drafter=drafter, shape=f"chain:{n}", budget=n, level=0.0, tokens=own,
                                round_ms=10 + share * n, speedup=own * 10 / (10 + share * n))
                           for n, own in tokens.items() for drafter, share in (("always", 1.0), ("half", 0.5))])
    drafts.loc[drafts["drafter"] == "half", ["tokens", "speedup"]] *= 0.8
    found = formats.best_trees(costs, drafts)
    assert found.index.tolist() == ["float32", "float16"]
    assert found.loc["float32", ["drafter", "tree"]].tolist() == ["always", "chain:7"]
    assert found.loc["float32", "speedup"] == found.loc["float32", "over"] == pytest.approx(2.4)
    every = {(n, name): scale * own * 4 / (4 + share * (np.interp(n + 1, nodes, [4, 6, 10, 18]) - 4))
             for n, own in tokens.items() for name, scale, share in (("always", 1, 1), ("half", 0.8, 0.5))}
    assert found.loc["float16", "speedup"] == pytest.approx(max(every.values()))
    assert found.loc["float16", "over"] == pytest.approx(max(every.values()) * 10 / 4)
    told = findings.trees_by_format(costs, drafts)
    assert "`always` with `chain:7` in float32 (2.40)" in told.claim and "Float16 would be fastest" in told.text
