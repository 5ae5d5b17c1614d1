"""The schedule by batch size and length of the text: prompts as long as they should be, and a row for each cell."""

from collections import Counter
from functools import partial

import pytest

from lib.forward import load_pair
from lib.lab import tables
from lib.lab.chapter import Store
from lib.models.prompts import FAMILY, PromptSet
from lib.study import schedule
from lib.study.bench import Bench
from lib.study.candidates import engine_ways
from lib.study.speed import measure_ways
from lib.tests.engines.stand_in import StandIn
from lib.tests.letters import Letters


@pytest.mark.parametrize("tokenizer, around", [(Letters(), 0), (Letters("yes"), len("<user><bot>"))])
def test_prompts_of_a_length(tokenizer, around, tmp_path):
    read = schedule.prompts_of_length(tokenizer, 300, FAMILY)
    assert {len(ids) for ids in read.ids} == {300 + around}
    assert len(set(read.names)) == len(read.ids) == 12 and set(Counter(read.kinds).values()) == {2}
    with pytest.raises(ValueError, match="no kind of text in .* has 2 x 1000000 tokens"):
        schedule.prompts_of_length(tokenizer, 10**6, FAMILY)
    (tmp_path / "one.py").write_text("x = 1\n" * 900)  # its whole text, where a prompt would be its beginning
    assert schedule.prompts_of_length(tokenizer, 2500, tmp_path).names == ("py-2500-0", "py-2500-1")


def test_each_batch_size_and_length_has_its_fastest_way(tmp_path):
    pair = load_pair("base/tiny-base")
    engine = StandIn(pair.target)
    bench = Bench(engine, Store(tmp_path, "05", "x"), "base", PromptSet((), (), ()), (), 8, {1: 8, 2: 4, 400: 4}, 4,
                  pair.eos_token_ids)
    ways = engine_ways(bench.backend, {"lookup": pair}, (1, 2, 4))

    steps = partial(measure_ways, ways=ways, most_nodes=4, most_raced=3)
    schedule.measure(bench, pair.tokenizer, [24, 48], steps)
    rows = tables.read(tmp_path, "05_schedule")
    assert set(zip(rows["length"], rows["batch"])) == {(24, 1), (24, 2), (48, 1), (48, 2)}, "400 texts are too many"
    assert ((rows["nodes"] > 0) == (rows["way"] != "plain")).all() and (rows["value"] >= 1).all()
    started = len(engine.started)
    schedule.measure(bench, pair.tokenizer, [24, 48], steps)
    assert len(engine.started) == started
