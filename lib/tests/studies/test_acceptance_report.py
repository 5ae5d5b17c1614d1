"""The report: every study's parts in order, answers at the end, and the acceptance findings from the committed run."""

from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lib.lab import provenance, theme
from lib.lab.findings import Finding, Results
from lib.studies import report
from lib.studies.acceptance import findings, summary
from lib.studies.acceptance.shape_findings import Shapes, at_budget
from lib.studies.report import Ask, Follows

matplotlib.use("agg")
REFERENCE = provenance.HOME / "data" / "results" / "reference"


@pytest.fixture(scope="module")
def run():
    return Results(REFERENCE)


@pytest.fixture(scope="module")
def shapes(run):
    return Shapes(run, "base/small", 16, np.random.default_rng(0))


def study(*parts):
    return SimpleNamespace(report=lambda run, ask, rng: iter(parts))


def test_a_new_study_is_in_the_report_by_its_name_alone(monkeypatch):
    studies = {"first": study("text", Follows("Which text?", lambda: "Any."), Finding("A claim.")),
               "new": study("more", Follows("How deep, how wide?", lambda: "Deep."), Follows("New?", lambda: "Yes."),
                            Follows("Which text?", lambda: "Your own."))}
    monkeypatch.setattr(report, "STUDIES", tuple(studies))
    monkeypatch.setattr(report, "import_module", lambda name: studies[name.split(".")[2]])
    *parts, last = report.parts(None, None, None)
    assert parts == ["text", Finding("A claim."), "more"]
    assert last == ("## 9 What follows\n\n**How deep, how wide?** Deep.\n\n**Which text?** Any. Your own.\n\n"
                    "**New?** Yes.")


def test_answers_are_computed_after_all_studies_are_shown(monkeypatch):
    order = []
    studies = {"first": study(Follows("Which text?", lambda: order.append("answer") or "")), "second": study("shown")}
    monkeypatch.setattr(report, "STUDIES", tuple(studies))
    monkeypatch.setattr(report, "import_module", lambda name: studies[name.split(".")[2]])
    for part in report.parts(None, None, None):
        order.append(part if part == "shown" else "follows")
    assert order == ["shown", "answer", "follows"]


def test_the_readers_choices_are_checked_against_the_run(run):
    ask, first = Ask.of(run), run["rank"].iloc[0]
    assert (ask.pair, ask.budget) == (f"{ask.target}/{ask.drafter}", 16)
    assert (ask.target, ask.drafter) == (first["target"], first["drafter"])
    assert Ask.of(run, pair="base/tiny", budget=5).budget == 8  # one of 1, 2, 4, .. 64
    with pytest.raises(ValueError, match=f"pair is 'foo', which this run does not have; choose one of .*{ask.pair}"):
        Ask.of(run, pair="foo")


def test_the_acceptance_sections_begin_with_the_headline_and_answer_four_questions(run):
    parts = list(findings.report(run, Ask.of(run), np.random.default_rng(0)))
    assert parts[0].startswith("**In short**")
    assert [part.question for part in parts if isinstance(part, Follows)] == list(report.QUESTIONS[:4])
    figures = [part for part in parts if isinstance(part, Finding) and part.figure]
    assert len({part.name for part in figures}) == len(figures) and all(part.name for part in figures)
    for part in figures:
        theme.close(part.figure)


def test_the_depth_of_a_tree_is_that_of_its_own_protocol(run, shapes):
    """Of each family and budget a run has one tree per protocol and temperature; the first row need not be the one."""
    rows = pd.DataFrame([dict(pair="t/d", protocol=protocol, temperature=heat, family="frequent", budget=8, depth=depth)
                         for protocol, heat, depth in (("x", 0.0, 7), ("y", 0.0, 4), ("y", 1.0, 2))])
    estimates = rows[rows["temperature"] == 0].drop(columns="depth").assign(value=2.0)
    found = summary.of_oracle(estimates, rows)
    assert list(found["depth"]) == [7, 4] and list(found["share"]) == [2 / 7, 2 / 4]
    nodes = shapes.nodes[shapes.nodes["family"] == "frequent"]
    table = at_budget(shapes, np.random.default_rng(0)).table
    assert table.loc["frequent", "depth"] == nodes["depth"].max()


def test_the_headline_has_the_numbers_of_the_run(shapes):
    best = shapes.by_family.loc[("optimal", 64)]
    assert f"the optimal tree {best.value:.2f} [{best.low:.2f}, {best.high:.2f}]" in findings.headline(shapes)
