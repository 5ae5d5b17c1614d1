"""The rows of the speed study, the ways that take part, and number formats. No time is asserted."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib import cost
from lib.cost import calibration, ways
from lib.cost.recommendation import FILE, NO_DRAFTER
from lib.cost.ways import GENERATE, MIXED
from lib.decoding import Round
from lib.drafters.drafter import NoDrafter
from lib.forward.load import formats_of
from lib.lab import processor, tables
from lib.lab.chapter import Store
from lib.lab.tables import Table
from lib.measure import speed
from lib.measure.speed import PLAIN
from lib.models import checks
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.measure.test_advice_tables import told
from lib.trees import named

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
KINDS = ("code", "code", "prose", "prose")
ASKED = PromptSet(tuple("abcd"), KINDS, tuple(PROMPTS))


@pytest.fixture
def pair():
    for model in (TARGET, DRAFTER):
        model.generation_config.eos_token_id = None
    return Pair("t/d", TARGET, DRAFTER, _Tokenizer(), "t", "d")


class _Tokenizer:
    eos_token_id = None


def test_every_way_writes_what_generate_writes_and_an_interrupted_table_goes_on(pair, tmp_path):
    trees = {("model", "chain:3"): "chain:3", ("lookup", "chain:3"): "chain:3"}
    ways = speed.all_of(pair, trees, draft=3, new_tokens=8)
    settings = dict(repeats=1, generator=torch.Generator().manual_seed(0))

    def stopped(prompts):
        raise KeyboardInterrupt

    broken = [*ways, speed.Alternative("stopped", stopped)]
    table = Table(tmp_path, "speed", "mark")
    with pytest.raises(KeyboardInterrupt):
        speed.race(table, pair, broken, ASKED, batch=1, **settings)
    for batch in (1, 2, 3):
        speed.race(table, pair, ways, ASKED, batch=batch, **settings)
        speed.race(table, pair, ways, ASKED, batch=batch, **settings)  # nothing is left to do
    rows = table.frame()
    assert rows["same"].all() and (rows["tokens"] == 8 * rows["batch"]).all()
    assert (rows.groupby("batch").size() == [4 * len(ways), 2 * (len(ways) - 4), 2 * (len(ways) - 4)]).all()
    ours = rows[rows["rounds"].notna()]
    assert (ours["model_seconds"] < ours["round_seconds"]).all() and PLAIN in set(ours["alternative"])


def test_whole_rounds_are_those_in_which_every_row_runs():
    def record(row, accepted):
        return Round(row, 0, 2, accepted, (0,) * accepted, True, 1, 0.25, 0.5, 0.25, 0.5)

    rounds = [record(0, 1), record(1, 2), record(0, 0), record(1, 1), record(0, 2)]
    assert calibration.full_rounds(rounds, 2) == [rounds[:2], rounds[2:4]] and calibration.full_rounds([], 2) == []
    assert ways.one_per_round(rounds) == [rounds[0], rounds[2], rounds[4]] and ways.one_per_round([]) == []


@pytest.mark.parametrize("spec", [speed.MODEL, "lookup"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_policy_that_may_stop_writes_the_same_text(pair, rows, spec):
    price = cost.CostTable(test_cost.table()).at("t", "d")
    way = speed.adaptive(pair, spec, price, price, 4, 20)
    done, plain = way.run(PROMPTS[:rows]), ways.ours(pair, NoDrafter(), "chain:0", 20)(PROMPTS[:rows])
    assert done.tokens == plain.tokens and {found.drafted for found in done.rounds} <= set(range(5))


def test_what_decides_about_rows_is_made_once_a_run(tmp_path):
    made = []

    def make(value):
        made.append(value)
        return test_cost.table(scale=value)

    first, again = (Store(tmp_path, "mark").once("speed_costs", lambda: make(value)) for value in (1.0, 2.0))
    assert made == [1.0] and first["draft_ms"].tolist() == again["draft_ms"].tolist()
    other = Store(tmp_path, "other").once("speed_costs", lambda: make(3.0))
    assert other["draft_ms"].iloc[1] != first["draft_ms"].iloc[1] and made == [1.0, 3.0]


def test_groups_hold_one_kind_where_it_has_enough_prompts():
    found, mixed = ([(name, kind, list(map(len, prompts))) for name, kind, prompts in ways.groups(ASKED, size)]
                    for size in (2, 3))
    assert found == [("a", "code", [3, 11]), ("c", "prose", [6, 17])]
    assert mixed == [("a", MIXED, [3, 11, 6]), ("d", MIXED, [17, 3, 11])]


def test_seconds_after_a_prefill_whose_end_is_known_are_those_of_the_rounds():
    done = ways.Continued([[1, 2, 3], [4, 5]], [], prefilled=3.0)
    known, unknown = speed.counted(done, 1.0, 5.0), speed.counted(replace(done, prefilled=float("nan")), 1.0, 5.0)
    assert (known["tokens"], known["seconds"], known["round_seconds"]) == (5, 4.0, 2.0)
    assert np.isnan(unknown["round_seconds"]) and unknown["seconds"] == 4.0


def test_the_runs_own_recommendation_is_taken_and_another_is_made_where_it_does_not_fit(pair, tmp_path):
    store, own = Store(tmp_path, "mark"), dict(dtype=pair.dtype)
    made, other = replace(told(), **own), replace(told(batch=4), **own)
    assert speed.recommended(store, pair, [1], lambda: other) is other
    made.save(tmp_path / FILE)
    assert speed.recommended(store, pair, [1], lambda: other).text() == made.text()
    assert speed.recommended(store, pair, [1, 4], lambda: other) is other
    assert speed.recommended(store, replace(pair, target_name="u"), [1], lambda: other) is other
    replace(made, dtype="int8").save(tmp_path / FILE)
    assert speed.recommended(store, pair, [1], lambda: other) is other


def test_what_is_recommended_is_decoded_and_may_be_plain(pair):
    plain = told(drafter=NO_DRAFTER, tree="chain:0", choices=[], budget=0, depth=0).at(1)
    texts = ways.ours(pair, NoDrafter(), "chain:0", 8)(PROMPTS).tokens
    for own in (told().at(1), plain):
        advised = speed.drafted(speed.ADVISED, pair, own.drafter, own.tree, own.shape, 8)
        assert (advised.drafter, advised.shape) == (own.drafter, own.tree) and advised.run(PROMPTS).tokens == texts


def test_a_drafter_takes_part_where_the_pair_can_have_it(pair):
    base, alone = replace(pair, target_name="small"), replace(pair, draft_model=None)
    asked = ["lookup:3", "eagle3", speed.MODEL, "lookup:3"]
    assert speed.possible(base, asked) == [speed.MODEL, "lookup:3", "eagle3"]
    assert speed.possible(pair, asked) == [speed.MODEL, "lookup:3"]
    assert speed.possible(alone, asked) == ["lookup:3"]
    names = {way.name for way in speed.all_of(alone, {}, draft=3, new_tokens=8)}
    assert names == {GENERATE, ways.LOOKUP, PLAIN}
    with pytest.raises(ValueError, match="drafter is 'topk'"):
        speed.possible(base, ["topk"])


def test_each_number_format_speaks_its_own_targets_text_in_every_way_of_decoding(pair):
    other = small_models.llama(5)  # whose text is another
    other.generation_config.eos_token_id = None
    pairs = {"float32": pair, "bfloat16": Pair("t/d", other, DRAFTER, _Tokenizer(), "t", "d")}
    drafting = [("model", "chain:2"), ("lookup", "chain:3")]
    rows = speed.in_formats("t/d", {(dtype, "none"): own for dtype, own in pairs.items()}, ASKED, drafting,
                            new_tokens=8, generator=torch.Generator().manual_seed(0))
    assert len(rows) == 4 * 2 * 3 and set(rows["alternative"]) == {PLAIN, "model, chain:2", "lookup, chain:3"}
    alone = {way: ways.ours(pairs[way], NoDrafter(), named("chain:0"), 8)(PROMPTS).tokens
             for way in pairs}
    shared = [next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), 8) for texts in zip(*alone.values())]
    for dtype, wanted in (("float32", [8] * 4), ("bfloat16", shared)):
        for _, own in rows[rows["dtype"] == dtype].groupby("alternative"):
            assert own["agreeing"].tolist() == wanted


def test_sampled_texts_are_timed_in_turns_and_compared_with_the_plain_loop(pair, tmp_path):
    shape = named("kary:2@6")
    rows = speed.sampled(pair, ASKED, [("model", "kary:2@6", shape), ("lookup", "chain:2", "chain:2")], [0.5, 1.0],
                         new_tokens=8, repeats=2, seed=0, generator=torch.Generator().manual_seed(0))
    tables.write(tmp_path, "sampled", rows, "mark")
    assert rows.groupby(["temperature", "alternative", "prompt"]).size().tolist() == [2] * (2 * 3 * 4)
    assert rows["tokens"].eq(8).all() and rows.loc[rows["alternative"] == PLAIN, "accepted"].eq(0).all()
    assert rows["accepted"].sum() > 0


def test_formats_are_those_of_the_processor_and_of_the_file(monkeypatch):
    def load_pair(name, dtype, device):
        number_format, kind = formats_of(dtype, device)[0]
        return SimpleNamespace(target=SimpleNamespace(dtype=number_format, quantised=kind))

    monkeypatch.setattr(speed, "load_pair", load_pair)
    source = SimpleNamespace(kind="gguf")
    monkeypatch.setattr(speed, "sources", lambda name: (source, None))
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    assert list(speed.load_formats("t", "cpu")) == [("float32", "none"), ("float32", "int8"), ("float32", "stored")]
    source.kind = "folder"
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(checks, "own_dtype", lambda device: torch.bfloat16)
    assert list(speed.load_formats("t", "cpu")) == [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")]


@pytest.mark.parametrize("seconds", [0.2, 0.0], ids=["time", "a stall"])
def test_a_pass_costs_what_its_nodes_cost_and_leaves_no_trace(pair, seconds, tmp_path):
    """Each timed call sees the same prefix, and each pass is timed, even where the machine stood still meanwhile."""
    found = speed.passes("t/d", {("float32", "none"): pair}, PROMPTS, prefix=5, seconds=seconds,
                         generator=torch.Generator().manual_seed(0))
    assert found["nodes"].tolist() == list(speed.NODES)
    assert found["median_ms"].gt(0).all()
    tables.write(tmp_path, "format_costs", found, "mark")
