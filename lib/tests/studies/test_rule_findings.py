"""Findings of the study of rules, on tables written by hand and on the committed run."""

import numpy as np
import pandas as pd
import pytest

from lib.lab import provenance
from lib.lab.findings import Finding, Page, Results
from lib.studies.report import Ask
from lib.studies.rules import findings, measure
from lib.verify.rules import RULES

RNG = np.random.default_rng(0)
REFERENCE = provenance.HOME / "data" / "results" / "reference"


def rows(*cases):
    """(language, temperature, shape, rule, proposal, accepted) as rows of the table, labelled."""
    names = ["language", "temperature", "shape", "rule", "proposal", "accepted"]
    frame = pd.DataFrame(cases, columns=names).assign(vocabulary=3, seed=0, agreement=0.5, distance=0.0)
    frame["lossless"] = frame["rule"].map(lambda rule: rule == "bound" or RULES[rule].lossless)
    return measure.labelled(frame)


def test_a_gain_counts_the_bonus_token_and_only_what_both_rules_did():
    given = rows(
        (0, 1.0, "chain:2", "multi_step", "iid", 1.0),
        (0, 1.0, "chain:2", "block", "iid", 1.2),
        (1, 1.0, "chain:2", "multi_step", "iid", 1.0),
        (1, 1.0, "chain:2", "block", "iid", 1.2),
        (2, 1.0, "chain:2", "multi_step", "iid", 9.0),  # block was not computed there
        (0, 1.0, "star:2", "multi_step", "iid", 0.1),  # no chain
    )
    found = findings.path_gain(given, ["length"], RNG)
    assert found["value"].tolist() == pytest.approx([10.0]) and found["length"].tolist() == [2]


def test_rules_stand_beside_the_bound_of_their_own_proposal_and_beside_one_yardstick():
    given = rows(
        (0, 1.0, "star:2", "naive", "top_k", 0.6),
        (0, 1.0, "star:2", "naive", "iid", 0.1),  # not what it was made for
        (0, 1.0, "star:2", "bound", "top_k", 0.6),
        (0, 1.0, "star:2", "bound", "without_replacement", 0.8),
        (0, 1.0, "star:3", "naive", "top_k", 0.7),  # without bounds
    )
    own = findings.against_bounds(given)
    assert own[["label", "accepted", "best", "yardstick"]].values.tolist() == [["naive: top k", 0.6, 0.6, 0.8]]


def test_published_directions_are_computed_not_assumed():
    cases = []
    for temperature, better in [(0.5, 0.9), (1.0, 1.3)]:
        for language in range(2):
            for shape in ("chain:1", "chain:2"):
                gain = better - 0.9 if shape == "chain:2" else 0.0
                cases += [(language, temperature, shape, "multi_step", "iid", 1.0)]
                cases += [(language, temperature, shape, "block", "iid", 1.0 + gain)]
            cases += [
                (language, temperature, "star:2", "naive", "iid", 0.5),
                (language, temperature, "star:2", "multi_step", "iid", 0.8),
                (language, temperature, "star:2", "without_replacement", "without_replacement", better),
                (language, temperature, "star:2", "naive", "top_k", 1.0),
            ]
    found = findings.directions(rows(*cases), RNG)
    assert found["agrees"].tolist() == ["yes", "yes", "no", "yes", "yes", "yes"]  # top k is ahead where it is cold


def test_lossy_rules_stand_beside_a_lossless_one():
    given = rows(
        (0, 1.0, "star:2", "typical", "without_replacement", 1.0),
        (0, 1.0, "star:2", "typical", "iid", 1.0),
        (0, 1.0, "star:2", "traversal", "without_replacement", 1.0),
        (0, 1.0, "star:2", "naive", "without_replacement", 1.0),
    )
    assert findings.lossy_beside(given)["rule"].tolist() == ["typical", "traversal"]


def test_the_section_of_the_report_comes_from_tables_alone():
    """Numbers of the committed run, each computed from its tables, in the order of the section."""
    run = Results(REFERENCE)
    ask, page = Ask.of(run), Page("", "09")
    main, more = (list(part(run, ask, np.random.default_rng(0))) for part in (findings.report, findings.appendix))
    shown = [part for part in (*main, *more) if isinstance(part, Finding)]
    captions = [page.caption(part) for part in shown]
    assert [part.name for part in shown if part.figure] == [
        "lossless_or_not", "rules_by_temperature", "gain_by_path", "lossy", "which_rule"
    ]
    assert [len(part.tables) for part in shown] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    worst = run["rules_proof"].groupby("lossless")["worst"].max()
    assert captions[0].startswith("**Figure 1. Lossless rules are lossless") and worst[True] < 1e-12
    assert f"{worst[True]:.0e} for them and {worst[False]:.2f}" in captions[0]
    tests = len(run["rules_law"])
    assert f"0 of {tests} tests refuse" in captions[1] and "`k_seq` for iid; `naive` for top k" in captions[-2]
    assert captions[-1].startswith("**Table 2. Beside what was published: 5 of 6 directions agree")
    assert [part.split("\n")[1][:3] for part in (*main, *more) if isinstance(part, str)] == ["## ", "## "]


def test_the_rule_that_accepts_most_and_the_simpler_of_equals():
    given = rows(
        (0, 1.0, "star:2", "naive", "iid", 0.5),
        (0, 1.0, "star:2", "multi_step", "iid", 0.8),
        (0, 1.0, "star:2", "k_seq", "iid", 0.8),
        (0, 1.0, "star:2", "typical", "iid", 1.2),
        (0, 1.0, "star:2", "bound", "iid", 0.9),
    )
    best = findings.best_rules(given).set_index("lossless")
    assert best["rule"].to_dict() == {True: "multi_step", False: "typical"}
