"""Replay of trees that grow: the drafter alone, against the target's recorded continuation, with no verification.

A grown tree depends on what the drafter thinks on branches that the target did not take, which no trace holds. But
growth never looks at the target, and under greedy verification (and naive sampling, on a trace sampled at that
temperature) the accepted path follows the recorded tokens. So drafting again at a start, one forward a level, and
walking the recorded tokens through the tree is the round that live decoding had: exactly in float64; in float32 as far
as no two candidates reach the same to rounding, which batches change. Heads need the target's hidden states, for which
one forward of the target reads each text.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.wrapping import Wrapping
from lib.replay.exact import Walk
from lib.replay.resume import beginnings
from lib.replay.trace import Trace
from lib.trees.growth.candidates import Growth
from lib.trees.growth.marginals import DDTree
from lib.trees.tree import Tree
from lib.verify.draft import Draft
from lib.verify.draws import GeneratorDraws


@dataclass(frozen=True)
class GrownWalk(Walk):
    """Rounds whose trees differ: as `Walk`, `nodes` counted in each round's own tree, and of that tree

    drafted (n), depth and draft_calls (levels that were forwarded for it; of heads, for its batch): int64[R]; open_end
    bool[R]: the path ended at a node that had children.
    """

    drafted: np.ndarray
    depth: np.ndarray
    draft_calls: np.ndarray
    open_end: np.ndarray

    def select(self, keep: np.ndarray) -> "GrownWalk":
        """The rounds that `keep` bool[R] or int64 names."""
        return GrownWalk(*(values[keep] for values in vars(self).values()))


def walk(trace: Trace, drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree,
         starts: Sequence[tuple[int, int]] | None = None, *, rows: int = 32) -> GrownWalk:
    """Rounds that start at the given transitions (row, transition), in their order; None: at every one, row by row.

    prompts int64[T]: what the trace's rows continue. drafter: as it would run live, with its temperature; a language
    model, or one that reads the target's hidden states (see `mid_text.beginnings`). `rows`: texts that are prefilled
    in one forward, and rounds that are drafted in one. ValueError for other drafters, and for starts that there are
    not.
    """
    _check(trace, drafter, prompts)
    asked = starts if starts is not None else [(row, at) for row, n in enumerate(trace.lengths) for at in range(n)]
    _check_starts(trace, asked)
    found: dict[tuple[int, int], _Round] = {}
    for chunk in _chunks(sorted({row for row, _ in asked}), rows):
        begin = _begin(trace, drafter, prompts, chunk)
        own = sorted(((row, at) for row, at in set(asked) if row in chunk), key=lambda start: start[1])
        for batch in _chunks(own, rows):  # starts of like length together
            found.update(_drafted(trace, begin(batch), shape, batch))
    return _walk([(start, found[tuple(start)]) for start in asked])


def chained(trace: Trace, drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree, *,
            rows: int = 32) -> GrownWalk:
    """The rounds that follow one another from each row's first transition, row by row: as live decoding has them.

    Arguments as for `walk`. As many rows go on together, so that only real rounds are drafted.
    """
    _check(trace, drafter, prompts)
    going_on = _begun_anew if getattr(drafter, "wants_hidden_states", False) else _committed
    found = []
    for chunk in _chunks(np.flatnonzero(trace.lengths > 0).tolist(), rows):
        found += going_on(trace, drafter, prompts, shape, chunk)
    return _walk(sorted(found, key=lambda found: found[0]))


def _committed(trace: Trace, drafter: LanguageModelDrafter, prompts, shape, chunk: list[int]) -> list:
    """Chained rounds of some rows, the drafter committing what the trace says."""
    running, found = copy.copy(drafter), []
    running.start([prompts[row] for row in chunk])
    running.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist())
    at = dict.fromkeys(chunk, 0)
    while chunk:
        rounds = _drafted(trace, running, shape, [(row, at[row]) for row in chunk])
        found += rounds
        at |= {row: start + len(done.path) + 1 for (row, start), done in rounds}
        going = [index for index, row in enumerate(chunk) if at[row] < trace.lengths[row]]
        bonus = [int(trace.tokens[row, min(at[row], trace.lengths[row])]) for row in chunk]
        running.commit([done.path for _, done in rounds], bonus)
        if 0 < len(going) < len(chunk):
            running.select(going)
        chunk = [chunk[index] for index in going]
    return found


def _begun_anew(trace: Trace, drafter, prompts, shape, chunk: list[int]) -> list:
    """Chained rounds of some rows, each round begun behind the text so far."""
    begin, found, starts = _begin(trace, drafter, prompts, chunk), [], [(row, 0) for row in chunk]
    while starts:
        rounds = _drafted(trace, begin(starts), shape, starts)
        found += rounds
        behind = [(row, at + len(done.path) + 1) for (row, at), done in rounds]
        starts = [(row, at) for row, at in behind if at < trace.lengths[row]]
    return found


def _begin(trace: Trace, drafter, prompts, chunk: list[int]) -> Callable[[list[tuple[int, int]]], object]:
    """starts (row, transition) -> a drafter that is there, for starts in some rows of a trace."""
    begin = beginnings(drafter, [torch.cat([prompts[row], said(trace, row)]) for row in chunk])
    return lambda starts: begin([chunk.index(row) for row, _ in starts], [len(prompts[row]) + at for row, at in starts],
                                [int(trace.tokens[row, at]) for row, at in starts])


def _drafted(trace: Trace, drafter, shape, starts: list[tuple[int, int]]) -> list[tuple[tuple[int, int], "_Round"]]:
    """The rounds of a drafter whose rows are at these starts."""
    calls = drafter.calls
    drafts = drafter.propose(shape, GeneratorDraws(None))
    levels = getattr(drafter, "levels", [drafter.calls - calls] * len(drafts))
    return [(start, _round(trace, start, draft, own)) for start, draft, own in zip(starts, drafts, levels)]


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


def _check(trace: Trace, drafter, prompts: Sequence[Tensor]) -> None:
    if len(prompts) != len(trace.lengths):
        raise ValueError(f"{len(prompts)} prompts for a trace of {len(trace.lengths)} rows; give the prompts that its "
                         "rows continue, in their order")
    begins = isinstance(drafter, LanguageModelDrafter) or getattr(drafter, "wants_hidden_states", False)
    if not begins or isinstance(drafter, Wrapping):
        raise ValueError(f"drafter is a {type(drafter).__name__}, whose rounds depend on more than the text and the "
                         "target, or which cannot begin inside one; give LanguageModelDrafter(model) or heads, and "
                         "decode with others live")


def _check_starts(trace: Trace, starts: Sequence[tuple[int, int]]) -> None:
    for row, at in starts:
        if not 0 <= row < len(trace.lengths) or not 0 <= at < trace.lengths[row]:
            raise ValueError(f"start ({row}, {at}) is not in the trace; give rows below {len(trace.lengths)} and "
                             "transitions below each one's length")
