"""Live rows are those of the loop; expectations have the same settings; who decodes live."""

from dataclasses import replace

from lib.decoding.loop import generate
from lib.drafters.registry import make
from lib.lab import tables
from lib.lab.chapter import Store
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.study import live
from lib.tests import small_models
from lib.tests.live import decode
from lib.tests.replay.test_recording import Tokenizer
from lib.verify.rules import SIMPLEST

TARGET = small_models.llama(3, layers=2)
TARGET.generation_config.eos_token_id = None
PAIRS = [Pair(f"t/{name}", TARGET, small_models.related(TARGET, seed, noise=0.4), Tokenizer(), "t", name)
         for name, seed in (("one", 4), ("two", 5))]
ALONE = replace(PAIRS[0], draft_model=None, drafter_name="none")
PROMPTS = PromptSet(("a", "b", "c"), ("code", "story", "story"), tuple(small_models.prompts(5, (9, 5, 7))))
SHAPES = ["kary:2@6", "chain:2"]
SAMPLED = [("model", rule, shape, 1.0) for shape in SHAPES for rule in SIMPLEST.values()]


def plain(new_tokens=12):
    done = decode(TARGET, make("none", ALONE), PROMPTS.ids, shape="chain:0", max_new_tokens=new_tokens)
    return dict(zip(PROMPTS.names, done.new_tokens))


def decoded(folder, settings, pairs=PAIRS, texts=None):
    store = Store(folder, "02", "m")
    live.decode(store, pairs, PROMPTS, settings, texts or plain(), 12, 0)
    return store.open("live").frame()


def test_every_drafter_writes_the_targets_text_and_a_row_is_its_rounds(tmp_path):
    specs = live.possible(PAIRS)
    assert specs == ["merged", "adaptive:history", "adaptive:complexity", "adaptive:pays"]
    rows = decoded(tmp_path, [(spec, "greedy", shape, 0.0) for spec in specs for shape in SHAPES])
    assert len(rows) == 3 * len(specs) * len(SHAPES) and rows["identical"].all() and not rows["loops"].all()
    one = rows.query("drafter == 'adaptive:history' and shape == 'chain:2'").set_index("prompt")
    for name, ids in zip(PROMPTS.names, PROMPTS.ids):
        done = generate(TARGET, make("adaptive:history", PAIRS[0]), ids[None], shape="chain:2", max_new_tokens=12)
        assert one.loc[name, ["rounds", "accepted", "drafted"]].tolist() == [
            len(done.rounds), sum(record.accepted for record in done.rounds), done.drafted]
    other = plain() | {"b": [0] * 12}
    marked = decoded(tmp_path / "other", [("merged", "greedy", "chain:2", 0.0)], texts=other)
    assert dict(zip(marked["prompt"], marked["identical"])) == {"a": True, "b": False, "c": True}


def test_who_decodes_live():
    assert live.possible(PAIRS[:1]) == ["adaptive:history", "adaptive:complexity", "adaptive:pays"]
    assert live.possible([ALONE]) == []
    assert not any(map(live.is_live, ["model", "lookup", "combined", "eagle3", "random"]))
    assert all(map(live.is_live, ["adaptive:pays", "choosing", "merged"]))


def test_a_stopped_run_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    settings = [(spec, "greedy", "chain:3", 0.0) for spec in ("adaptive:complexity", "merged")] + SAMPLED[-3:]
    whole = decoded(tmp_path / "whole", settings)
    part = decoded(tmp_path / "part", settings[1:3])
    calls, run = [], live.live_rows
    monkeypatch.setattr(live, "live_rows", lambda setting, *rest: calls.append(setting) or run(setting, *rest))
    resumed = decoded(tmp_path / "part", settings)
    assert len(part) == 6 and calls == [settings[0], *settings[3:]]
    key = list(tables.schema("live").key)
    assert resumed.sort_values(key, ignore_index=True).equals(whole.sort_values(key, ignore_index=True))


def test_expectations_and_live_rows_have_the_same_settings(tmp_path):
    store = Store(tmp_path, "02", "m")
    live.expect(store, PAIRS[0], PROMPTS, SHAPES, [0.0, 1.0], 12, 0)
    expected = store.open("expected").frame()
    rules = expected.groupby("shape")["rule"].unique().map(set)
    assert rules["kary:2@6"] == {*live.BY_NODE, "naive"}
    assert rules["chain:2"] == {*live.BY_NODE, "naive", "block"}
    assert (expected["accepted"] <= 6 * expected["rounds"] + 1e-9).all() and set(expected["temperature"]) == {1.0}
    assert {*SIMPLEST.values()} <= {*expected["rule"]}
    live.expect(store, PAIRS[0], PROMPTS, SHAPES, [0.0, 1.0], 12, 0)
    assert store.open("expected").frame().equals(expected)
