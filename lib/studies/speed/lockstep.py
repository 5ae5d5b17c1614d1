"""The batch in lockstep: all rows stop at the first row's rejection, as simple implementations do; beside the ragged.

Under greedy verification both are exact by replay: a row that is held back goes on from where it was stopped, and its
text is the same.
"""

from typing import Mapping, Sequence

import numpy as np
import pandas as pd

from lib import replay
from lib.decoding.hooks import Decision, Hooks
from lib.replay.trace import Trace
from lib.trees.shapes import parse
from lib.trees.tree import Tree
from lib.verify.draft import Draft


def in_step(drafts: list[Draft], decisions: list[Decision]) -> list[Decision]:
    """Every row cut to the fewest accepted tokens of all; what was accepted next becomes the bonus token."""
    shared = min(len(accepted) for accepted, _ in decisions)
    return [
        (accepted, bonus) if len(accepted) == shared else (accepted[:shared], int(draft.tokens[accepted[shared]]))
        for draft, (accepted, bonus) in zip(drafts, decisions)
    ]


LOCKSTEP = Hooks(revise=in_step)  # for `decoding.generate`


def rounds_together(accepted: Sequence[np.ndarray]) -> int:
    """Rounds until all rows are through in lockstep: accepted[b][t] is what row b accepts in a round from t.

    A round advances each by 1 + the fewest that any row still running accepts; rows leave at their ends.
    """
    at, rounds = 0, 0
    while running := [row for row in accepted if at < len(row)]:
        at += 1 + min(int(row[at]) for row in running)
        rounds += 1
    return rounds


def rounds_apart(accepted: Sequence[np.ndarray]) -> int:
    """Rounds until all rows are through, each at its own pace: those of the slowest."""
    return max((rounds_together([row]) for row in accepted), default=0)


def compare(
    recorded: Trace, trees: Mapping[str, str | Tree], batches: Sequence[int], pair: str, drafter: str
) -> pd.DataFrame:
    """Rows of the table "lockstep": groups of prompts in the order of the trace, kinds mixed, as a server meets them.

    Only whole groups count. Batches of one are the yardstick: there both are the same.
    """
    ends = np.cumsum(recorded.lengths)[:-1]
    rows = []
    for label, tree in trees.items():
        own = np.split(replay.accepted_lengths(recorded, parse(tree), drafter), ends)
        for batch in batches:
            for first in range(0, len(own) - batch + 1, batch):
                group = own[first : first + batch]
                rows.append(
                    {
                        "pair": pair,
                        "shape": label,
                        "batch": batch,
                        "prompt": recorded.prompts[first],
                        "kind": recorded.kinds[first] if batch == 1 else "mixed",
                        "tokens": max(map(len, group)),
                        "lockstep": rounds_together(group),
                        "ragged": rounds_apart(group),
                    }
                )
    return pd.DataFrame(rows)
