"""How fast replay is, beside decoding the same trees live."""

from itertools import cycle
from typing import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib import replay
from lib.lab import timing
from lib.replay.rank_paths import RankPaths, windows
from lib.replay.trace import Trace
from lib.studies.acceptance import live
from lib.trees.tree import Tree

NODES, POSITIONS = 64, 20_000  # of a tree, and of the trace that it is replayed on
TREES_A_CALL = 10
CONTEXT = 16  # tokens in front of a live continuation
EVERY_START, CHAINED, LIVE = "replay, every start", "replay, chained rounds", "live decoding"  # the ways
INDEX = "index of the trace, once"


def random_trees(nodes: int, generator: np.random.Generator) -> Iterator[Tree]:
    """Trees without end, each grown at random: a node drawn uniformly gets one more child."""
    while True:
        yield Tree([-1, *(int(generator.integers(0, size)) for size in range(1, nodes + 1))])


def widened(recorded: Trace, positions: int) -> Trace:
    """A trace of at least so many positions: its rows in turn, as often as it takes. ValueError for one without any."""
    if not recorded.positions:
        raise ValueError("the trace has no transitions to repeat; record one with longer continuations")
    rows, have = [], 0
    for row in cycle(range(len(recorded.lengths))):
        if have >= positions:
            return recorded.select(np.array(rows))
        rows.append(row)
        have += int(recorded.lengths[row])


def measure(
    recorded: Trace,
    drafter_name: str,
    target,
    drafter,
    prompts: Sequence[Tensor],
    *,
    new_tokens: int,
    seconds: float,
    generator: torch.Generator,
    nodes: int = NODES,
    positions: int = POSITIONS,
) -> pd.DataFrame:
    """One row a way to learn what a tree accepts: replay at every start, replay of chained rounds, live decoding; and
    one of the index that replay makes once a trace.

    recorded: a trace of the pair, its rows repeated up to `positions`. Replay gets random trees that it has not seen.
    Live, one such tree continues the last `CONTEXT` tokens of `prompts` greedily by `new_tokens`, all rows in one
    batch, and the time, to which so short a prefill adds little, is scaled to the positions. Columns: way, nodes,
    positions, seconds a tree (the median of interleaved repeats, with lower and upper quartile), repeats,
    trees_a_second, and times_live, how many times faster than live.
    """
    wide = widened(recorded, positions)
    trees = random_trees(nodes, np.random.default_rng(generator.initial_seed()))
    one, prompts = next(trees), [prompt[-CONTEXT:] for prompt in prompts]
    settings = dict(shape=one, rows=len(prompts), max_new_tokens=new_tokens)
    covered = sum(len(row) - 1 for row in live.decode(target, drafter, prompts, **settings).new_tokens)
    flat, first = windows(wide.drafter_ranks(drafter_name))
    inside = np.arange(first.shape[1])[None] < wide.lengths[:, None]
    ways = {
        EVERY_START: lambda: [replay.accepted_lengths(wide, next(trees), drafter_name) for _ in range(TREES_A_CALL)],
        CHAINED: lambda: [replay.efficiency(wide, next(trees), drafter_name) for _ in range(TREES_A_CALL)],
        INDEX: lambda: RankPaths(flat, first[inside]),
        LIVE: lambda: live.decode(target, drafter, prompts, **settings),
    }
    scale = {EVERY_START: 1 / TREES_A_CALL, CHAINED: 1 / TREES_A_CALL, INDEX: 1.0, LIVE: wide.positions / covered}
    found = timing.interleaved(ways, repeats=15, seconds=seconds, generator=generator)
    frame = pd.DataFrame(
        [
            dict(way=way, nodes=nodes, positions=wide.positions, repeats=took.repeats)
            | {name: value * scale[way] for name, value in _quartiles(took).items()}
            for way, took in found.items()
        ]
    )
    by_way = frame.set_index("way")["seconds"]
    return frame.assign(trees_a_second=1 / frame["seconds"], times_live=by_way[LIVE] / frame["seconds"])


def _quartiles(took: timing.Timing) -> dict[str, float]:
    return {"seconds": took.median, "lower": took.lower, "upper": took.upper}


def sentence(found: pd.DataFrame) -> str:
    """What `measure` found, in a sentence."""
    by_way = found.set_index("way")
    every, chain = by_way.loc[EVERY_START], by_way.loc[CHAINED]
    if not (every["repeats"] and chain["repeats"]):
        return "Three replays of a few trees did not fit into the time that the benchmark was given."
    said = (
        f"Of {every['nodes']:.0f} nodes, {every['trees_a_second']:,.0f} trees a second are replayed at all of "
        f"{every['positions']:,.0f} positions, {chain['trees_a_second']:,.0f} as chained rounds"
    )
    if by_way.loc[LIVE, "repeats"]:
        return f"{said}: {every['times_live']:,.0f} and {chain['times_live']:,.0f} times faster than they decode live."
    return f"{said}; three live decodings did not fit into the time that the benchmark was given."
