"""Drafters without a model, compared on several targets."""

from lib.lab import tables
from lib.lab.chapter import Store
from lib.measure import two_targets


def test_estimates_of_each_target_are_written_once(tmp_path, monkeypatch):
    settings = dict(choose_prompts=1, judge_prompts=2, new_tokens=8, budgets=[2, 16, 64], dtype="float32",
                    device="cpu", seed=0)
    two_targets.measure(Store(tmp_path, "mark"), targets=["small"], **settings)
    rows = tables.read(tmp_path, "targets")
    assert set(rows["drafter"]) == {"lookup", "sam", "ngrams"} and (rows["low"] <= rows["value"]).all()
    assert rows["n"].max() <= 12
    assert rows[rows["family"] == "chain"]["budget"].max() == 16 and rows["budget"].max() == 64
    assert rows[rows["quantity"] == "rate"]["value"].between(0, 1).all()
    monkeypatch.setattr(two_targets, "load_pair", None)  # a second call measures nothing
    two_targets.measure(Store(tmp_path, "mark"), targets=["small"], **settings)
