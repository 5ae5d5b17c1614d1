"""The study: each cell gives one row per alternative, with times or a reason; summaries and findings follow from rows."""

import dataclasses
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from lib.lab import processor
from lib.lab.findings import Finding, Results
from lib.lab.tables import SCHEMAS, Table, read, write
from lib.studies.attention import figures, findings, summary
from lib.studies.attention import measure as study
from lib.studies.attention import peaks as roofs
from lib.studies.attention.baselines import QUICK, SEQUENTIAL
from lib.studies.report import Ask, Follows

PEAKS = roofs.Peaks(1e10, 1e11, {"float32": 2e11}, {"float32": 1e11})


def measured(cell, **changes):
    limits = study.Limits(**{"seconds": 2.0, "memory_gb": 1.0, "repeats": 3, **changes})
    return study.measure(cell, limits=limits, peaks=PEAKS, generator=torch.Generator().manual_seed(0))


def test_a_cell_gives_a_row_for_every_alternative_in_the_table_s_columns():
    rows = measured(study.Cell(2, 16, 5, "float32", 4, 2, 8))
    assert [row["alternative"] for row in rows] == list(QUICK)
    assert all(list(row) == list(SCHEMAS["attention"].columns) for row in rows)
    timed = [row for row in rows if not row["skipped"].startswith("refused: ")]
    assert {row["alternative"] for row in timed} >= {"auto", "folded", "split", "dense mask"}
    assert all(row["repeats"] == 3 and 0 < row["lower_ms"] <= row["median_ms"] <= row["upper_ms"] for row in timed)


def test_a_cell_and_an_alternative_name_a_row_of_the_table():
    names = [field.name for field in dataclasses.fields(study.Cell)]
    assert (*names, "alternative") == SCHEMAS["attention"].key


def test_a_stopped_study_goes_on_with_the_next_cell(tmp_path):
    """What the table holds is not measured again, also where it was skipped; rows come back as they went in."""
    cells = study.grid([1], [8], [1, 4], ["float32"], 4, 2, 8)
    first = measured(cells[0], memory_gb=1e-9)
    Table(tmp_path, "attention", "same").extend(first)
    table = Table(tmp_path, "attention", "same")
    done = {key[:-1] for key in table.keys()}
    assert [dataclasses.astuple(cell) in done for cell in cells] == [True, False]
    table.extend(measured(cells[1]))
    assert len(table.frame()) == 2 * len(QUICK) and table.frame()["skipped"].iloc[0] == first[0]["skipped"]


def test_a_plain_token_is_a_cell_like_any_other():
    rows = measured(study.Cell(1, 8, 1, "float32", 4, 2, 8))
    assert all(row["repeats"] or row["skipped"].startswith("refused: ") for row in rows)


def test_what_does_not_fit_is_skipped_with_the_reason_before_it_is_made():
    """Inputs over the memory limit, one alternative's copies over it, or a time that even the peak cannot keep."""
    huge = study.Cell(10**6, 10**6, 64, "float32", 32, 8, 128)
    assert all("keys and values need" in row["skipped"] and row["repeats"] == 0 for row in measured(huge))
    rows = {row["alternative"]: row for row in measured(study.Cell(1, 512, 32, "float32", 4, 2, 8), memory_gb=5e-4)}
    assert "memory: needs" in rows["branch batch"]["skipped"] and not rows["folded"]["skipped"]
    rows = {row["alternative"]: row for row in measured(study.Cell(1, 512, 64, "float32", 4, 2, 8), seconds=1e-4)}
    assert "at the machine's peak" in rows["node by node"]["skipped"]


def test_where_not_all_fit_the_kernels_for_trees_are_kept(monkeypatch):
    """Of forms that would take equally long at the machine's peak: there is time for three calls of two of them."""
    kept = []

    def record(names, problem):
        kept.extend(names)
        return {}, dict.fromkeys(names, "not called")

    monkeypatch.setattr(study, "refused", lambda name, problem: None)
    monkeypatch.setattr(study, "_prepared", record)
    monkeypatch.setattr(study, "_too_slow", lambda *inputs: {})
    cell, generator = study.Cell(1, 512, 32, "float32", 4, 2, 8), torch.Generator().manual_seed(0)
    cost = study.work("onepass", study.make_problem(cell, generator))
    least = cost.seconds(PEAKS.cached_bandwidth, PEAKS.throughput["float32"])
    study.measure(cell, limits=study.Limits(7 * least, 1.0, 3), peaks=PEAKS, generator=generator,
                  alternatives=["split", "folded", "as a chain", "auto", "onepass"])
    assert kept == ["auto", "onepass"]


def test_what_fails_is_a_row_with_the_reason(monkeypatch):
    """A compiler's refusal of one alternative must not cost the times of the others."""
    def broken(problem):
        raise RuntimeError("no valid kernel\nand a long trace")

    monkeypatch.setitem(study.PREPARE, "split", broken)
    rows = {row["alternative"]: row for row in measured(study.Cell(1, 8, 4, "float32", 4, 2, 8))}
    assert rows["split"]["skipped"] == "failed: RuntimeError: no valid kernel" and rows["folded"]["repeats"] == 3


def test_an_alternative_that_would_take_too_long_is_found_by_smaller_calls(monkeypatch):
    """The whole cell is never tried: the estimate is from a call of 48 keys, which is long beside any overhead."""
    prefixes = []

    def slow(problem):
        prefixes.append(problem.prefix)
        return lambda: time.sleep(0.03)

    monkeypatch.setitem(study.PREPARE, "split", slow)
    rows = {row["alternative"]: row for row in measured(study.Cell(1, 4096, 32, "float32", 4, 2, 8), seconds=0.1)}
    assert prefixes == [study.FEW_TOKENS] and "estimated from 0.0" in rows["split"]["skipped"]
    assert "time: 3 calls of" in rows["split"]["skipped"] and not rows["folded"]["skipped"]


@pytest.fixture
def without_bfloat16(monkeypatch):
    """A processor with AVX2 alone."""
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2", "fma"}))


def test_a_number_format_without_units_is_not_measured_and_the_table_says_so(without_bfloat16, monkeypatch):
    monkeypatch.setattr(study, "make_problem", lambda *inputs: pytest.fail("inputs were made"))
    rows = measured(study.Cell(1, 8, 4, "bfloat16", 4, 2, 8))
    assert {row["skipped"] for row in rows} == {"refused: the processor has no units for bfloat16"}
    assert study.measurable(["float32", "bfloat16"]) == ["float32"]
    with pytest.raises(ValueError, match=r"\['bfloat16'\], and the processor has no units .* add 'float32'"):
        study.measurable(["bfloat16"])
    cells = study.grid([1], [8], [4], ["float32", "bfloat16"], 4, 2, 8)
    assert {row["dtype"] for row in study.roofline_rows(cells, PEAKS)} == {"float32"}


def test_findings_and_figures_leave_out_a_number_format_that_was_not_timed(without_bfloat16):
    """They say so, and draw no empty panel for it."""
    rows = [row for dtype in ("float32", "bfloat16") for draft in (1, 4)
            for row in measured(study.Cell(1, 8, draft, dtype, 4, 2, 8))]
    timings = pd.DataFrame(rows)
    assert "no units for bfloat16, which was not timed" in findings.skipped(timings).text
    growth = findings.growth(timings, {"float32": 2.0})
    for finding in (findings.alternatives(timings), findings.ratios(timings), growth):
        assert [axis.get_title() for axis in finding.figure.axes if "bfloat16" in axis.get_title()] == []
        assert "bfloat16" not in finding.text
        plt.close(finding.figure)


def test_the_report_s_part_is_made_of_the_tables_of_a_run():
    run = Results(Path(study.__file__).parents[3] / "data" / "results" / "reference")
    parts = list(findings.report(run, Ask("base/small", 16), np.random.default_rng(0)))
    assert parts[0].startswith("## 6 ") and isinstance(parts[-1], Follows) and "nodes" in parts[-1].answer()
    shown = [part for part in parts if isinstance(part, Finding)]
    assert [part.name for part in shown if part.figure] == ["attention_time", "attention_wins", "attention_roofline"]
    assert all(part.claim for part in shown)
    for part in shown:
        plt.close(part.figure)


def test_all_alternatives_agree_with_the_reference_to_their_dtype_s_precision():
    within = {"float32": 1e-6, "bfloat16": 6e-3}
    for dtype, most in ((name, within[name]) for name in study.measurable(list(within))):
        errors = study.relative_errors(study.Cell(2, 64, 9, dtype, 8, 2, 16), torch.Generator().manual_seed(0))
        assert {"auto", "folded", "split", *SEQUENTIAL} <= set(errors) <= set(QUICK)
        assert max(errors.values()) < most


def test_a_grid_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="'float33'"):
        study.grid([1], [8], [1], ["float33"], 4, 2, 8)
    with pytest.raises(ValueError, match="5 over kv_heads 2"):
        study.grid([1], [8], [1], ["float32"], 5, 2, 8)
    assert len(study.grid([1, 2], [8, 16], [1, 4, 8], ["float32", "bfloat16"], 4, 2, 8)) == 24


def test_the_balanced_draft_is_where_reading_and_arithmetic_take_equally_long():
    draft = roofs.balanced_draft(PEAKS, "float32", 8, 2)
    prefix, dim = 1000, 64
    reading, arithmetic = 2 * 2 * prefix * dim * 4 / 1e10, 4 * 8 * draft * prefix * dim / 1e11
    assert reading == pytest.approx(arithmetic)


def test_the_peaks_are_kept_with_their_units(tmp_path):
    write(tmp_path, "peaks", roofs.peak_rows(PEAKS), "mark")
    kept = read(tmp_path, "peaks").set_index("what")
    assert kept["value"].to_dict() == {"bandwidth": 1e10, "cached bandwidth": 1e11, "throughput float32": 2e11,
                                       "products float32": 1e11}
    assert kept["unit"].tolist() == ["bytes/s", "bytes/s", "operations/s", "operations/s"]
    assert set(kept["device"]) == {"cpu"} and set(kept["threads"]) == {torch.get_num_threads()}


def table(times, prefix=128):
    """Rows with the given medians, one list over drafts 1, 4, 16 for each alternative; None is skipped."""
    return pd.DataFrame(
        {"dtype": "float32", "batch": 1, "prefix": prefix, "draft": draft, "alternative": name,
         "median_ms": np.nan if ms is None else ms, "repeats": 0 if ms is None else 5,
         "skipped": "time: too long" if ms is None else ""}
        for name, each in times.items() for draft, ms in zip((1, 4, 16), each))


def test_summaries_of_a_table_made_by_hand():
    rows = table({"folded": [1.0, 1.0, 4.0], "dense mask": [2.0, 8.0, 2.0], "branch batch": [1.0, None, None]})
    means = summary.geometric_means(rows).set_index("alternative")
    assert means.loc["dense mask", "mean"] == pytest.approx(2.0) and means.loc["dense mask", "cells"] == 3
    assert (means.loc["dense mask", "smallest"], means.loc["dense mask", "largest"]) == (0.5, 8.0)
    assert means.loc["branch batch", "cells"] == 1
    best = summary.winners(rows).set_index("draft")
    assert best.loc[4, "alternative"] == "folded" and best.loc[4, "lead"] == 8.0
    assert best.loc[16, "alternative"] == "dense mask" and best.loc[16, "lead"] == 2.0
    assert summary.skipped(rows).to_dict("records") == [{"alternative": "branch batch", "reason": "time", "cells": 2}]


def test_goals_are_judged_and_say_why_where_they_are_missed():
    """Auto loses one of three cells by more than a tenth; one of the two timed twice as the same kernel lies apart."""
    heads = dict(query_heads=8, kv_heads=2, head_dim=64, shape="kary:2")
    timings = table({"auto": [1.0, 1.0, 1.5], "onepass": [1.0, 1.0, 1.0], "folded": [1.0, 3.0, 3.0],
                     "dense mask": [6.0, 12.0, None]}).assign(**heads)
    flushed = table({"onepass": [1.0, None, 4.0]}, prefix=4096).assign(**heads)
    flushed["draft"] = flushed["draft"].replace({1: 8, 16: 64})
    roof = flushed[["dtype", "batch", "prefix", "draft", *heads]].assign(cold_ms=[0.5, 1.0, 3.6], bytes=1, operations=1)
    forward = pd.DataFrame([
        ("forward, tree", 0, 1.0), ("forward, tree", 4096, 2.0), ("forward, transformers", 0, 1.0),
        ("forward, transformers", 4096, 11.0), ("attention", 4096, 10.0), ("append", 4096, 0.5), ("keep", 4096, 0.5),
    ], columns=["what", "prefix", "median_ms"]).assign(draft=64, dtype="float32")
    assert summary.noise(timings) == (0.5, 2)
    others = flushed.iloc[:0].assign(**heads)
    peaks = pd.DataFrame({"device": "cpu", "what": ["products float32"], "value": [2.0]})
    found = summary.goals(timings, flushed, others, roof, forward, peaks).set_index("goal")
    assert found["met"].to_dict() == {
        "auto within a tenth of the fastest": False, "folded over dense mask, float32": False,
        "8/2 heads of 64, draft 64 and more, float32": True, "8/2 heads of 64, draft 8, float32": False,
        "a whole forward's prefix, float32": True, "append and keep, float32": False}
    assert found["reached"].tolist() == [
        "67% of 3", "4.9 times", "90% (1 cell)", "50% (1 cell)", "0.100", "10.0%"]
    assert ((found["why"] == "") == found["met"]).all()
    short = forward[forward["prefix"] == 4096].assign(prefix=64)
    alone = timings.assign(kv_heads=8), flushed[:0], flushed.assign(kv_heads=8), roof.assign(kv_heads=8), short, peaks
    alone = summary.goals(*alone)
    assert alone["goal"].tolist() == ["auto within a tenth of the fastest", "8/8 heads of 64, draft 64 and more, float32"]
    assert alone["met"].tolist() == [False, True]


def test_a_gpu_is_judged_by_goals_of_its_own():
    """Reading where keys are many and rows few; a tree beside a chain; 16 nodes beside one; leads over the others."""
    heads = dict(query_heads=32, kv_heads=8, head_dim=128, shape="kary:2")
    timings = table({"triton": [1.0, 1.05, 1.3], "auto": [1.0, 1.05, 1.3], "as a chain": [1.0, 1.0, 1.3],
                     "flex": [2.0, 2.0, 2.0], "dense mask": [4.0, 4.0, None]}, prefix=2**16).assign(**heads)
    roof = timings[["dtype", "batch", "prefix", "draft", *heads]].drop_duplicates()
    roof = roof.assign(warm_ms=[0.9, 0.9, 0.5], bytes=[3e8, 3e8, 3e8], operations=1)
    forward = pd.DataFrame([
        ("forward, tree", 0, 1.0), ("forward, tree", 64, 1.0), ("forward, transformers", 0, np.nan),
        ("forward, transformers", 64, np.nan), ("attention", 64, 1.0), ("append", 64, 1.0), ("keep", 64, 1.0),
    ], columns=["what", "prefix", "median_ms"]).assign(draft=64, dtype="float32")
    peaks = pd.DataFrame({"device": "cuda", "what": ["products float32"], "value": [2.0]})
    found = summary.goals(timings, timings[:0], timings[:0], roof, forward, peaks).set_index("goal")
    assert found["met"].to_dict() == {
        "auto within a tenth of the fastest": True, "many keys for at most 128 rows a key head": True,
        "a tree over a chain of as many nodes, there": True, "16 nodes over one, there": False,
        "the best form over flex": True, "the best form over dense mask": False}
    assert found["reached"].tolist()[1:] == [
        "86% (3 cells, 38% to 90%)", "1.02 times (2 cells, 1.00 to 1.05)", "1.30 times (1 cell)",
        "1.8 times (3 cells, 1.5 to 2.0)", "3.9 times (2 cells, 3.8 to 4.0)"]


def test_runs_are_laid_beside_each_other_goal_by_goal():
    """Of the runs that are kept in the project; the one without matrix units may have goals that the other lacks."""
    results = Path(study.__file__).parents[3] / "data" / "results"
    beside = summary.goals_by_machine([results / "reference", results / "amx"])
    assert list(beside)[0].startswith("reference: ") and list(beside)[1].startswith("amx: ") and "AMX" in list(beside)[1]
    own = summary.goals_of(results / "amx").set_index(["goal", "asked"])
    told = beside.iloc[:, 1][lambda column: column != ""]
    assert set(told.index) == set(own.index) and told.str.endswith("(missed)").sum() == (~own["met"]).sum()


def test_the_best_of_several_is_chosen_cell_by_cell():
    rows = table({"folded": [1.0, 1.0, 1.0], "path by path": [2.0, 4.0, None], "node by node": [1.0, 9.0, 8.0]})
    best = summary.with_best(rows, ["path by path", "node by node"], "best")
    assert best.loc[best["alternative"] == "best", "median_ms"].tolist() == [1.0, 4.0, 8.0]
    means = summary.geometric_means(best).set_index("alternative")
    assert means.loc["best", "mean"] == pytest.approx(32 ** (1 / 3))


def test_every_figure_shows_every_dtype_even_with_gaps():
    gappy = {"folded": [1.0, 1.0, 4.0], "dense mask": [2.0, None, None], "node by node": [1.0, 2.0, None]}
    rows = pd.concat([table(gappy), table(gappy, prefix=512), table(gappy).assign(dtype="bfloat16")])
    rows = rows.assign(lower_ms=rows["median_ms"] * 0.9, upper_ms=rows["median_ms"] * 1.1)
    drawn = [figures.growth_over_draft(rows, {"float32": 2.0, "bfloat16": 3.0}), figures.who_wins(rows),
             figures.ratio_to_base(rows), figures.time_over_draft(rows, "float32")]
    titles = [[axis.get_title() + axis.get_title("left") for axis in figure.axes] for figure in drawn]
    assert titles[1] == titles[2] == ["float32", "bfloat16"] and len(titles[0]) == 2 and len(titles[3]) == 2
    for figure in drawn:
        plt.close(figure)


def test_free_until_interpolates_in_logarithms():
    """Time 1 at 4 tokens and 4 at 16: it doubles at 8."""
    free = summary.free_until(table({"folded": [1.0, 1.0, 4.0]}), tolerance=1.0).iloc[0]
    assert free["free"] == pytest.approx(8.0) and not free["beyond"]
    free = summary.free_until(table({"folded": [1.0, 1.0, 1.1]})).iloc[0]
    assert free["free"] == pytest.approx(16.0) and free["beyond"]


def test_growth_begins_with_the_shortest_draft_and_needs_a_longer_one():
    """A prefix at which one token was skipped, or all but one token, says nothing about what is free."""
    rows = pd.concat([table({"folded": [1.0, 1.0, 4.0]}), table({"folded": [None, 1.0, 1.1]}, prefix=512),
                      table({"folded": [1.0, None, None]}, prefix=2048)])
    assert set(summary.growth(rows)["prefix"]) == set(summary.free_until(rows)["prefix"]) == {128}
    assert summary.growth(rows[rows["draft"] == 1])["growth"].tolist() == [1.0, 1.0]
    assert set(summary.growth(rows[rows["draft"] > 1])["prefix"]) == {128, 512}


def test_auto_is_judged_by_the_fastest_of_the_others():
    rows = table({"auto": [1.05, 1.2, 3.9], "folded": [1.0, 1.0, 4.0], "dense mask": [2.0, 2.0, 8.0]})
    chosen = summary.regret(rows)
    assert chosen["ratio"].tolist() == pytest.approx([1.05, 1.2, 0.975])
    assert chosen["within"].tolist() == [True, False, True]
    alone = table({"auto": [1.0, 1.0, 1.0], "folded": [1.0, 1.0, None]})
    assert summary.regret(alone)["draft"].tolist() == [1, 4]
    assert set(summary.winners(rows)["alternative"]) == {"folded"}


def test_a_cell_s_roofline_is_the_longer_of_reading_and_arithmetic():
    """Few nodes wait for memory, many for arithmetic; keys that fit the caches are read at the caches' bandwidth."""
    few, many = (study.Cell(1, 1000, draft, "float32", 8, 2, 64) for draft in (1, 200))
    row = study.roofline_row(few, PEAKS, few.key_bytes)
    assert row["bytes"] == 2 * 2 * 1001 * 64 * 4 + 2 * 8 * 64 * 4
    assert row["operations"] == 4 * 64 * 8 * 1001
    assert row["cold_ms"] == pytest.approx(1e3 * row["bytes"] / 1e10) and row["warm_ms"] < row["cold_ms"]
    row = study.roofline_row(many, PEAKS, 0)
    assert row["cold_ms"] == row["warm_ms"] == pytest.approx(1e3 * row["operations"] / 2e11)


def test_shares_of_the_roofline_and_what_auto_is_told(tmp_path):
    """From measured rows; a share is the roofline's time over the measured one, a choice row one of our own forms."""
    cell = study.Cell(2, 64, 9, "float32", 8, 2, 16)
    rows = study.fill(tmp_path, "attention", [cell], limits=study.Limits(2.0, 1.0, 3), peaks=PEAKS, seed=0)
    cold = study.fill(tmp_path, "attention_cold", [cell], limits=study.Limits(2.0, 1.0, 3), peaks=PEAKS, seed=0)
    roof = study.roofline_row(cell, PEAKS, 2**20)
    shares = summary.shares(cold, pd.DataFrame([roof]), "cold_ms").set_index("alternative")
    assert shares.loc["folded", "share"] == pytest.approx(roof["cold_ms"] / shares.loc["folded", "median_ms"])
    assert set(shares.index) <= {*study.COLD} and (shares["rate"] > 0).all()
    choices = study.choice_rows(rows)
    assert {row["backend"] for row in choices} >= {"folded", "split"} and all(row["rows"] == 36 for row in choices)
    write(tmp_path, "attention_choice", choices, "mark")
    again = study.fill(tmp_path, "attention", [cell], limits=study.Limits(2.0, 1.0, 3), peaks=PEAKS, seed=0)
    assert again["median_ms"].equals(rows["median_ms"])  # what is done is not done again
    drawn = figures.roofline(summary.shares(rows, pd.DataFrame([roof])),
                             {"bandwidth": 1e10, "cached bandwidth": 1e11, "throughput float32": 2e11,
                              "products float32": 1e11}, ("folded",))
    assert [axis.get_title() + axis.get_title("left") for axis in drawn.axes] == ["float32"]
    plt.close(drawn)


def test_a_cell_in_which_a_backend_was_skipped_decides_nothing():
    """The one that there was no time for may be the fastest."""
    rows = table({"folded": [1.0, 1.0, 4.0], "split": [2.0, 2.0, 8.0], "onepass": [0.5, 0.5, None]})
    rows = rows.assign(query_heads=4, kv_heads=2, head_dim=64)
    assert {row["rows"] for row in study.choice_rows(rows)} == {2, 8}
