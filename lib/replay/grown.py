"""Replay of trees that grow: the drafter drafts again at each start, and the trace's tokens decide, without the target.

A grown tree depends on the drafter's probabilities on branches that the target did not take, which no trace holds. But
growth does not read the target's decisions, and under greedy verification (and naive sampling, on a trace sampled at
that temperature) the accepted path follows the recorded tokens. So drafting again at a start, with one forward pass per
level, and walking the recorded tokens through the tree gives the round of live decoding: exactly in float64; in float32
unless two candidates have equal reach up to rounding, which depends on the batch. Heads need the target's hidden
states, for which one forward pass of the target reads each text.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import Drafter, Wrapper
from lib.drafters.language_model import LanguageModelDrafter
from lib.replay.exact import Walk
from lib.replay.trace import Trace
from lib.trees.growth.best_first import DDTree
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree
from lib.verify.draws import GeneratorDraws

Start = tuple[int, int]  # row, transition
Resume = Callable[[list[int], list[int], list[int]], Drafter]


@dataclass(frozen=True)
class GrownWalk(Walk):
    """Rounds whose trees differ: a `Walk` whose `nodes` are those of each round's own tree.

    drafted (n), depth, and draft_calls (the levels that were forwarded for the tree; for heads, for its batch):
    int64[R]. open_end: bool[R], whether the accepted path ends at a node with children.
    """

    drafted: np.ndarray
    depth: np.ndarray
    draft_calls: np.ndarray
    open_end: np.ndarray


def walk(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree,
         starts: Sequence[Start] | None = None, *, rows: int = 32) -> GrownWalk:
    """The rounds that start at the given (row, transition), in their order; at every transition, row by row, if None.

    drafter: as in live decoding, with its temperature; a language model, or a drafter that reads the target's hidden
        states.
    prompts: int64[T] each, the texts that the trace's rows continue.
    rows: the number of texts in one prefill, and of rounds in one draft.
    ValueError for other drafters, and for starts outside the trace.
    """
    _check(trace, drafter, prompts)
    if starts is None:
        starts = [(row, at) for row, length in enumerate(trace.lengths) for at in range(length)]
    _check_starts(trace, starts)
    rounds: dict[Start, _Round] = {}
    for chunk in _chunks(sorted({row for row, _ in starts}), rows):
        drafter_at = _drafter_at(trace, drafter, prompts, chunk)
        own = sorted(((row, at) for row, at in set(starts) if row in chunk), key=lambda start: start[1])
        for batch in _chunks(own, rows):  # starts of similar length together
            rounds.update(_drafted(trace, drafter_at(batch), shape, batch))
    return _walk([(start, rounds[tuple(start)]) for start in starts])


def chained(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree, *,
            rows: int = 32) -> GrownWalk:
    """The consecutive rounds from each row's first transition, row by row, as in live decoding.

    Arguments as for `walk`. `rows` rows are decoded together, so only these rounds are drafted.
    """
    _check(trace, drafter, prompts)
    consecutive = _resumed if drafter.wants_hidden_states else _committed
    rounds = []
    for chunk in _chunks(np.flatnonzero(trace.lengths > 0).tolist(), rows):
        rounds += consecutive(trace, drafter, prompts, shape, chunk)
    return _walk(sorted(rounds, key=lambda item: item[0]))


def continuation(trace: Trace, row: int) -> Tensor:
    """A row's continuation int64[L + 1], its first root included."""
    return torch.from_numpy(trace.tokens[row, : trace.lengths[row] + 1].astype(np.int64))


def _committed(trace: Trace, drafter: LanguageModelDrafter, prompts, shape, chunk: list[int]) -> list:
    """Chained rounds of some rows; the drafter commits the trace's tokens."""
    running, done = copy.copy(drafter), []
    running.start([prompts[row] for row in chunk])
    running.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist())
    at = dict.fromkeys(chunk, 0)
    while chunk:
        rounds = _drafted(trace, running, shape, [(row, at[row]) for row in chunk])
        done += rounds
        at |= {row: start + len(finished.path) + 1 for (row, start), finished in rounds}
        left = [index for index, row in enumerate(chunk) if at[row] < trace.lengths[row]]
        bonus = [int(trace.tokens[row, min(at[row], trace.lengths[row])]) for row in chunk]
        running.commit([finished.path for _, finished in rounds], bonus)
        if 0 < len(left) < len(chunk):
            running.select(left)
        chunk = [chunk[index] for index in left]
    return done


def _resumed(trace: Trace, drafter: Drafter, prompts, shape, chunk: list[int]) -> list:
    """Chained rounds of some rows; the drafter starts again in each round, after the text so far."""
    drafter_at, done, starts = _drafter_at(trace, drafter, prompts, chunk), [], [(row, 0) for row in chunk]
    while starts:
        rounds = _drafted(trace, drafter_at(starts), shape, starts)
        done += rounds
        after = [(row, at + len(finished.path) + 1) for (row, at), finished in rounds]
        starts = [(row, at) for row, at in after if at < trace.lengths[row]]
    return done


def _drafter_at(trace: Trace, drafter: Drafter, prompts, chunk: list[int]) -> Callable[[list[Start]], Drafter]:
    """(starts in these rows of the trace) -> a drafter whose rows have reached these starts."""
    resume = resuming(drafter, [torch.cat([prompts[row], continuation(trace, row)]) for row in chunk])
    return lambda starts: resume([chunk.index(row) for row, _ in starts],
                                 [len(prompts[row]) + at for row, at in starts],
                                 [int(trace.tokens[row, at]) for row, at in starts])


def resuming(drafter: Drafter, texts: Sequence[Tensor]) -> Resume:
    """(rows, lengths, roots) -> a drafter whose row i has read the first lengths[i] tokens of texts[rows[i]] int64[T],
    and has roots[i] as its next token; a text may occur several times, and `drafter` does not change.

    A language model prefills each text once. A drafter that reads the target's hidden states gets them from one forward
    pass of its target over each text, and starts again after each prefix.
    """
    return (_from_hidden_states if drafter.wants_hidden_states else _from_cache)(drafter, texts)


def _from_cache(drafter: LanguageModelDrafter, texts: Sequence[Tensor]) -> Resume:
    prefilled = copy.copy(drafter)
    prefilled.start(list(texts))

    @torch.no_grad()
    def resume(rows: list[int], lengths: list[int], roots: list[int]) -> LanguageModelDrafter:
        resumed = copy.copy(prefilled)
        resumed.cache = copy.deepcopy(prefilled.cache)
        resumed.cache.select(torch.tensor(rows))
        resumed.cache.crop(torch.tensor(lengths))
        resumed.tails = [[root] for root in roots]
        return resumed

    return resume


@torch.no_grad()
def _from_hidden_states(drafter: Drafter, texts: Sequence[Tensor]) -> Resume:
    device = drafter.target.device
    hidden = [drafter.target(text[None, :-1].to(device), output_hidden_states=True, logits_to_keep=1).hidden_states
              for text in texts]

    @torch.no_grad()
    def resume(rows: list[int], lengths: list[int], roots: list[int]) -> Drafter:
        resumed = copy.copy(drafter)
        resumed.start([texts[row][:length] for row, length in zip(rows, lengths)])
        layers = [pad_sequence([hidden[row][layer][0, :length] for row, length in zip(rows, lengths)], batch_first=True)
                  for layer in range(len(hidden[0]))]
        resumed.commit([[] for _ in rows], roots, SimpleNamespace(hidden_states=layers))
        return resumed

    return resume


@dataclass(frozen=True)
class _Round:
    """One round: its draft's tree, the accepted nodes, whether the trace ended it, and its forward passes."""

    tree: Tree
    path: list[int]
    cut: bool
    levels: int


def _drafted(trace: Trace, drafter: Drafter, shape, starts: list[Start]) -> list[tuple[Start, _Round]]:
    """The rounds of a drafter whose rows are at these starts."""
    calls = drafter.calls
    drafts = drafter.propose(shape, GeneratorDraws(None))
    levels = drafter.levels or [drafter.calls - calls] * len(drafts)
    rounds = []
    for (row, at), draft, own in zip(starts, drafts, levels):
        ahead = trace.tokens[row, at + 1 : trace.lengths[row] + 1].tolist()
        path = draft.along(ahead)
        rounds.append(((row, at), _Round(draft.tree, path, len(path) == len(ahead), own)))
    return rounds


def _walk(rounds: list[tuple[Start, _Round]]) -> GrownWalk:
    def column(values, dtype=np.int64) -> np.ndarray:
        return np.array(list(values), dtype=dtype)

    done = [finished for _, finished in rounds]
    ends = [finished.path[-1] if finished.path else 0 for finished in done]
    return GrownWalk(rows=column(row for (row, _), _ in rounds), starts=column(at for (_, at), _ in rounds),
                     accepted=column(len(finished.path) for finished in done), nodes=column(ends),
                     cut=column((finished.cut for finished in done), bool),
                     drafted=column(finished.tree.budget for finished in done),
                     depth=column(finished.tree.max_depth for finished in done),
                     draft_calls=column(finished.levels for finished in done),
                     open_end=column((bool(finished.tree.children(end)) for finished, end in zip(done, ends)), bool))


def _chunks(items: list, size: int) -> Iterator[list]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _check(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor]) -> None:
    if len(prompts) != len(trace.lengths):
        raise ValueError(f"{len(prompts)} prompts for a trace of {len(trace.lengths)} rows; give the prompts that its "
                         "rows continue, in their order")
    resumes = isinstance(drafter, LanguageModelDrafter) or drafter.wants_hidden_states
    if not resumes or isinstance(drafter, Wrapper):
        raise ValueError(f"drafter is a {type(drafter).__name__}, whose rounds depend on more than the text and the "
                         "target, or which cannot start inside a text; give LanguageModelDrafter(model) or heads, and "
                         "decode with others live")


def _check_starts(trace: Trace, starts: Sequence[Start]) -> None:
    for row, at in starts:
        if not 0 <= row < len(trace.lengths) or not 0 <= at < trace.lengths[row]:
            raise ValueError(f"start ({row}, {at}) is not in the trace; give rows below {len(trace.lengths)} and "
                             "transitions below each row's length")
