"""Replay by drafting again: the drafter drafts at each start, and the trace's tokens decide, without the target.

Ranks in a trace do not decide the trees of drafters that read the committed text alone (look-up, suffix automata,
n-grams), nor trees that grow by the drafter's probabilities on branches that the target did not take. But these drafts
do not depend on the target's decisions beyond the text, and under greedy verification (and naive sampling, on a trace
sampled at that temperature) the accepted path follows the recorded tokens. So drafting again at a start and walking the
recorded tokens through the draft gives the round of live decoding: exactly for drafters without a model; for language
models exactly in float64, and in float32 unless two candidates have equal reach up to rounding, which depends on the
batch. Heads need the target's hidden states, for which one forward pass of the target reads each text.

Start at `rounds`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import Drafter, TextDrafter, Wrapper
from lib.drafters.language_model import LanguageModelDrafter
from lib.replay.acceptance import in_real_text
from lib.replay.exact import Walk
from lib.replay.trace import Trace
from lib.trees.growth.best_first import DDTree
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draws import GeneratorDraws

Start = tuple[int, int]  # row, transition
Resume = Callable[[list[int], list[int], list[int]], Drafter]


@dataclass(frozen=True)
class SimulatedWalk(Walk):
    """Rounds whose trees differ: a `Walk` whose `nodes` are those of each round's own tree.

    drafted (n), depth, and draft_calls (the levels that were forwarded for the tree; for heads, for its batch):
    int64[R]. open_end: bool[R], whether the accepted path ends at a node with children.
    """

    drafted: np.ndarray
    depth: np.ndarray
    draft_calls: np.ndarray
    open_end: np.ndarray


def rounds(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree, *,
           rows: int = 32) -> SimulatedWalk:
    """The rounds that the trace's protocol has (as `acceptance.rounds_of`): chained rounds, or for real-text starts the
    first one of each row.

    drafter: as in live decoding, with its temperature: one that reads the text alone (a `TextDrafter`), a language
        model, or one that reads the target's hidden states.
    prompts: int64[T] each, the texts that the trace's rows continue.
    rows: the number of texts in one prefill, and of rounds in one draft.
    ValueError for other drafters.
    """
    if not in_real_text(trace):
        return chained(trace, drafter, prompts, shape, rows=rows)
    first = np.flatnonzero(trace.starts(shape.max_depth) > 0)
    return walk(trace, drafter, prompts, shape, [(row, 0) for row in first.tolist()], rows=rows)


def walk(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree,
         starts: Sequence[Start] | None = None, *, rows: int = 32) -> SimulatedWalk:
    """The rounds that start at the given (row, transition), in their order; if None, those at every transition at which
    a round counts (see `Trace.starts`), row by row.

    Other arguments as for `rounds`. ValueError also for starts at which no round counts.
    """
    _check(trace, drafter, prompts)
    counted = trace.starts(shape.max_depth)
    if starts is None:
        starts = [(row, at) for row, count in enumerate(counted) for at in range(count)]
    _check_starts(counted, starts)
    found: dict[Start, _Round] = {}
    for chunk in _chunks(sorted({row for row, _ in starts}), rows):
        drafter_at = _drafter_at(trace, drafter, prompts, chunk)
        own = sorted(((row, at) for row, at in set(starts) if row in chunk), key=lambda start: start[1])
        for batch in _chunks(own, rows):  # starts of similar length together
            found.update(_drafted(trace, drafter_at(batch), shape, batch))
    return _walk([(start, found[tuple(start)]) for start in starts])


def chained(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor], shape: Growth | DDTree | Tree, *,
            rows: int = 32) -> SimulatedWalk:
    """The consecutive rounds from each row's first transition, row by row, as in live decoding.

    Arguments as for `rounds`. `rows` rows are decoded together, so only these rounds are drafted.
    """
    _check(trace, drafter, prompts)
    counted = trace.starts(shape.max_depth)
    consecutive = _resumed if drafter.wants_hidden_states else _committed
    found = []
    for chunk in _chunks(np.flatnonzero(counted > 0).tolist(), rows):
        found += consecutive(trace, drafter, prompts, shape, chunk, counted)
    return _walk(sorted(found, key=lambda item: item[0]))


def continuation(trace: Trace, row: int) -> Tensor:
    """A row's continuation int64[L + 1], its first root and the tokens beyond the limit included."""
    tokens = trace.tokens[row]
    return torch.from_numpy(tokens[tokens >= 0].astype(np.int64))


def _committed(trace: Trace, drafter: Drafter, prompts, shape, chunk: list[int], counted: np.ndarray) -> list:
    """Chained rounds of some rows; the drafter commits the trace's tokens."""
    running, done = copy.copy(drafter), []
    running.start([prompts[row] for row in chunk])
    running.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist())
    at = dict.fromkeys(chunk, 0)
    while chunk:
        found = _drafted(trace, running, shape, [(row, at[row]) for row in chunk])
        done += found
        at |= {row: start + len(finished.path) + 1 for (row, start), finished in found}
        left = [index for index, row in enumerate(chunk) if at[row] < counted[row]]
        bonus = [int(trace.tokens[row, min(at[row], trace.ends[row])]) for row in chunk]
        running.commit([finished.path for _, finished in found], bonus)
        if 0 < len(left) < len(chunk):
            running.select(left)
        chunk = [chunk[index] for index in left]
    return done


def _resumed(trace: Trace, drafter: Drafter, prompts, shape, chunk: list[int], counted: np.ndarray) -> list:
    """Chained rounds of some rows; the drafter starts again in each round, after the text so far."""
    drafter_at, done, starts = _drafter_at(trace, drafter, prompts, chunk), [], [(row, 0) for row in chunk]
    while starts:
        found = _drafted(trace, drafter_at(starts), shape, starts)
        done += found
        after = [(row, at + len(finished.path) + 1) for (row, at), finished in found]
        starts = [(row, at) for row, at in after if at < counted[row]]
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

    A language model prefills each text once. The others start again after each prefix; one that reads the target's
    hidden states gets them from one forward pass of its target over each text.
    """
    return (_from_cache if isinstance(drafter, LanguageModelDrafter) else _from_start)(drafter, texts)


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
def _from_start(drafter: Drafter, texts: Sequence[Tensor]) -> Resume:
    hidden = []
    if drafter.wants_hidden_states:
        hidden = [drafter.target(text[None, :-1].to(drafter.target.device), output_hidden_states=True,
                                 logits_to_keep=1).hidden_states for text in texts]

    @torch.no_grad()
    def resume(rows: list[int], lengths: list[int], roots: list[int]) -> Drafter:
        resumed = copy.copy(drafter)
        resumed.start([texts[row][:length] for row, length in zip(rows, lengths)])
        layers = [pad_sequence([hidden[row][layer][0, :length] for row, length in zip(rows, lengths)], batch_first=True)
                  for layer in range(len(hidden[0]) if hidden else 0)]
        resumed.commit([[] for _ in rows], roots, SimpleNamespace(hidden_states=layers))
        return resumed

    return resume


@dataclass(frozen=True)
class _Round:
    """One round: its draft's tree, the accepted nodes, whether EOS ended it, and its forward passes."""

    tree: Tree
    path: list[int]
    ended: bool
    levels: int

    @property
    def end(self) -> int:
        """The last accepted node, or the root."""
        return self.path[-1] if self.path else ROOT


def _drafted(trace: Trace, drafter: Drafter, shape, starts: list[Start]) -> list[tuple[Start, _Round]]:
    """The rounds of a drafter whose rows are at these starts."""
    calls = drafter.calls
    drafts = drafter.propose(shape, GeneratorDraws(None))
    levels = drafter.levels or [drafter.calls - calls] * len(drafts)
    found = []
    for (row, at), draft, own in zip(starts, drafts, levels):
        ahead = trace.tokens[row, at + 1 : trace.ends[row] + 1].tolist()
        path = draft.along(ahead)
        found.append(((row, at), _Round(draft.tree, path, len(path) == len(ahead), own)))
    return found


def _walk(found: list[tuple[Start, _Round]]) -> SimulatedWalk:
    def column(values, dtype=np.int64) -> np.ndarray:
        return np.array(list(values), dtype=dtype)

    done = [finished for _, finished in found]
    open_end = (not each.ended and bool(each.tree.children(each.end)) for each in done)
    return SimulatedWalk(
        rows=column(row for (row, _), _ in found), starts=column(at for (_, at), _ in found),
        accepted=column(len(each.path) for each in done), nodes=column(each.end for each in done),
        drafted=column(each.tree.budget for each in done), depth=column(each.tree.max_depth for each in done),
        draft_calls=column(each.levels for each in done), open_end=column(open_end, bool))


def _chunks(items: list, size: int) -> Iterator[list]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _check(trace: Trace, drafter: Drafter, prompts: Sequence[Tensor]) -> None:
    if len(prompts) != len(trace.lengths):
        raise ValueError(f"{len(prompts)} prompts for a trace of {len(trace.lengths)} rows; give the prompts that its "
                         "rows continue, in their order")
    if not replayable(drafter):
        raise ValueError(f"drafter is a {type(drafter).__name__}, whose rounds depend on more than the text and the "
                         "target, or which cannot start inside a text; give a TextDrafter, LanguageModelDrafter(model) "
                         "or heads, and decode with others live")


def replayable(drafter: Drafter) -> bool:
    """Whether the rounds of a drafter with top-k proposals follow from a trace's text."""
    resumes = isinstance(drafter, (TextDrafter, LanguageModelDrafter)) or drafter.wants_hidden_states
    return resumes and not isinstance(drafter, Wrapper)


def _check_starts(counted: np.ndarray, starts: Sequence[Start]) -> None:
    for row, at in starts:
        if not 0 <= row < len(counted) or not 0 <= at < counted[row]:
            raise ValueError(f"start ({row}, {at}) is not in the trace; give rows below {len(counted)} and transitions "
                             "before the limit, after which the text is long enough for the tree")
