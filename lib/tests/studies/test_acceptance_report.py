"""The report: every study's parts in order, answers at the end, and the acceptance findings from the committed run."""

from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lib.cost import recommendation
from lib.cost.recommendation import ONE, Interval
from lib.lab import provenance, theme
from lib.lab.findings import Finding, Results
from lib.studies import report
from lib.studies.acceptance import findings, summary
from lib.studies.acceptance.shape_findings import Shapes, at_budget
from lib.studies.advice import answer
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
    monkeypatch.setattr(report.answer, "opening", lambda run: iter(()))
    monkeypatch.setattr(report, "import_module", lambda name: studies[name.split(".")[2]])
    *parts, last = report.parts(None, None, None)
    assert parts == ["text", Finding("A claim."), "more"]
    assert last == ("## 9 What follows\n\n**How deep, how wide?** Deep.\n\n**Which text?** Any. Your own.\n\n"
                    "**New?** Yes.")


def test_answers_are_computed_after_all_studies_are_shown(monkeypatch):
    order = []
    studies = {"first": study(Follows("Which text?", lambda: order.append("answer") or "")), "second": study("shown")}
    monkeypatch.setattr(report, "STUDIES", tuple(studies))
    monkeypatch.setattr(report.answer, "opening", lambda run: iter(()))
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


def test_the_acceptance_sections_answer_four_questions(run):
    parts = list(findings.report(run, Ask.of(run), np.random.default_rng(0)))
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


def test_the_first_page_says_what_recommendation_json_says(run, tmp_path):
    """A tree that beats the chain, a gain that is not certain, and plain decoding each have their own sentence."""
    made = recommendation.load(run.run_dir / recommendation.FILE)
    one, *_ = made.by_batch
    batches = [replace(one, batch=1, drafter="sam", tree="kary:2@6", speedup=Interval(2.0, 1.5, 2.5),
                       over_chain=Interval(1.1, 1.05, 1.2)),
               replace(one, batch=4, drafter="lookup", tree="chain:1", budget=1, speedup=Interval(1.02, 0.9, 1.1),
                       over_chain=ONE),
               replace(one, batch=8, drafter="none", tree="chain:0", speedup=ONE, over_chain=Interval(1.3, 1.2, 1.4))]
    replace(made, by_batch=batches).save(tmp_path / recommendation.FILE)
    text, figure = answer.opening(Results(tmp_path))
    assert text.startswith("**In short**") and "`sam` with `kary:2@6`" in text and "2.00 [1.50, 2.50]" in text
    assert "beside the best chain**: 1.10 [1.05, 1.20] times as fast at batch 1." in text
    assert "At batch 4 speculation is not faster" in text and "Batch 8: plain decoding." in text
    assert figure.claim == "Speculation gains most at small batches." and len(figure.figure.axes) == 3
    theme.close(figure.figure)
    [sentence] = answer.opening(Results(tmp_path / "nothing"))
    assert sentence.startswith("**In short** This run made no recommendation")
