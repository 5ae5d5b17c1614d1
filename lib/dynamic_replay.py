"""Replay of trees that grow: the drafter alone, against the target's recorded continuation, with no target forward.

A grown tree depends on what the drafter thinks on branches that the target did not take, which no trace holds. But
growth never looks at the target, and under greedy verification (and naive sampling, on a trace sampled at that
temperature) the accepted path follows the recorded tokens. So drafting again at a start, one forward a level, and
walking the recorded tokens through the tree is the round that live decoding had: exactly in float64; in float32 as far
as no two candidates reach the same to rounding, which batches change.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.drafters import LanguageModelDrafter
from lib.growth import Growth
from lib.replay import Walk
from lib.trace import Trace
from lib.tree import Tree
from lib.verify import Draft, GeneratorDraws


@dataclass(frozen=True)
class GrownWalk(Walk):
    """Rounds whose trees differ: as `Walk`, `nodes` counted in each round's own tree, and of that tree

    drafted (n), depth and draft_calls (levels that were forwarded for it): int64[R]; open_end bool[R]: the path ended
    at a node that had children.
    """

    drafted: np.ndarray
    depth: np.ndarray
    draft_calls: np.ndarray
    open_end: np.ndarray

    def select(self, keep: np.ndarray) -> "GrownWalk":
        """The rounds that `keep` bool[R] or int64 names."""
        return GrownWalk(*(values[keep] for values in vars(self).values()))


def walk(trace: Trace, drafter: LanguageModelDrafter, prompts: Sequence[Tensor], shape: Growth | Tree,
         starts: Sequence[tuple[int, int]] | None = None, *, rows: int = 32) -> GrownWalk:
    """Rounds that start at the given transitions (row, transition), in their order; None: at every one, row by row.

    prompts int64[T]: what the trace's rows continue. drafter: as it would run live, with its temperature. Prompt and
    continuation of a row are prefilled once, and every start takes its own copy of that prefix's keys and values;
    `rows`: prefills, and rounds, in one forward.
    """
    _check(trace, prompts)
    asked = starts if starts is not None else [(row, at) for row, n in enumerate(trace.lengths) for at in range(n)]
    found: dict[tuple[int, int], tuple] = {}
    for chunk in _chunks(sorted({row for row, _ in asked}), rows):
        texts = {row: torch.cat([prompts[row], said(trace, row)]) for row in chunk}
        prefilled = copy.copy(drafter)
        prefilled.start(list(texts.values()))
        place = {row: index for index, row in enumerate(chunk)}
        own = sorted(((row, at) for row, at in set(asked) if row in place), key=lambda start: start[1])
        for batch in _chunks(own, rows):  # starts of like length together
            lengths = [len(prompts[row]) + at for row, at in batch]
            roots = [int(trace.tokens[row, at]) for row, at in batch]
            begun = fork(prefilled, [place[row] for row, _ in batch], lengths, roots)
            drafts = begun.propose(shape, GeneratorDraws(None))
            found.update((start, _round(trace, start, draft, levels)) for start, draft, levels
                         in zip(batch, drafts, begun.levels))
    return _walk([(start, found[tuple(start)]) for start in asked])


def chained(trace: Trace, drafter: LanguageModelDrafter, prompts: Sequence[Tensor], shape: Growth | Tree, *,
            rows: int = 32) -> GrownWalk:
    """The rounds that follow one another from each row's first transition, row by row: as live decoding has them.

    As many rows go on together, the drafter committing what the trace says, so that only real rounds are drafted.
    """
    _check(trace, prompts)
    found = []
    for chunk in _chunks(np.flatnonzero(trace.lengths > 0).tolist(), rows):
        running = copy.copy(drafter)
        running.start([prompts[row] for row in chunk])
        running.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist())
        at = dict.fromkeys(chunk, 0)
        while chunk:
            drafts = running.propose(shape, GeneratorDraws(None))
            rounds = [((row, at[row]), _round(trace, (row, at[row]), draft, levels))
                      for row, draft, levels in zip(chunk, drafts, running.levels)]
            found += rounds
            at |= {row: start + len(done.path) + 1 for (row, start), done in rounds}
            going = [index for index, row in enumerate(chunk) if at[row] < trace.lengths[row]]
            bonus = [int(trace.tokens[row, min(at[row], trace.lengths[row])]) for row in chunk]
            running.commit([done.path for _, done in rounds], bonus)
            if 0 < len(going) < len(chunk):
                running.select(going)
            chunk = [chunk[index] for index in going]
    return _walk(sorted(found, key=lambda found: found[0]))


@torch.no_grad()
def fork(drafter: LanguageModelDrafter, rows: list[int], lengths: list[int], roots: list[int]) -> LanguageModelDrafter:
    """A drafter whose rows begin inside the texts that another one has prefilled.

    Row i goes on behind the first lengths[i] tokens of the other's row rows[i], which stays as it is; roots[i] comes
    next. A row may be named many times.
    """
    begun = copy.copy(drafter)
    begun.cache = copy.deepcopy(drafter.cache)
    begun.cache.select(torch.tensor(rows))
    begun.cache.crop(torch.tensor(lengths))
    begun.tails = [[root] for root in roots]
    return begun


def said(trace: Trace, row: int) -> Tensor:
    """A row's continuation int64[L + 1], its first root included."""
    return torch.from_numpy(trace.tokens[row, : trace.lengths[row] + 1].astype(np.int64))


@dataclass(frozen=True)
class _Round:
    """One round: its draft's tree, the accepted nodes, whether the trace ended it, and forwards spent on it."""

    tree: Tree
    path: list[int]
    cut: bool
    levels: int


def _round(trace: Trace, start: tuple[int, int], draft: Draft, levels: int) -> _Round:
    row, at = start
    ahead = trace.tokens[row, at + 1 : trace.lengths[row] + 1].tolist()
    path = draft.along(ahead)
    return _Round(draft.tree, path, len(path) == len(ahead), levels)


def _walk(rounds: list[tuple[tuple[int, int], _Round]]) -> GrownWalk:
    def column(values, dtype=np.int64) -> np.ndarray:
        return np.array(list(values), dtype=dtype)

    done = [found for _, found in rounds]
    ends = [found.path[-1] if found.path else 0 for found in done]
    return GrownWalk(
        rows=column(row for (row, _), _ in rounds),
        starts=column(at for (_, at), _ in rounds),
        accepted=column(len(found.path) for found in done),
        nodes=column(ends),
        cut=column((found.cut for found in done), bool),
        drafted=column(found.tree.budget for found in done),
        depth=column(found.tree.max_depth for found in done),
        draft_calls=column(found.levels for found in done),
        open_end=column((bool(found.tree.children(end)) for found, end in zip(done, ends)), bool),
    )


def _chunks(items: list, size: int) -> Iterator[list]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _check(trace: Trace, prompts: Sequence[Tensor]) -> None:
    if len(prompts) != len(trace.lengths):
        raise ValueError(f"{len(prompts)} prompts for a trace of {len(trace.lengths)} rows; give the prompts that its "
                         "rows continue, in their order")
