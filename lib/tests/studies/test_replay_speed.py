"""The benchmark measures what it says; what it finds is not tested."""

import numpy as np
import pytest
import torch

from lib import replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.studies.acceptance import CHAINED_REPLAY, EVERY_START, INDEX, LIVE, further_findings, live
from lib.tests import small_models
from lib.tests.replay.test_replay import synthetic


def test_random_trees_have_so_many_nodes_and_differ():
    trees = live.random_trees(12, np.random.default_rng(0))
    made = [next(trees) for _ in range(20)]
    assert {tree.budget for tree in made} == {12} and len(set(made)) > 15


def test_a_trace_is_widened_by_repeating_its_rows():
    made = synthetic(np.random.default_rng(0), rows=4, width=10)
    wide = live.widened(made, 100)
    assert 100 <= wide.positions < 100 + made.lengths.max()
    assert wide.prompts[:5] == ("0", "1", "2", "3", "0")
    with pytest.raises(ValueError, match="no transitions to repeat"):
        live.widened(replay.Trace(**{**vars(made), "lengths": np.zeros(4, int)}), 10)


def test_every_way_is_measured():
    target = small_models.llama(0)
    model = small_models.related(target, 1, noise=0.3)
    prompts = small_models.prompts(0, (5, 8))
    made = replay.record(target, {"d": model}, prompts, names="ab", kinds="kk", max_new_tokens=12)
    found = live.replay_speed(
        made, "d", target, LanguageModelDrafter(model), prompts, new_tokens=4, seconds=2.0,
        generator=torch.Generator().manual_seed(0), nodes=6, positions=300,
    )
    assert list(found["way"]) == [EVERY_START, CHAINED_REPLAY, INDEX, LIVE]
    assert (found["repeats"] >= 3).all() and (found["lower"] <= found["seconds"]).all()
    text = further_findings.replay_speed(found).text
    assert text.startswith("Of trees with 6 nodes, ") and text.endswith("times faster than live decoding.")
    none = found.assign(repeats=[3, 3, 3, 0])
    assert further_findings.replay_speed(none).text.endswith("did not fit into the time that the benchmark was given.")
    none = further_findings.replay_speed(found.assign(repeats=0))
    assert none.text.startswith("Three replays of a few trees did not fit")
    assert found["times_live"].iloc[-1] == 1 and found["trees_a_second"].iloc[0] == 1 / found["seconds"].iloc[0]
