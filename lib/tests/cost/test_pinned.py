"""All that the recommendation finds under a clock of known costs, beside what a committed file says.

`python -m lib.tests.cost.test_pinned` writes the file again, after a change that means to change the results.
"""

import json
from dataclasses import asdict
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from lib import cost
from lib.cost import recommendation, served
from lib.cost.candidates import Limits
from lib.models.prompts import PromptSet
from lib.tests import small_models
from lib.tests.cost import test_recommendation as plainly
from lib.tests.cost import test_served as of_logs

FILE = Path(__file__).parents[1] / "files" / "recommended.json"
OF_MACHINE = ("device", "processor", "threads", "versions")
IDS = small_models.prompts(7, [9 + row % 6 for row in range(20)])


def prompts_of(rows):
    return PromptSet(tuple(f"p{row}" for row in rows), tuple("ab"[row % 2] for row in rows),
                     tuple(IDS[row] for row in rows))


def told_of(made):
    return {name: value for name, value in asdict(made).items() if name not in OF_MACHINE}


def rows_of(**tables):
    """Of each table the columns and the rows."""
    return {name: [list(table.columns), *table.to_numpy().tolist()] for name, table in tables.items()}


def recommended():
    """At two batch sizes, with growth rules, a drafter that is decoded live and one that reads the text."""
    model = small_models.related(plainly.TARGET, 4, 0.05)
    model.name_or_path = "org/drafter"
    plainly.CLOCK.now = 0.0
    found = cost.recommend(
        [plainly.pair_of(model)], prompts_of(range(10)), prompts_of(range(10, 20)), batches=[1, 2], new_tokens=10,
        drafters=["lookup", "recycling", "model"], limits=Limits(7, 3), seconds=1.0,
        generate=plainly.costing(0.05, 0.02, unit=2e-4), clock=plainly.CLOCK, report=lambda line: None)
    return {"recommendation": told_of(found.recommendation), "text": found.recommendation.text().split("\n")[1:],
            "judging": found.judging.names,
            **rows_of(advice_candidates=found.candidates, advice_timed=found.timed, costs=found.costs,
                      advice_errors=found.errors)}


def from_logs():
    price = {batch: {"": each, "model": each} for batch, each in served.computed(
        "AVX2 laptop, float32", 1e9, 1e8, [1, 8], 8).items()}
    made = [served.recommend(of_logs.tried(), price[batch], batch, of_logs.texts(), np.random.default_rng(0))
            for batch in price]
    whole = served.ForLogs("t", "AVX2 laptop, float32", 0.0, len(of_logs.PROMPTS), recommendation.with_schedule(made))
    return {"served": asdict(whole), "text": whole.text().split("\n")}


def plain(value):
    """As JSON has it: null for NaN, and numbers of eight digits, which keep the file small."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return None if isnan(value) else float(f"{value:.8g}")
    return value


FOUND = {"recommended": recommended, "from_logs": from_logs}


def assert_same(found, wanted, where):
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name in wanted:
            assert_same(found[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted)):
            assert_same(one, other, f"{where}[{at}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-6), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", FOUND)
def test_the_results_are_those_of_the_file(name):
    wanted = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert_same(json.loads(json.dumps(plain(FOUND[name]()))), wanted, name)


if __name__ == "__main__":
    FILE.write_text("{\n" + ",\n".join(
        f'"{name}": {{\n' + ",\n".join(f'"{part}": {json.dumps(plain(value))}' for part, value in make().items())
        + "\n}" for name, make in FOUND.items()) + "\n}\n", encoding="utf-8")
