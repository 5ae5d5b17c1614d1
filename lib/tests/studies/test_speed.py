"""Speed's rows and their sums; lockstep by replay and live; memory as the caches have it. No time is asserted."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost, replay
from lib.cost import calibration, ways
from lib.cost.recommendation import FILE, NO_DRAFTER
from lib.cost.ways import GENERATE, MIXED
from lib.decoding import Round, generate, in_batches
from lib.decoding.records import Hooks
from lib.drafters import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import processor, tables
from lib.lab.tables import Table
from lib.models import Pair
from lib.models.cache import TreeCache
from lib.studies.acceptance import recording
from lib.studies.speed import alternatives, findings, measure, memory, prediction
from lib.studies.speed.alternatives import PLAIN
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.studies.test_advice_study import told
from lib.trees import shapes

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
KINDS = ("code", "code", "prose", "prose")
ASKED = recording.Prompts(tuple("abcd"), KINDS, tuple(PROMPTS), np.zeros(4, bool))


@pytest.fixture
def pair():
    for model in (TARGET, DRAFTER):
        model.generation_config.eos_token_id = None
    return Pair("t/d", TARGET, DRAFTER, _Tokenizer(), "t", "d")


class _Tokenizer:
    eos_token_id = None


def test_every_way_writes_what_generate_writes_and_an_interrupted_table_goes_on(pair, tmp_path):
    ways = alternatives.all_of(
        pair, {("model", "chain:3"): "chain:3", ("lookup", "chain:3"): "chain:3"}, draft=3, new_tokens=8
    )
    settings = dict(repeats=1, generator=torch.Generator().manual_seed(0))

    def stopped(prompts):
        raise KeyboardInterrupt

    broken = [*ways, alternatives.Alternative("stopped", stopped)]
    table = Table(tmp_path, "speed", "mark")
    with pytest.raises(KeyboardInterrupt):
        measure.measure(table, pair, broken, ASKED, batch=1, **settings)
    for batch in (1, 2, 3):
        measure.measure(table, pair, ways, ASKED, batch=batch, **settings)
        measure.measure(table, pair, ways, ASKED, batch=batch, **settings)  # nothing is left to do
    rows = table.frame()
    assert rows["same"].all() and (rows["tokens"] == 8 * rows["batch"]).all()
    assert (rows.groupby("batch").size() == [4 * len(ways), 2 * (len(ways) - 4), 2 * (len(ways) - 4)]).all()
    left = measure.outside(rows)
    assert ((left["outside"] > 0) & (left["outside"] < 1)).all() and PLAIN in set(left["alternative"])


def test_whole_rounds_are_those_in_which_every_row_runs():
    def record(row, accepted):
        return Round(row, 0, 2, accepted, (0,) * accepted, True, 1, 1, 0.25, 0.5, 0.25, 0, 0.5)

    rounds = [record(0, 1), record(1, 2), record(0, 0), record(1, 1), record(0, 2)]
    assert calibration.full_rounds(rounds, 2) == [rounds[:2], rounds[2:4]] and calibration.full_rounds([], 2) == []
    assert measure.one_per_round(rounds) == [rounds[0], rounds[2], rounds[4]] and measure.one_per_round([]) == []


@pytest.mark.parametrize("spec", [alternatives.OWN, "lookup"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_policy_that_may_stop_writes_the_same_text(pair, rows, spec):
    price = cost.Costs(test_cost.table()).at("t", "d", prefix=64)
    way = alternatives.adaptive(pair, spec, price, price, "chain:4", "up to 4", 20)
    done, plain = way.run(PROMPTS[:rows]), ways.ours(pair, NoDrafter(), "chain:0", 20)(PROMPTS[:rows])
    assert done.tokens == plain.tokens and {found.drafted for found in done.rounds} <= set(range(5))


def test_what_decides_about_rows_is_made_once_a_run(tmp_path):
    made = []

    def make(value):
        made.append(value)
        return test_cost.table(scale=value)

    first, again = (tables.once(tmp_path, "speed_costs", "mark", lambda: make(value)) for value in (1.0, 2.0))
    assert made == [1.0] and first["draft_ms"].tolist() == again["draft_ms"].tolist()
    other = tables.once(tmp_path, "speed_costs", "other", lambda: make(3.0))
    assert other["draft_ms"].iloc[1] != first["draft_ms"].iloc[1]
    assert len(tables.once("", "speed_costs", "mark", lambda: make(4.0))) == len(first) and made == [1.0, 3.0, 4.0]


def test_hindsight_takes_each_prompts_fastest():
    rows = pd.DataFrame([("p", 1, name, prompt, 10, seconds) for name, prompt, seconds in (
        ("a", "x", 1.0), ("a", "y", 4.0), ("b", "x", 2.0), ("b", "y", 2.0), ("c", "x", 0.1))],
        columns=["pair", "batch", "alternative", "prompt", "tokens", "seconds"])
    added = measure.with_hindsight(rows, ["a", "b"]).query("alternative == @measure.HINDSIGHT").set_index("prompt")
    assert added["seconds"].to_dict() == {"x": 1.0, "y": 2.0}


def rows_by_round(rounds):
    """How many rows run in each round."""
    counts, last = [], len(PROMPTS)
    for one in rounds:
        counts += [0] if one.row <= last else []
        counts[-1], last = counts[-1] + 1, one.row
    return counts


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_predictions_meet_what_a_clock_that_keeps_to_the_costs_would_say(pair, batch):
    """Rounds whose seconds are the calibrated ones of the rows that run in them: predicted and measured speed agree."""
    recorded = measure.continued(pair, ASKED, 20, 3)
    costs = cost.Costs(pd.concat([test_cost.table(batch=size, scale=size).assign(target="t", drafter=alternatives.OWN)
                                  for size in (1, 3)]))
    shape, measured = "chain:3", []
    for label, drafter in ((shape, LanguageModelDrafter(pair.draft_model)), ("", NoDrafter())):
        tree = shapes.parse(label or "chain:0")
        for name, kind, prompts in ways.groups(ASKED, batch):
            done = ways.ours(pair, drafter, tree, 20)(prompts)
            seconds = sum(costs.at("t", alternatives.OWN, batch=rows, prefix=64).round(tree)
                          for rows in rows_by_round(done.rounds))
            named = f"{alternatives.OWN}, {label}" if label else PLAIN
            measured.append(dict(pair="t/d", batch=batch, alternative=named, shape=label, kind=kind,
                                 drafter=alternatives.OWN if label else "", tokens=sum(map(len, done.tokens)),
                                 round_seconds=seconds))
    compiled = measured[0] | {"alternative": f"{alternatives.OWN}, {shape}, compiled", "round_seconds": 1.0}
    measured.append(compiled)  # another way of running the same, which the calibration says nothing of
    found = prediction.compare(pd.DataFrame(measured), recorded, costs, alternatives.OWN, {shape: shape},
                                     {"code": 64.0, "prose": 64.0}, np.random.default_rng(0))
    assert len(found) == (2 if batch == 3 else 4) and found["error"].abs().max() < 1e-9
    assert prediction.errors(found)[1] < 1e-9
    slower = found.assign(measured=found["measured"] / 2, error=2 * (found["error"] + 1) - 1)
    assert prediction.errors(slower)[0] == pytest.approx(1)
    assert prediction.errors(prediction.of_speedups(slower))[1] < 1e-9
    assert set(prediction.of_speedups(slower)["shape"]) == {shape}


def test_groups_hold_one_kind_where_it_has_enough_prompts():
    found, mixed = ([(name, kind, list(map(len, prompts))) for name, kind, prompts in ways.groups(ASKED, size)]
                    for size in (2, 3))
    assert found == [("a", "code", [3, 11]), ("c", "prose", [6, 17])]
    assert mixed == [("a", MIXED, [3, 11, 6]), ("d", MIXED, [17, 3, 11])]


def test_gains_are_geometric_means_of_prompts_and_the_two_factors_multiply():
    speeds = {GENERATE: (1.0, 1.0), PLAIN: (2.0, 8.0), "top_k, chain:4": (6.0, 24.0)}
    rows = pd.DataFrame(
        [
            {"pair": "p", "batch": 1, "alternative": name, "prompt": f"{i}", "kind": "k", "tokens": 10,
             "seconds": 10 / value}
            for name, values in speeds.items()
            for i, value in enumerate(values)
        ]
    )
    found = measure.factors(rows, np.random.default_rng(0)).set_index("alternative")
    assert found.loc[PLAIN, "value"] == pytest.approx(4.0)
    assert found.loc["top_k, chain:4", "over_plain"] == pytest.approx(3.0)
    assert np.allclose(found["value"], found["loop"] * found["over_plain"])


def test_the_runs_own_recommendation_is_quoted_and_another_is_made_where_it_does_not_fit(tmp_path):
    made, other = told(), told(batch=4)
    made.save(tmp_path / FILE)
    assert measure.recommended(str(tmp_path), "t", "float32", [1], lambda: other).text() == made.text()
    for target, dtype, batches in (("u", "float32", [1]), ("t", "bfloat16", [1]), ("t", "float32", [1, 4])):
        assert measure.recommended(str(tmp_path), target, dtype, batches, lambda: other) is other
    assert measure.recommended("", "t", "float32", [1], lambda: other) is other
    assert made.at(1).sentence in findings.quoted(made).text


def test_what_is_recommended_is_decoded_and_may_be_plain(pair):
    advised = alternatives.advised(pair, told().at(1), 8)
    plain = told(drafter=NO_DRAFTER, tree="chain:0", choices=[], budget=0, depth=0).at(1)
    assert (advised.drafter, advised.shape) == ("lookup", "chain:2")
    own = ways.ours(pair, NoDrafter(), "chain:0", 8)(PROMPTS).tokens
    assert advised.run(PROMPTS).tokens == alternatives.advised(pair, plain, 8).run(PROMPTS).tokens == own


def in_step(drafts, decisions):
    """Every row cut to the fewest accepted tokens of all rows; its next accepted token becomes the bonus token."""
    shared = min(len(accepted) for accepted, _ in decisions)
    return [(accepted, bonus) if len(accepted) == shared else (accepted[:shared], int(draft.tokens[accepted[shared]]))
            for draft, (accepted, bonus) in zip(drafts, decisions)]


@pytest.mark.parametrize("shape", ["chain:4", "kary:2@6"])
def test_lockstep_by_replay_is_what_the_loop_does_in_step(shape):
    """Texts stay the target's own; rounds of a batch are those that replay counts."""
    recorded = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names="abcd", kinds=KINDS, max_new_tokens=20)
    ids, mask = next(in_batches(PROMPTS, 4))
    settings = dict(attention_mask=mask, shape=shape, max_new_tokens=21)
    ragged = generate(TARGET, LanguageModelDrafter(DRAFTER), ids, **settings)
    even = generate(TARGET, LanguageModelDrafter(DRAFTER), ids, **settings, hooks=Hooks(revise=in_step))
    assert even.new_tokens == ragged.new_tokens
    found = prediction.lockstep(recorded, {shape: shapes.parse(shape)}, [1, 4], "t/d", "d")
    four = found[found["batch"] == 4].iloc[0]
    assert four["lockstep"] == sum(done.row == 0 for done in even.rounds)
    assert four["ragged"] == max(sum(done.row == row for done in ragged.rounds) for row in range(4))
    assert (found[found["batch"] == 1]["lockstep"] == found[found["batch"] == 1]["ragged"]).all()


def test_memory_is_what_the_caches_hold(pair):
    """Both caches at their fullest, of a batch that decodes to the given length."""
    tree = shapes.parse("kary:2@14")
    ids = torch.stack(small_models.prompts(4, (120, 120)))
    done = generate(TARGET, LanguageModelDrafter(pair.draft_model), ids, shape=tree, max_new_tokens=20)
    held = max(found.cache_bytes for found in done.rounds)
    said = memory.needs(TARGET, DRAFTER, tree, batch=2, tokens=139)
    assert said["target_cache"] + said["drafter_cache"] == held
    parameters = {p.data_ptr(): p for p in TARGET.parameters()}
    assert said["target_weights"] >= sum(p.nbytes for p in parameters.values())
    row = memory.row(pair, "kary:2@14", tree, batch=2, tokens=139)
    together = held + said["target_weights"] + said["drafter_weights"] + said["logits"]
    assert row["alone"] < together and row["extra"] == pytest.approx(together / row["alone"] - 1)


def test_the_measured_peak_holds_caches_and_grows_with_the_batch(pair):
    tree, prompts = shapes.parse("kary:2@14"), small_models.prompts(4, (30, 30))
    one, two = (memory.peak(pair, LanguageModelDrafter(pair.draft_model), tree, prompts[:rows], 8) for rows in (1, 2))
    needed = memory.needs(TARGET, DRAFTER, tree, batch=1, tokens=37)
    assert needed["target_cache"] + needed["drafter_cache"] < one < two < 2.5 * one
    table = memory.table(pair, {1: ("kary:2@14", tree), 2: ("kary:2@14", tree)}, prompts[:1], 8)
    assert list(table["batch"]) == [1, 2] and (table["peak"] > table["peak_alone"]).all()


def test_a_drafter_takes_part_where_the_pair_can_have_it(pair):
    base, alone = replace(pair, target_name="base"), replace(pair, draft_model=None)
    asked = ["lookup:frequent", "eagle", alternatives.OWN, "lookup:frequent"]
    assert alternatives.possible(base, asked) == [alternatives.OWN, "lookup:frequent", "eagle"]
    assert alternatives.possible(pair, asked) == [alternatives.OWN, "lookup:frequent"]
    assert alternatives.possible(alone, asked) == ["lookup:frequent"]
    names = {way.name for way in alternatives.all_of(alone, {}, draft=3, new_tokens=8)}
    assert names == {GENERATE, ways.LOOKUP, PLAIN}
    with pytest.raises(ValueError, match="drafter is 'topk'"):
        alternatives.possible(base, ["topk"])


@torch.no_grad()
def test_one_token_takes_what_the_cache_takes_for_it():
    cache = TreeCache()
    TARGET(torch.ones(1, 128, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert cache.pending == 128 and cache.bytes == 128 * memory.token_bytes(TARGET)


def test_each_number_format_speaks_its_own_targets_text_in_every_way_of_decoding(monkeypatch, pair):
    other = small_models.llama(5)  # whose text is another
    other.generation_config.eos_token_id = None
    pairs = {"float32": pair, "bfloat16": Pair("t/d", other, DRAFTER, _Tokenizer(), "t", "d")}
    monkeypatch.setattr(memory, "load_pair", lambda name, dtype, **kwargs: pairs[dtype])
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"amx_bf16"}))
    formats = [("float32", "none"), ("bfloat16", "none")]
    drafting = {"model": ("two", "chain:2"), "lookup": ("chain:3", "chain:3")}
    rows = memory.compare_formats("t/d", ASKED, drafting, new_tokens=8, device="cpu", formats=formats,
                                  generator=torch.Generator().manual_seed(0))
    assert len(rows) == 4 * 2 * 3 and set(rows["alternative"]) == {PLAIN, "model, two", "lookup, chain:3"}
    alone = {way: ways.ours(pairs[way], NoDrafter(), shapes.parse("chain:0"), 8)(PROMPTS).tokens
             for way, _ in formats}
    shared = [next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), 8) for texts in zip(*alone.values())]
    for dtype, wanted in (("float32", [8] * 4), ("bfloat16", shared)):
        for _, own in rows[rows["dtype"] == dtype].groupby("alternative"):
            assert own["agreeing"].tolist() == wanted
    said = memory.by_format(rows, np.random.default_rng(0))
    assert (said.xs(PLAIN, level="alternative")["value"] == 1).all() and said["n_prompts"].eq(4).all()
    assert said.loc[("float32", "none"), "text shared with the first row"].eq(1).all()
    monkeypatch.setattr(processor, "flags", lambda: frozenset())
    rows = memory.compare_formats("t/d", ASKED, drafting, new_tokens=8, device="cpu", formats=formats,
                                  generator=torch.Generator().manual_seed(0))
    assert set(rows["dtype"]) == {"float32"}, "bfloat16 is left out where the processor has no units for it"
    assert "no units" in findings.number_formats(rows, np.random.default_rng(0)).text
