"""What the tables of rules say, on tables written by hand: gains, bounds, and directions that hold or do not."""

import numpy as np
import pandas as pd
import pytest

from lib.studies.rules import findings, measure

RNG = np.random.default_rng(0)


def rows(*cases):
    """(language, temperature, shape, rule, proposal, accepted) as rows of the table, labelled."""
    names = ["language", "temperature", "shape", "rule", "proposal", "accepted"]
    frame = pd.DataFrame(cases, columns=names).assign(vocabulary=3, seed=0, agreement=0.5, distance=0.0)
    frame["lossless"] = frame["rule"].map(lambda rule: rule == "bound" or measure.RULES[rule].lossless)
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
    found = findings.by_path(given, ["length"], RNG)
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
    found = findings.published(rows(*cases), RNG)
    assert found["agrees"].tolist() == ["yes", "yes", "no", "yes", "yes", "yes"]  # top k is ahead where it is cold


def test_lossy_rules_stand_beside_a_lossless_one():
    given = rows(
        (0, 1.0, "star:2", "typical", "without_replacement", 1.0),
        (0, 1.0, "star:2", "typical", "iid", 1.0),
        (0, 1.0, "star:2", "traversal", "without_replacement", 1.0),
        (0, 1.0, "star:2", "naive", "without_replacement", 1.0),
    )
    assert findings.lossy_beside(given)["rule"].tolist() == ["typical", "traversal"]
