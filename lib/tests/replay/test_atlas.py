"""The atlas: what its file holds gives the rounds that drafting again gives, for static trees and for growth rules."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import SuffixAutomatonDrafter
from lib.models import prompts
from lib.models.load import load_pair
from lib.replay import acceptance, atlas, recording, simulated
from lib.replay.simulated import Recorded
from lib.trees import named, shapes
from lib.trees.growth import BestFirst

PAIR = load_pair("small/tiny", dtype="float64")
NEW, LEAST = 20, 0.15


@cache
def recorded():
    texts = prompts.load("family", PAIR.tokenizer, first=1).select(range(4))
    trace = recording.record(
        PAIR.target, {"tiny": PAIR.draft_model}, texts.ids, names=texts.names, kinds=texts.kinds, max_new_tokens=NEW,
        beyond=atlas.DEPTH + 1, eos_token_id=PAIR.eos_token_ids,
        labels={"target": "small"})
    return Recorded(trace, texts.ids)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    path = tmp_path_factory.mktemp("atlas") / "small.npz"
    atlas.publish(recorded(), {"tiny": LanguageModelDrafter(PAIR.draft_model)}, path)
    return atlas.load(path)


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    columns = ["prompt", "rounds", "drafted", "accepted"]
    pd.testing.assert_frame_equal(one[columns], other[columns])


@pytest.mark.parametrize("name", ["chain:4", "kary:2@14", "independent:3@9"])
def test_static_trees_accept_what_the_trace_says(read, name):
    tree, full = named(name), recorded().trace
    same(atlas.evaluate(read, "tiny", tree),
         acceptance.tally_walk(full, acceptance.rounds_of(full, tree, "tiny")))
    again = SuffixAutomatonDrafter()
    same(atlas.evaluate(read, again, tree), acceptance.tally_walk(full, simulated.rounds(recorded(), again, tree)))


class Sure(BestFirst):
    """Of the best nodes those whose reach is more than LEAST."""

    def keep(self, candidates):
        nodes = candidates.best(self.budget)
        return nodes[candidates.reach[nodes] > LEAST]


@pytest.mark.parametrize("rule", [BestFirst(1, 6), BestFirst(5, 6), BestFirst(24, 6), Sure(12, 6)])
def test_a_growth_rule_accepts_what_drafting_again_accepts(read, rule):
    """Its rounds are those of the drafter itself, from the probabilities in the file alone."""
    walk, full = simulated.rounds(recorded(), LanguageModelDrafter(PAIR.draft_model), rule), recorded().trace
    assert (full.starts(6) == full.starts(atlas.DEPTH)).all(), "both count the same rounds"
    same(atlas.evaluate_rule(read, "tiny", rule.keep), acceptance.tally_walk(full, walk))


def test_a_rule_that_cannot_be_is_named(read, tmp_path):
    with pytest.raises(ValueError, match="keeps node .* without its parent"):
        atlas.evaluate_rule(read, "tiny", lambda candidates: candidates.best(99)[-1:])
    with pytest.raises(ValueError, match="no drafts of 'nano'"):
        atlas.evaluate_rule(read, "nano", lambda candidates: [])
    with pytest.raises(ValueError, match="has tiny"):
        atlas.evaluate(read, "nano", shapes.chain(1))
    with pytest.raises(FileNotFoundError, match="give a file that notebook 2 published"):
        atlas.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(1))
    with pytest.raises(ValueError, match="other.npz is no trace"):
        atlas.load(tmp_path / "other.npz")
