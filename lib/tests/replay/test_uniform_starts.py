"""Chained rounds weigh starts differently from uniform ones, on a trace made for the purpose."""

import numpy as np
import pytest

from lib import replay
from lib.replay import acceptance
from lib.tests.replay.test_replay import synthetic
from lib.trees import Tree, shapes

ABOUT = {"target": "t", "protocol": acceptance.CONTINUATION, "temperature": 0.0}


def of_ranks(ranks, prompts=None, kinds=None):
    """A trace of these ranks int[N, L], without ends or loops."""
    ranks = np.asarray(ranks, dtype=np.int32)
    rows, width = ranks.shape
    made = synthetic(np.random.default_rng(0), rows=rows, width=width)
    full = np.full(rows, width)
    about = {"ranks": {"d": ranks}, "lengths": full, "loops": full, "about": ABOUT}
    return replay.Trace(**{**vars(made), **about, "prompts": prompts or made.prompts, "kinds": kinds or made.kinds})


def test_uniform_starts_tie_where_chained_rounds_do_not():
    made = of_ranks(np.tile([0, 0, 1], 40)[None])
    star = Tree.from_choices([(0,), (1,)])
    chain = shapes.chain(2)
    assert replay.accepted_lengths(made, star).sum() == pytest.approx(replay.accepted_lengths(made, chain).sum(), abs=1)
    assert replay.efficiency(made, star) == 2 and replay.efficiency(made, chain) == 3
