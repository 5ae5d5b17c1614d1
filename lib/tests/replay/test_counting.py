"""Which rounds count, for a process whose mean accepted length is known: the rounds that start before the limit, decided
to their ends, give the mean within its interval. Leaving out or capping the rounds that the limit cuts does not.
"""

from dataclasses import replace

import numpy as np
import pytest

from lib import replay
from lib.lab import stats
from lib.replay import acceptance
from lib.trees import shapes

AGREES, DEPTH, LIMIT, ROWS = 0.7, 8, 48, 4000  # the drafter's favourite is the target's token so often, independently
TRUE = sum(AGREES**depth for depth in range(1, DEPTH + 1))  # 2.199
TREE = shapes.chain(DEPTH)


def recorded(beyond, protocol=acceptance.CONTINUATION):
    """Texts of LIMIT transitions and some beyond; rank 0 where the drafter agrees."""
    rng, width = np.random.default_rng(0), LIMIT + beyond
    zeros, limits = np.zeros((ROWS, width), np.float32), np.full(ROWS, LIMIT)
    ranks = (rng.random((ROWS, width)) >= AGREES).astype(np.int32)
    return replay.Trace(np.zeros((ROWS, width + 1), np.int32), limits, np.zeros(ROWS, bool), limits, zeros,
                        {"d": ranks}, {}, {}, tuple(map(str, range(ROWS))), ("k",) * ROWS,
                        {"target": "t", "protocol": protocol, "temperature": 0.0})


def mean(rows):
    return stats.ratio(rows["accepted"], rows["rounds"], np.random.default_rng(1))


def of_rounds(rows, accepted):
    """The mean of rounds of these rows of the trace, with its interval."""
    sums = [np.bincount(rows, values, minlength=ROWS) for values in (accepted, np.ones(len(rows)))]
    return stats.ratio(*sums, np.random.default_rng(1))


@pytest.mark.parametrize("beyond", [DEPTH + 1, 0], ids=["decided past the limit", "a log that ends"])
def test_counted_rounds_recover_the_mean(beyond):
    found = mean(acceptance.evaluate(recorded(beyond), "d", [("chain", DEPTH, TREE)]))
    assert found.low < TRUE < found.high and found.high - found.low < 0.06


def test_real_text_starts_recover_the_mean():
    found = mean(acceptance.evaluate(recorded(DEPTH + 1, acceptance.REAL_TEXT), "d", [("chain", DEPTH, TREE)]))
    assert found.low < TRUE < found.high


def test_rounds_that_the_limit_cuts_are_no_loss():
    """The two ways that are biased: without the rounds that reach past the limit, and with these cut there."""
    walk = acceptance.rounds_of(recorded(DEPTH + 1), TREE, "d")
    left = LIMIT - walk.starts
    whole = walk.accepted < left
    dropped = of_rounds(walk.rows[whole], walk.accepted[whole])
    capped = of_rounds(walk.rows, np.minimum(walk.accepted, left))
    assert max(dropped.high, capped.high) < TRUE - 0.03 and dropped.value < capped.value


def test_a_text_that_eos_ends_counts_as_it_stands():
    """Rounds then end where the text does: they are what a user gets, and no later token would have been written."""
    made = recorded(0)
    ended = replace(made, ended=np.ones(ROWS, bool))
    walk = acceptance.rounds_of(ended, TREE, "d")
    assert (walk.starts + walk.accepted <= LIMIT).all() and (walk.starts + DEPTH > LIMIT).any()
    decided = acceptance.rounds_of(made, TREE, "d")
    assert (decided.starts + DEPTH + 1 <= LIMIT).all()
