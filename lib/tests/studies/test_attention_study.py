"""The study: each cell gives a row per alternative, with times or a reason; summaries and findings follow from rows."""

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
from lib.lab.tables import Table, read, schema_of, write
from lib.studies.attention import figures, findings, summary
from lib.studies.attention import measure as study
from lib.studies.attention import peaks as roofs
from lib.studies.attention.baselines import QUICK, SEQUENTIAL
from lib.studies.report import Ask

PEAKS = roofs.Peaks(1e10, {"float32": 1e11})


def measured(cell, **changes):
    limits = study.Limits(**{"seconds": 2.0, "memory_gb": 1.0, "repeats": 3, **changes})
    return study.measure(cell, limits=limits, generator=torch.Generator().manual_seed(0))


def test_a_cell_gives_a_row_for_every_alternative_in_the_table_s_columns():
    rows = measured(study.Cell(2, 16, 5, "float32", 4, 2, 8))
    assert [row["alternative"] for row in rows] == list(QUICK)
    assert all(list(row) == list(schema_of("attention").columns) for row in rows)
    timed = [row for row in rows if not row["skipped"].startswith("refused: ")]
    assert {row["alternative"] for row in timed} >= {"auto", "folded", "split", "dense mask"}
    assert all(row["repeats"] == 3 and 0 < row["lower_ms"] <= row["median_ms"] <= row["upper_ms"] for row in timed)


def test_a_cell_and_an_alternative_name_a_row_of_the_table():
    names = [field.name for field in dataclasses.fields(study.Cell)]
    assert (*names, "alternative") == schema_of("attention").key


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
    """Inputs over the memory limit, or one alternative's copies over it."""
    huge = study.Cell(10**6, 10**6, 64, "float32", 32, 8, 128)
    assert all("keys and values need" in row["skipped"] and row["repeats"] == 0 for row in measured(huge))
    rows = {row["alternative"]: row for row in measured(study.Cell(1, 512, 32, "float32", 4, 2, 8), memory_gb=5e-4)}
    assert "memory: needs" in rows["branch batch"]["skipped"] and not rows["folded"]["skipped"]


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


def test_findings_leave_out_a_number_format_that_was_not_timed_and_say_so(without_bfloat16):
    rows = [row for dtype in ("float32", "bfloat16") for draft in (1, 4)
            for row in measured(study.Cell(1, 8, draft, dtype, 4, 2, 8))]
    timings = pd.DataFrame(rows)
    assert "no units for bfloat16, which was not timed" in findings.skipped(timings).text
    assert list(findings.alternatives(timings).table) == ["float32"]
    assert set(findings.free_nodes(timings).table.index.get_level_values("dtype")) == {"float32"}


def test_the_report_s_part_is_made_of_the_tables_of_a_run():
    run = Results(Path(study.__file__).parents[3] / "data" / "results" / "reference")
    parts = list(findings.appendix(run, Ask("base/small", 16), np.random.default_rng(0)))
    assert parts[0].startswith("## ")
    shown = [part for part in parts if isinstance(part, Finding)]
    assert [part.name for part in shown if part.figure] == ["attention_time", "attention_roofline"]
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
    assert kept["value"].to_dict() == {"bandwidth": 1e10, "throughput float32": 1e11}
    assert kept["unit"].tolist() == ["bytes/s", "operations/s"]
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
    means = summary.geometric_means(rows)["float32"]
    assert means.to_dict() == pytest.approx({"folded": 1.0, "dense mask": 2.0, "branch batch": 1.0})
    best = summary.winners(rows).set_index("draft")["alternative"]
    assert best[4] == "folded" and best[16] == "dense mask"


def test_a_figure_has_a_panel_for_every_prefix_even_with_gaps():
    gappy = {"folded": [1.0, 1.0, 4.0], "dense mask": [2.0, None, None], "node by node": [1.0, 2.0, None]}
    rows = pd.concat([table(gappy), table(gappy, prefix=512), table(gappy).assign(dtype="bfloat16")])
    rows = rows.assign(lower_ms=rows["median_ms"] * 0.9, upper_ms=rows["median_ms"] * 1.1)
    drawn = figures.time_over_draft(rows, "float32")
    assert [axis.get_title() + axis.get_title("left") for axis in drawn.axes] == ["prefix 128", "prefix 512"]
    plt.close(drawn)


def test_free_until_interpolates_in_logarithms():
    """Time 1 at 4 tokens and 4 at 16: it is a quarter longer at 5."""
    assert summary.free_until(table({"folded": [1.0, 1.0, 4.0]}))["free"].tolist() == pytest.approx([5.0])
    assert summary.free_until(table({"folded": [1.0, 1.0, 1.1]}))["free"].tolist() == pytest.approx([16.0])


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
    """Few nodes wait for memory, many for arithmetic."""
    cells = [study.Cell(1, 1000, draft, "float32", 8, 2, 64) for draft in (1, 200)]
    few, many = study.roofline_rows(cells, PEAKS)
    assert few["bytes"] == 2 * 2 * 1001 * 64 * 4 + 2 * 8 * 64 * 4
    assert few["operations"] == 4 * 64 * 8 * 1001
    assert few["least_ms"] == pytest.approx(1e3 * few["bytes"] / 1e10)
    assert many["least_ms"] == pytest.approx(1e3 * many["operations"] / 1e11)


def test_shares_of_the_roofline_and_what_auto_is_told(tmp_path):
    """From measured rows; a share is the roofline's time over the measured one, a choice row one of our own forms."""
    cell = study.Cell(2, 64, 9, "float32", 8, 2, 16)
    rows = study.fill(tmp_path, "attention", [cell], limits=study.Limits(2.0, 1.0, 3), seed=0)
    cold = study.fill(tmp_path, "attention_cold", [cell], limits=study.Limits(2.0, 1.0, 3), seed=0)
    roof, = study.roofline_rows([cell], PEAKS)
    shares = summary.shares(cold, pd.DataFrame([roof])).set_index("alternative")
    assert shares.loc["folded", "share"] == pytest.approx(roof["least_ms"] / shares.loc["folded", "median_ms"])
    assert set(shares.index) <= {*study.COLD} and (shares["rate"] > 0).all()
    choices = study.choice_rows(rows)
    assert {row["backend"] for row in choices} >= {"folded", "split"} and all(row["rows"] == 36 for row in choices)
    write(tmp_path, "attention_choice", choices, "mark")
    again = study.fill(tmp_path, "attention", [cell], limits=study.Limits(2.0, 1.0, 3), seed=0)
    assert again["median_ms"].equals(rows["median_ms"])  # what is done is not done again
    drawn = figures.roofline(summary.shares(rows, pd.DataFrame([roof])),
                             {"bandwidth": 1e10, "throughput float32": 1e11}, ("folded",))
    assert [axis.get_title() + axis.get_title("left") for axis in drawn.axes] == ["float32"]
    plt.close(drawn)


def test_a_cell_in_which_a_backend_was_skipped_decides_nothing():
    """The one that there was no time for may be the fastest."""
    rows = table({"folded": [1.0, 1.0, 4.0], "split": [2.0, 2.0, 8.0], "onepass": [0.5, 0.5, None]})
    rows = rows.assign(query_heads=4, kv_heads=2, head_dim=64)
    assert {row["rows"] for row in study.choice_rows(rows)} == {2, 8}
