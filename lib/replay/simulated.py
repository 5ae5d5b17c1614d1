"""Replay by drafting again: the drafter drafts in each round, and the trace's tokens decide, without the target.

Ranks in a trace do not decide the trees of drafters that read the committed text alone (look-up, suffix automata), nor
trees that grow by the drafter's probabilities on branches that the target did not take. But these drafts depend on the
text alone, so that walking the recorded tokens through them gives the rounds of live decoding (see `exact` for when);
for models in float32 unless two candidates have almost equal reach.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import Drafter, FirstBranch, NoDrafter
from lib.drafters.registry import LIVE
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.replay import exact
from lib.replay.exact import Walk
from lib.replay.trace import Trace
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, GeneratorDraws

MOST_BYTES = 1 << 30  # of hidden states in memory


@dataclass(frozen=True)
class SimulatedWalk(Walk):
    """Rounds whose trees differ: a `Walk` whose `nodes` are those of each round's own tree.

    draft_calls (levels forwarded for the tree; for heads, for its batch): int64[R].
    """

    draft_calls: np.ndarray


class Recorded:
    """A trace, and the prompts int64[T] that its rows continue. Hidden states that were computed stay in memory, up to
    MOST_BYTES, and parts of a recording share them. rounds: those that were replayed, by way and row (see
    `study.acceptance.replay`).
    """

    def __init__(self, trace: Trace, prompts: Sequence[Tensor], states: dict[tuple, list[Tensor]] | None = None):
        self.trace, self.prompts = trace, prompts
        self.states = {} if states is None else states
        self.rounds: dict[str, dict[int, np.ndarray]] = {}

    @torch.no_grad()
    def hidden_states(self, row: int, target) -> list[Tensor]:
        """The target's hidden states of a row's whole text, [T, H] per layer."""
        tokens = self.trace.tokens[row]  # the first root, and tokens beyond the limit, included
        text = torch.cat([self.prompts[row], torch.from_numpy(tokens[tokens >= 0].astype(np.int64))])
        key = target, *text.tolist()
        if key in self.states:
            return self.states[key]
        states = [layer[0] for layer in prefill(forward_pass(target), [text], hidden_states=True).hidden_states]
        if (1 + len(self.states)) * sum(layer.nbytes for layer in states) <= MOST_BYTES:
            self.states[key] = states
        return states

    def select(self, rows: np.ndarray) -> "Recorded":
        """The part of some rows, bool[N] or int64."""
        prompts = [self.prompts[row] for row in np.arange(len(self.prompts))[rows]]
        return Recorded(self.trace.select(rows), prompts, self.states)


def rounds(recorded: Recorded, drafter: Drafter, shape: Growth | Tree, *, rows: int = 32) -> SimulatedWalk:
    """The rounds that follow one another in each row, row by row (as `acceptance.rounds_of`).

    drafter: as in live decoding, with its temperature; ValueError where it is not `replayable`. rows: those together.
    """
    if not replayable(drafter):
        raise ValueError(f"drafter is a {type(drafter).__name__}, whose rounds depend on more than the text and the "
                         "target; give a kind whose traits say how it is replayed, and decode with others live")
    walked = [(row, start, len(path), path[-1] if path else ROOT, draft.tree.budget, draft_calls)
              for row, start, draft, path, draft_calls in drafted(recorded, drafter, shape, rows=rows)]
    return SimulatedWalk(*np.array(sorted(walked), dtype=np.int64).reshape(-1, 6).T)


def rounds_behind(recorded: Recorded, combined: CombinedDrafter, tree: Tree, ranked: str) -> SimulatedWalk:
    """The `rounds` of a look-up in front of a drafter whose ranks stand in the trace under a name: the text decides
    where the look-up drafts, and what; the ranks decide the other rounds, so that no model runs.
    """
    walk, other = exact.rounds(recorded.trace, tree, ranked), combined.drafter
    passes = np.full_like(walk.rows, 1 if other.traits.one_pass else tree.max_depth)
    everywhere = SimulatedWalk(**vars(walk), draft_calls=passes)
    index_of = {start: index for index, start in enumerate(zip(walk.rows.tolist(), walk.starts.tolist()))}
    lookup_alone = CombinedDrafter(combined.lookup, NoDrafter(), combined.enough)
    for row, start, draft, path, _ in drafted(recorded, lookup_alone, tree, everywhere=True):
        if draft.tree.budget and (index := index_of.get((row, start))) is not None:
            everywhere.accepted[index], everywhere.nodes[index] = len(path), path[-1] if path else ROOT
            everywhere.drafted[index], everywhere.draft_calls[index] = draft.tree.budget, other.idle_passes
    return exact.chained(everywhere)


@torch.no_grad()
def drafted(recorded: Recorded, drafter: Drafter, shape: Growth | Tree, *, rows: int = 32,
            everywhere: bool = False) -> Iterator[tuple[int, int, Draft, list[int], int]]:
    """Row, start, draft, the draft's nodes whose tokens are the text's, and its forward passes (of a head those of its
    batch), for each round of the rows, or everywhere: for each transition at which a round may start.
    """
    trace, counted = recorded.trace, recorded.trace.starts(0 if everywhere else shape.max_depth)
    running = np.flatnonzero(counted > 0).tolist()
    for chunk in (running[first : first + rows] for first in range(0, len(running), rows)):
        batch = FirstBranch(copy.copy(drafter)) if trace.labels.get("chains") else copy.copy(drafter)
        hidden = [recorded.hidden_states(row, drafter.target) if drafter.wants_hidden_states else () for row in chunk]
        starts, lengths = [0] * len(chunk), [len(recorded.prompts[row]) for row in chunk]
        batch.start([recorded.prompts[row] for row in chunk])
        batch.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist(),
                     _outputs(hidden, starts, [list(range(length)) for length in lengths]))
        while chunk:
            # draft
            calls = batch.calls
            drafts = batch.propose(shape, GeneratorDraws(None))
            levels = batch.levels or [batch.calls - calls] * len(drafts)
            # verify by the text
            paths = [draft.along(trace.tokens[row, start + 1 : trace.ends[row] + 1].tolist())
                     for row, start, draft in zip(chunk, starts, drafts)]
            yield from zip(chunk, starts, drafts, paths, levels)
            # commit
            paths = [[] for _ in chunk] if everywhere else paths
            nodes = [[ROOT, *path] for path in paths]
            states = _outputs(hidden, [length + start for length, start in zip(lengths, starts)], nodes)
            starts = [start + len(path) + 1 for start, path in zip(starts, paths)]
            bonus = [int(trace.tokens[row, min(start, trace.ends[row])]) for row, start in zip(chunk, starts)]
            batch.commit(paths, bonus, states)
            remaining = [index for index, row in enumerate(chunk) if starts[index] < counted[row]]
            if 0 < len(remaining) < len(chunk):
                batch.select(remaining)
            chunk, starts, lengths, hidden = ([column[index] for index in remaining]
                                              for column in (chunk, starts, lengths, hidden))


def _outputs(hidden: Sequence[Sequence[Tensor]], first: Sequence[int], nodes: Sequence[list[int]]) -> SimpleNamespace:
    """Outputs of the target as `commit` takes them: for each row the hidden states of its text from the position
    `first` on, at these nodes.
    """
    layers = []
    for row_layers in zip(*hidden):
        states = row_layers[0].new_zeros(len(nodes), 1 + max(map(max, nodes)), row_layers[0].shape[1])
        for row, (text_states, start, places) in enumerate(zip(row_layers, first, nodes)):
            states[row, places] = text_states[start : start + len(places)]
        layers.append(states)
    return SimpleNamespace(hidden_states=layers)


def replayable(drafter: Drafter) -> bool:
    """Whether the rounds of a drafter follow from a trace's text."""
    return drafter.traits.replay != LIVE
