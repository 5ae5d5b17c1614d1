"""Calibration: rounds of the decoding loop itself, in which a handful of shapes take turns, so that costs include
everything that the loop does and drift of the machine affects all shapes alike.
"""

import math
import time
from functools import partial
from typing import Callable, Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.attention.registration import takes_chains
from lib.cost.round_cost import PLAIN, Curve, before_steps
from lib.decoding import loop
from lib.decoding.checks import checkable
from lib.decoding.records import Generation, Hooks, Round
from lib.drafters.drafter import Drafter, NoDrafter, Wrapper, first_levels
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.timing import LEAST_REPEATS
from lib.trees import named, shapes as static
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

COLD = 3  # rounds after a prefill, which has evicted the weights from the caches: slower than all that follow
TURNS = 3  # warm rounds of each shape in a call
LEVELS = (PLAIN, "chain:1", "chain:4", "independent:4x4")  # shapes that give the cost of a drafter's level
DEEPEST = 4  # levels of the shapes that give the cost of a check
LONGEST = 16  # nodes of the longest chain that is timed where the target takes chains
MOST, HALVINGS = 64, 4  # nodes of the largest of them, and how many further ones there are at most
SURE = 3  # falls of a cost are larger than by chance at so many standard errors


def calibrate(pair, prompts: Sequence[Tensor], *, batches: Sequence[int] = (1,), prefix: int = 128,
              shapes: Sequence[str] = (), most: int = MOST, repeats: int = 30, seconds: float = 5.0,
              generator: torch.Generator, drafter: Drafter | None = None,
              generate: Callable[..., Generation] = loop.generate,
              clock: Callable[[], float] = time.perf_counter) -> pd.DataFrame:
    """Times rounds of a pair (`models.Pair`) on prompts int64[T]: a row for each batch and shape, in the columns of the
    table "costs".

    shapes: names of static shapes and of growth rules; by default `check_shapes` of up to `most` nodes and, while time
    is left, up to HALVINGS further ones, each in the middle of the numbers of nodes between which a check's time rises
    most. Those that draft take turns in the rounds of one call, since a prefill may take longer than all its rounds;
    calls of plain decoding, with as many rounds, are made in between. A row of text is cut from the prompts so that in
    the middle of a plain call `prefix` tokens are committed. All calls of a batch share `seconds`, but there are
    LEAST_REPEATS of each at least, whatever they take: costs without a shape would be wrong. drafter: used in place of
    the pair's own.
    """
    rows, chains = [], takes_chains(pair.target.config)
    for batch in batches:
        wanted = checkable(pair.target, shapes) or check_shapes(batch, min(most, LONGEST) if chains else most, chains)
        drafting = [shape for shape in wanted if shape != PLAIN]
        rounds, drafter = COLD + TURNS * len(drafting), drafter or LanguageModelDrafter(pair.draft_model)
        of = partial(_Calls, generate, pair.target, prompts, batch, prefix, generator)
        calls = [of(NoDrafter(), [PLAIN], rounds), of(drafter, drafting, rounds)]
        start, done = clock(), 0
        while done < LEAST_REPEATS or done <= repeats and clock() - start < seconds:
            for at in torch.randperm(len(calls), generator=generator).tolist():
                calls[at]()
            done += 1
            further = not shapes and done >= LEAST_REPEATS and len(calls) < 2 + HALVINGS
            if further and clock() - start < seconds and (nodes := _halfway(calls)):
                calls.append(of(drafter, [_of_nodes(nodes, chains)], COLD + TURNS))
                for _ in range(LEAST_REPEATS):
                    calls[-1]()
        rows += [dict(target=pair.target_name, drafter=pair.drafter_name, dtype=pair.dtype, batch=batch, prefix=prefix,
                      **row) for row in _rows(calls)]
    return pd.DataFrame(rows)


def check_shapes(batch: int, most: int, chains: bool = False) -> list[str]:
    """Plain decoding, and shapes at both sides of each step that the cost of a check may have (`before_steps`), up to
    `most` nodes: chains side by side, which also give the cost of a level of as many nodes, or single ones.
    """
    sizes = {most} | {side for nodes in before_steps(batch, most) for side in (nodes, nodes + 1)}
    return [PLAIN, *(_of_nodes(nodes, chains) for nodes in sorted(sizes) if 1 <= nodes <= most)]


def _of_nodes(nodes: int, chain: bool = False) -> str:
    """The name of the narrowest chains side by side of so many nodes with up to DEEPEST levels, or of a chain."""
    side_by_side = -(-nodes // DEEPEST)
    return f"independent:{side_by_side}@{nodes}" if side_by_side > 1 and not chain else f"chain:{nodes}"


def falling(rows: pd.DataFrame) -> str:
    """Names the first pair of shapes of which the one with more nodes took less time, beyond the quartiles of both,
    widened for small numbers of rounds; empty if there is none.

    rows: of one batch, in the columns of the table "costs".
    """
    rows = rows.sort_values("nodes")
    before = [rows.loc[rows["nodes"] < nodes, "lower_ms"].max() for nodes in rows["nodes"]]  # NaN for the fewest
    spread = (rows["upper_ms"] / rows["lower_ms"]).median() ** (SURE / np.sqrt(rows["rounds"]))
    fallen = rows[rows["upper_ms"] * spread < before]
    if fallen.empty:
        return ""
    low = fallen.iloc[0]
    high = rows.loc[rows.loc[rows["nodes"] < low["nodes"], "lower_ms"].idxmax()]
    return (f"at batch {low['batch']:.0f} a round with {low['nodes']:.0f} nodes took less time "
            f"({low['round_ms']:.2f} ms) than one with {high['nodes']:.0f} ({high['round_ms']:.2f} ms)")


def usual_prefix(prompts: Sequence[Tensor], new_tokens: int) -> int:
    """The committed tokens in the middle of continuations of prompts int64[T], on average: the time of a round rises
    evenly with them.
    """
    return int(np.mean([len(prompt) for prompt in prompts])) + new_tokens // 2


def rows_of_text(prompts: Sequence[Tensor], rows: int, length: int) -> Tensor:
    """int64[rows, length] cut one after another from the prompts, from the start again where they end."""
    stream = torch.cat(list(prompts))
    return stream.repeat(-(-rows * length // len(stream)))[: rows * length].view(rows, length)


def full_rounds(rounds: Sequence[Round], batch: int) -> list[Sequence[Round]]:
    """The records, one per row, of each round of a `Generation` in which every row of the batch ran."""
    parts = (rounds[first : first + batch] for first in range(0, len(rounds), batch))
    return [rows for rows in parts if [record.row for record in rows] == list(range(batch))]


class InTurns(Wrapper):
    """Shapes take turns in a drafter's rounds, cut to the depth of the shape that is asked for."""

    def __init__(self, drafter: Drafter, turns: Iterator[Tree | Growth]):
        super().__init__(drafter)
        self.turns = turns

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The inner drafter's drafts of the next shape."""
        return self.drafter.propose(first_levels(next(self.turns), shape.max_depth), draws)


class _Calls:
    """Calls of the loop in which shapes take turns; keeps the seconds of their rounds, call by call."""

    def __init__(self, generate, target, prompts: Sequence[Tensor], batch: int, prefix: int,
                 generator: torch.Generator, drafter: Drafter, shapes: Sequence[str], rounds: int):
        self.generate, self.target, self.drafter = generate, target, drafter
        texts = rows_of_text(prompts, batch, max(1, prefix - rounds // 2))
        self.shapes, self.rounds, self.generator = {name: named(name) for name in shapes}, rounds, generator
        self.deepest = static.chain(max(shape.max_depth for shape in self.shapes.values()))
        wanted, depth = rounds * (self.deepest.max_depth + 1) + 1, self.deepest.max_depth
        if drafter.window:  # past which nothing is drafted: its texts are shorter where they would reach it
            texts = texts[:, -max(1, drafter.window - wanted - depth):]
        windows = (getattr(target.config.get_text_config(), "max_position_embeddings", None),
                   drafter.window and drafter.window - depth)
        room = min((window for window in windows if window), default=math.inf) - texts.shape[1]
        self.texts, self.most_tokens = texts, min(wanted, room)
        self.seconds: list[pd.DataFrame] = []  # of a call's rounds: shape, and seconds of draft, verify and commit

    def __call__(self) -> None:
        names, count = list(self.shapes), (self.rounds - COLD) // len(self.shapes)
        warm = [names[at] for _ in range(count) for at in torch.randperm(len(names), generator=self.generator).tolist()]
        turns = warm[-COLD:] + warm  # any in the cold rounds, then all in shuffled turns
        before: list[object] = []  # one for each round before the current one, of which the last ends all rows
        done = self.generate(
            self.target, InTurns(self.drafter, (self.shapes[name] for name in turns)), self.texts, shape=self.deepest,
            observe=lambda *_: before.append(None),
            hooks=Hooks(stop=lambda row, written: len(before) == self.rounds - 1 and len(written) > 1),
            max_new_tokens=self.most_tokens, attention_mask=torch.ones_like(self.texts))  # all is text
        self.seconds.append(pd.DataFrame([
            (name, record.draft_seconds, record.verify_seconds, record.commit_seconds)
            for name, (record, *_) in zip(turns, full_rounds(done.rounds, len(self.texts)))],
            columns=["shape", "draft", "verify", "commit"]))


def _rows(calls: Sequence[_Calls]) -> list[dict]:
    """For each shape medians in milliseconds over all warm rounds, by nodes; a first call warms up and does not count.
    """
    rows = []
    for call in calls:
        warm = pd.concat([seconds[COLD:] for seconds in call.seconds[1:]]).groupby("shape", sort=False)
        for name, shape in call.shapes.items():
            parts = 1000 * warm.get_group(name)[["draft", "verify", "commit"]].to_numpy()
            lower, middle, upper = np.quantile(parts.sum(1), [0.25, 0.5, 0.75])
            draft, verify, commit = np.median(parts, axis=0)
            rows.append(dict(shape=name, nodes=shape.budget, rounds=len(parts), draft_ms=draft, verify_ms=verify,
                             commit_ms=commit, round_ms=middle, lower_ms=lower, upper_ms=upper))
    return sorted(rows, key=lambda row: row["nodes"])


def _halfway(calls: Sequence[_Calls]) -> int | None:
    """The number of nodes in the middle of those between which the time of a check rises most; None without a rise."""
    rows = pd.DataFrame(_rows(calls))
    check = Curve.through(rows["nodes"], rows["verify_ms"] + rows["commit_ms"])
    rises = np.diff(check.seconds) * (np.diff(check.at) > 1)
    at = int(np.argmax(rises))
    return int(check.at[at] + check.at[at + 1]) // 2 if rises[at] > 0 else None
