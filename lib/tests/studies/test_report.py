"""The report: every study's sections and appendices in order, the answer, and the findings of the committed run."""

import re
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lib.cost import recommendation
from lib.cost.recommendation import GENERATE, ONE, PLAIN, Interval
from lib.lab import provenance, tables, theme
from lib.lab.findings import Finding, Results
from lib.studies import report
from lib.studies.advice import answer
from lib.studies.report import Ask

matplotlib.use("agg")
REFERENCE = provenance.HOME / "data" / "results" / "reference"


@pytest.fixture(scope="module")
def run():
    return Results(REFERENCE)


def study(main=(), appended=()):
    return SimpleNamespace(report=lambda run, ask, rng: iter(main), appendix=lambda run, ask, rng: iter(appended))


def test_a_new_study_is_in_the_report_by_its_name_alone(monkeypatch):
    """With its machine, where that is not the recommendation's."""
    claim = Finding("A claim.")
    studies = {"first": study(["## One\n\ntext", claim, "### Part"], ["## Details"]),
               "new": study(["## Two", "### Part"], ["text", "## More"])}
    monkeypatch.setattr(report, "STUDIES", tuple(studies))
    notebooks = {"advice": "06_advice", "first": "21_first", "new": "22_new"}
    monkeypatch.setattr(report, "NOTEBOOKS", notebooks)
    monkeypatch.setattr(report, "import_module", lambda name: studies[name.split(".")[2]])
    for module, given in ((report.answer, "opening"), (report.material, "report"),
                          (report.published, "report"), (report, "made_by")):
        monkeypatch.setattr(module, given, lambda *_: iter(()))
    machine = dict(processor="a processor", vector_units="AVX2")
    stages = {name: dict(machine=machine) for name in ("06_advice", "21_first", "22_new")}
    run = SimpleNamespace(record=dict(stages=stages, machine={}))
    contents, *parts = report.parts(run, Ask("t/d", 2), None)
    assert parts == ["## 1 One\n\ntext", claim, "### 1.1 Part", "## 2 Two", "### 2.1 Part", "## A Details", "text",
                     "## B More"]
    assert contents == ("**Contents** [1 One](#1-One) · [2 Two](#2-Two)\n\n"
                        "**Appendices** [A Details](#A-Details) · [B More](#B-More)")
    stages["21_first"] = dict(machine=machine | dict(gpu="a GPU"))
    said = "*Measured on a GPU, while the recommendation is that of a processor, AVX2.*"
    _, *with_machine = report.parts(run, Ask("t/d", 2), None)
    assert with_machine == [parts[0], said, *parts[1:6], said, *parts[6:]]
    del stages["06_advice"]
    assert [*report.parts(run, Ask("t/d", 2), None)][1:] == parts


def test_the_readers_choices_are_checked_against_the_run(run):
    ask, first = Ask.of(run), run["rank"].iloc[0]
    assert (ask.target, ask.drafter) == (first["target"], first["drafter"])
    assert ask.pair == f"{ask.target}/{ask.drafter}"
    recommended = recommendation.load(run.run_dir / recommendation.FILE).by_batch[0].budget
    wanted = recommended if recommended >= report.LEAST else 8  # the middle one of 1, 2, 4, .. 64
    assert 1 / 1.5 <= ask.budget / wanted <= 1.5
    assert Ask.of(run, pair="base/tiny", budget=5).budget == 4
    with pytest.raises(ValueError, match=f"pair is 'foo', which this run does not have; choose one of .*{ask.pair}"):
        Ask.of(run, pair="foo")


def test_the_committed_report_is_short_and_its_figures_have_names(run):
    """The main part has at most 4,000 words and 14 figures."""
    parts = list(report.parts(run, Ask.of(run), np.random.default_rng(0)))
    appended = next(at for at, part in enumerate(parts) if isinstance(part, str) and "\n## A " in f"\n{part}")
    drawn = [part for part in parts if isinstance(part, Finding) and part.figure]
    assert len({part.name for part in drawn}) == len(drawn) and all(part.name for part in drawn)
    main = parts[:appended]
    assert sum(isinstance(part, Finding) and part.figure is not None for part in main) <= 14
    texts = [part if isinstance(part, str) else f"{part.claim} {part.text}" for part in main
             if isinstance(part, str | Finding)]
    assert sum(len(text.split()) for text in texts) <= 4000
    assert not any("nan" in text.split() for text in texts)
    for part in drawn:
        theme.close(part.figure)


def test_the_columns_of_a_run_are_a_file_of_it(run, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "ceilings.csv").touch()
    report.write_columns(Results(tmp_path))
    listed = pd.read_csv(tmp_path / "columns.csv")
    assert set(listed["table"]) == {"ceilings"} and listed["meaning"].notna().all()


def test_the_first_page_says_what_recommendation_json_says(run, tmp_path):
    """A tree that beats the chain, a gain that is not certain, and plain decoding each have their own sentence."""
    made = recommendation.load(run.run_dir / recommendation.FILE)
    one, *_ = made.by_batch
    tree = dict(drafter="sam", pair="p", tree="kary:2@6")
    batches = [replace(one, batch=1, drafter="sam", tree="kary:2@6", speedup=Interval(2.0, 1.5, 2.5),
                       over_chain=Interval(1.1, 1.05, 1.2), tree_over_chain=Interval(1.1, 1.05, 1.2), best_tree=tree,
                       prompts=48),
               replace(one, batch=4, drafter="lookup", tree="chain:1", budget=1, speedup=Interval(1.02, 0.9, 1.1),
                       over_chain=ONE, tree_over_chain=Interval(0.98, 0.91, 1.05), best_tree=tree,
                       reason="gain not shown for answers of 60 tokens: and so on"),
               replace(one, batch=8, drafter="none", tree="chain:0", speedup=ONE, over_chain=Interval(1.3, 1.2, 1.4),
                       tree_over_chain=Interval(0.9, 0.8, 0.95), best_tree=tree, reason="whole calls are slower"),
               replace(one, batch=16, drafter="none", tree="chain:0", speedup=ONE, best_tree=None)]
    replace(made, by_batch=batches).save(tmp_path / recommendation.FILE)
    rates = {PLAIN: (4.0, 9.0, 5.0), GENERATE: (2.0, 3.0, None)}  # of three prompts; one of generate's turns was missed
    rows = [dict(target="t", dtype="float32", batch=1, part="judging", way=way, prompt=f"p{at}", kind="k", repeat=0,
                 tokens=9, seconds=1.0, rate=rate, round_ms=1.0)
            for way, own in rates.items() for at, rate in enumerate(own) if rate]
    tables.write(tmp_path, "advice_timed", pd.DataFrame(rows), "mark")
    text, figure, command, table = answer.opening(Results(tmp_path), np.random.default_rng(0))
    assert "./run_notebooks.sh 06 --set" in command and len(table.table) == 4
    assert text.startswith("**In short**") and "`sam` with `kary:2@6`" in text and "2.00 [1.50, 2.50]" in text
    assert f"{6**0.5:.2f} times as fast as transformers' `generate` at batch 1 (n = 2)." in text
    told = re.search(r"\*\*Tree or chain:\*\* (.*)\.", text)[1].split("; ")
    assert told[0].startswith("at batch 1, the best tree (sam, kary:2@6) is 1.10 [1.05, 1.20] times as fast")
    assert [each.rpartition(": ")[2] for each in told] == [
        "a tree pays", "they cannot be told apart", "no tree pays", "at batch 16, no branching tree was judged"]
    assert "(n = 48)" in told[0]
    assert "At batch 4 the interval of the speedup contains 1" in text
    assert "Batch 4: gain not shown for answers of 60 tokens" in text
    assert "Batch 8: plain decoding**, since whole calls are slower (" in text
    assert figure.claim.endswith("1.02 [0.90, 1.10] times as fast as plain decoding at batch 4. It is not "
                                 "recommended at batch 8 and 16.")
    assert len(figure.figure.axes) == 4
    theme.close(figure.figure)
    [sentence] = answer.opening(Results(tmp_path / "nothing"), np.random.default_rng(0))
    assert sentence.startswith("**In short** This run made no recommendation")
