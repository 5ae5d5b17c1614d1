"""Speed's rows and their sums; lockstep by replay and live; memory as the caches have it. No time is asserted."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib import alternatives, lockstep, memory, shapes, speed, study, trace
from lib.alternatives import GENERATE, PLAIN
from lib.cache import TreeCache
from lib.decoding import generate, in_batches
from lib.drafters import LanguageModelDrafter
from lib.models import Pair
from lib.tables import Table
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
KINDS = ("code", "code", "prose", "prose")
ASKED = study.Prompts(tuple("abcd"), KINDS, tuple(PROMPTS), np.zeros(4, bool))


@pytest.fixture
def pair():
    for model in (TARGET, DRAFTER):
        model.generation_config.eos_token_id = None
    return Pair("t/d", TARGET, LanguageModelDrafter(DRAFTER), _Tokenizer(), "t", "d")


class _Tokenizer:
    eos_token_id = None


def test_every_way_writes_what_generate_writes_and_an_interrupted_table_goes_on(pair, tmp_path):
    ways = alternatives.all_of(
        pair, {("top_k", "chain:3"): "chain:3", ("lookup", "chain:3"): "chain:3"}, draft=3, new_tokens=8
    )
    settings = dict(repeats=1, generator=torch.Generator().manual_seed(0))

    def stopped(prompts):
        raise KeyboardInterrupt

    broken = [*ways, alternatives.Alternative("stopped", stopped)]
    table = Table(tmp_path, "speed", "mark")
    with pytest.raises(KeyboardInterrupt):
        speed.measure(table, pair, broken, ASKED, batch=1, **settings)
    for batch in (1, 2, 3):
        speed.measure(table, pair, ways, ASKED, batch=batch, **settings)
        speed.measure(table, pair, ways, ASKED, batch=batch, **settings)  # nothing is left to do
    rows = table.frame()
    assert rows["same"].all() and (rows["tokens"] == 8 * rows["batch"]).all()
    assert (rows.groupby("batch").size() == [4 * len(ways), 2 * (len(ways) - 4), 2 * (len(ways) - 4)]).all()
    left = speed.outside(rows)
    assert ((left["outside"] > 0) & (left["outside"] < 1)).all() and PLAIN in set(left["alternative"])


def test_groups_hold_one_kind_and_fill_up_by_repeating():
    found = [(name, kind, [len(prompt) for prompt in prompts]) for name, kind, prompts in speed.groups(ASKED, 3)]
    assert found == [("a", "code", [3, 11, 3]), ("c", "prose", [6, 17, 6])]


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
    found = speed.factors(rows, np.random.default_rng(0)).set_index("alternative")
    assert found.loc[PLAIN, "value"] == pytest.approx(4.0)
    assert found.loc["top_k, chain:4", "over_plain"] == pytest.approx(3.0)
    assert np.allclose(found["value"], found["loop"] * found["over_plain"])


def test_the_chosen_tree_is_the_fastest_of_what_replay_and_calibration_say(pair):
    recorded = speed.continued(pair, ASKED, 12)
    trees = speed.candidates(recorded, "d", ["chain", "optimal"], [2, 4])
    said = speed.choose(pair, ASKED, recorded, trees, batch=2, new_tokens=12, repeats=1)
    assert set(said["shape"]) == {"chain@2", "chain@4", "optimal@2", "optimal@4"}
    assert said["speed"].is_monotonic_decreasing and (said["tokens"] >= 1).all()


@pytest.mark.parametrize("shape", ["chain:4", "kary:2@6"])
def test_lockstep_by_replay_is_what_the_loop_does_in_step(shape):
    """Texts stay the target's own; rounds of a batch are those that replay counts."""
    recorded = trace.record(TARGET, {"d": DRAFTER}, PROMPTS, names="abcd", kinds=KINDS, max_new_tokens=20)
    ids, mask = next(in_batches(PROMPTS, 4))
    settings = dict(attention_mask=mask, shape=shape, max_new_tokens=21)
    ragged = generate(TARGET, LanguageModelDrafter(DRAFTER), ids, **settings)
    even = generate(TARGET, LanguageModelDrafter(DRAFTER), ids, **settings, hooks=lockstep.LOCKSTEP)
    assert even.new_tokens == ragged.new_tokens
    found = lockstep.compare(recorded, {shape: shapes.parse(shape)}, [1, 4], "t/d", "d")
    four = found[found["batch"] == 4].iloc[0]
    assert four["lockstep"] == sum(done.row == 0 for done in even.rounds)
    assert four["ragged"] == max(sum(done.row == row for done in ragged.rounds) for row in range(4))
    assert (found[found["batch"] == 1]["lockstep"] == found[found["batch"] == 1]["ragged"]).all()


def test_memory_is_what_the_caches_hold(pair):
    """Both caches at their fullest, of a batch that decodes to the given length."""
    tree = shapes.parse("kary:2@14")
    ids = torch.stack(small_models.prompts(4, (120, 120)))
    done = generate(TARGET, pair.drafter, ids, shape=tree, max_new_tokens=20)
    held = max(found.cache_bytes for found in done.rounds)
    said = memory.needs(TARGET, DRAFTER, tree, batch=2, tokens=139)
    assert said.caches == held
    parameters = {p.data_ptr(): p for p in TARGET.parameters()}
    assert said.target_weights >= sum(p.nbytes for p in parameters.values())
    row = memory.row(pair, "kary:2@14", tree, batch=2, tokens=139)
    assert row["alone"] < said.together and row["extra"] == pytest.approx(said.together / row["alone"] - 1)


@torch.no_grad()
def test_one_token_takes_what_the_cache_takes_for_it():
    cache = TreeCache()
    TARGET(torch.ones(1, 128, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert cache.pending == 128 and cache.bytes == 128 * memory.token_bytes(TARGET)
