"""The studies of choices and of expectations fill their tables, and their figures show every setting."""

import numpy as np
import pytest

from lib.lab import tables, theme
from lib.models import Pair
from lib.studies.acceptance import live, measure, recording, shape_findings, summary
from lib.tests import small_models

BUDGET = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Greedy traces of both protocols of a random pair."""
    target = small_models.llama(0)
    drafters = {"d": small_models.related(target, 1, noise=0.3)}
    names = [f"{kind}{i}" for kind in "xy" for i in range(4)]
    asked = recording.split_prompts(
        names, [name[0] for name in names], small_models.prompts(0, range(70, 78)), choose=2, judge=2
    )
    settings = dict(temperatures=[0.0], tokens=40, starts=3, horizon=8, eos_token_id=None, seed=0)
    return recording.record("t", target, drafters, asked, **settings, folder=tmp_path_factory.mktemp("t"), report=str)


def test_choices_fill_their_table_and_its_differences_are_paired(made, tmp_path):
    rows = measure.choices(made, BUDGET, np.random.default_rng(0))
    tables.write(tmp_path, "choices", rows, "mark")
    rows = tables.read(tmp_path, "choices")
    rng = np.random.default_rng(0)
    text = summary.by_text(rows, rng)
    assert set(text["prompts"]) == {1, 2} and (text["n_prompts"] == 4).all()  # all four are what is compared with
    needed = shape_findings.text_needed(text)
    assert shape_findings.text_needed(text.iloc[:0]).figure is None
    assert "t/d, `optimal`: chosen from one prompt" in needed.text
    theme.close(needed.figure)


def test_expectations_stand_beside_live_decoding(tmp_path):
    target = small_models.llama(0)

    class Tokenizer:
        eos_token_id = None

    pair = Pair("p", target, small_models.related(target, 1, noise=0.3), Tokenizer(), "t", "d")
    asked = recording.split_prompts(list("abc"), ["k"] * 3, small_models.prompts(0, (9, 12, 5)), choose=0, judge=3)
    shapes = ["kary:2@6", "chain:2"]
    expected = measure.expected(pair, asked, shapes, [0.0, 1.0], new_tokens=12, seed=0)
    tables.write(tmp_path, "expected", expected, "mark")
    assert set(expected.loc[expected["shape"] == "chain:2", "rule"]) == {*measure.BY_NODE, "naive", "block"}
    assert set(expected.loc[expected["shape"] == "kary:2@6", "rule"]) == {*measure.BY_NODE, "naive"}
    decoded = live.sampled(pair, asked, shapes, [0.0, 1.0], new_tokens=12, seed=0)
    tables.write(tmp_path, "live", decoded, "mark")
    both = summary.expected_and_live(expected, decoded)
    assert set(both["how"]) == {"expected", "live"}
    assert set(both["label"]) == {f"{rule}, {shape}, t = 1" for shape in shapes
                                   for rule in ("naive", "multi_step", "without_replacement")}
    assert measure.expected(pair, asked, shapes, [0.0], new_tokens=12, seed=0).empty
