"""A run that is killed three times and resumed has the tables of one that was not stopped; see `killed`."""

from lib.tests.lab import killed

SMALL = ("pairs=small/tiny", "budgets=1,4", "depth_budget=4", "new_tokens=8", "live_tokens=4",
         "growth_rules=dyspec")


def test_three_kills_cost_no_finished_row():
    words = ["quick", "02", *(word for setting in SMALL for word in ("--set", setting))]
    killed.check(3, 3, words, seed=1, say=lambda line: None)
