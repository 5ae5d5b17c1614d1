"""A whole forward: both paths agree, every call starts from the same cache, and the summary subtracts rightly."""

import pandas as pd
import pytest
import torch

from lib.lab.tables import write
from lib.studies.attention import forward as study
from lib.studies.attention import summary
from lib.studies.attention.measure import Cell


def rows():
    return study.forwards(Cell(1, 40, 7, "float32", 4, 2, 16), 2, repeats=3, seconds=5.0, generator=torch.Generator().manual_seed(0))


def test_the_two_paths_agree_and_every_time_is_a_row_of_the_table(tmp_path):
    """That they agree is asserted inside; the caches are put back, or the second call would see a longer prefix."""
    found = rows()
    assert [(row["what"], row["prefix"]) for row in found] == [
        (name, prefix) for prefix in (0, 40) for name in (study.TREE_PASS, study.THEIRS)]
    assert all(row["repeats"] == 3 and row["median_ms"] > 0 for row in found)
    write(tmp_path, "attention_forward", found, "mark")


def test_paths_that_disagree_are_not_timed(monkeypatch):
    right = study._tree_call
    monkeypatch.setattr(study, "_tree_call", lambda model, cell, filling: right(
        model, cell, [(key.flip(2), value) for key, value in filling]))
    with pytest.raises(AssertionError, match="the forward passes differ"):
        rows()


def test_what_a_prefix_costs_is_the_difference_to_none():
    times = {("forward, tree", 0): 10.0, ("forward, tree", 99): 12.0, ("forward, transformers", 0): 11.0,
             ("forward, transformers", 99): 21.0}
    table = pd.DataFrame({"what": what, "prefix": prefix, "draft": 8, "dtype": "float32", "median_ms": ms}
                         for (what, prefix), ms in times.items())
    above = summary.prefix_cost(table).iloc[0]
    assert (above["tree"], above["transformers"], above["ratio"]) == pytest.approx((2.0, 10.0, 0.2))
