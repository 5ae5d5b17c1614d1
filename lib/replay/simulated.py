"""Replay by drafting again: the drafter drafts in each round, and the trace's tokens decide, without the target.

Ranks in a trace do not decide the trees of drafters that read the committed text alone (look-up, suffix automata, of
n-grams those nodes for which there is a token), nor trees that grow by the drafter's probabilities on branches that
the target did not take. But these drafts do not depend on the target's decisions beyond the text, and under greedy
verification (and naive sampling, on a trace sampled at that temperature) the accepted path follows the recorded
tokens. So drafting again and walking the recorded tokens through the draft gives the rounds of live decoding: exactly
for drafters without a model; for language models exactly in float64, and in float32 unless two candidates have equal
reach up to rounding, which depends on the batch. Heads need the target's hidden states, for which one forward pass of
the target reads each text.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from lib.drafters.drafter import LIVE, Drafter, LeadingChain
from lib.replay.exact import Walk
from lib.replay.trace import Trace
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import GeneratorDraws

HELD = 32  # rows whose hidden states are in memory

Round = tuple[int, int, int, int, int, int, int, bool]  # the columns of `SimulatedWalk`


@dataclass(frozen=True)
class SimulatedWalk(Walk):
    """Rounds whose trees differ: a `Walk` whose `nodes` are those of each round's own tree.

    depth, and draft_calls (the levels that were forwarded for the tree; for heads, for its batch):
    int64[R]. open_end: bool[R], whether the accepted path ends at a node with children.
    """

    depth: np.ndarray
    draft_calls: np.ndarray
    open_end: np.ndarray


class Recorded:
    """A trace, and the prompts int64[T] that its rows continue, in their order.

    The hidden states of HELD rows stay in memory until `forget`.
    """

    def __init__(self, trace: Trace, prompts: Sequence[Tensor]):
        self.trace, self.prompts = trace, prompts
        self.held: dict[tuple, Sequence[Tensor]] = {}

    @torch.no_grad()
    def hidden_states(self, row: int, target) -> Sequence[Tensor]:
        """The target's hidden states of a row's whole text, [T, H] per layer."""
        if (row, target) in self.held:
            return self.held[row, target]
        tokens = self.trace.tokens[row]  # the first root, and tokens beyond the limit, included
        text = torch.cat([self.prompts[row], torch.from_numpy(tokens[tokens >= 0].astype(np.int64))])
        out = target(text[None].to(target.device), output_hidden_states=True, logits_to_keep=1)
        states = [layer[0] for layer in out.hidden_states]
        if len(self.held) < HELD:
            self.held[row, target] = states
        return states

    def forget(self) -> None:
        """Frees the hidden states."""
        self.held = {}

    def halves(self) -> tuple["Recorded", "Recorded"]:
        """The part that trees are grown from, whose prompts' names are in about["choosing"], and the part that judges
        them.
        """
        chooses = np.isin(np.array(self.trace.prompts), self.trace.about["choosing"])
        choosing, judging = (Recorded(self.trace.select(half), [self.prompts[row] for row in np.flatnonzero(half)])
                             for half in (chooses, ~chooses))
        return choosing, judging


def rounds(recorded: Recorded, drafter: Drafter, shape: Growth | Tree, *, rows: int = 32) -> SimulatedWalk:
    """The rounds that follow one another in each row, row by row (as `acceptance.rounds_of`).

    drafter: as in live decoding, with its temperature; `replay` in the traits of its kind is not LIVE: it reads the
        text alone, or is a language model, or a head of the target's hidden states, or a look-up before one of these.
    rows: the number of rows that are decoded together.
    ValueError for other drafters.
    """
    trace = recorded.trace
    if not replayable(drafter):
        raise ValueError(f"drafter is a {type(drafter).__name__}, whose rounds depend on more than the text and the "
                         "target, or which cannot start inside a text; give a kind whose traits say how it is "
                         "replayed, and decode with others live")
    counted = trace.starts(shape.max_depth)
    running, walked = np.flatnonzero(counted > 0).tolist(), []
    for first in range(0, len(running), rows):
        walked += _consecutive(recorded, drafter, shape, running[first : first + rows], counted)
    *columns, open_end = np.array(sorted(walked), dtype=np.int64).reshape(-1, 8).T
    return SimulatedWalk(*columns, open_end.astype(bool))


@torch.no_grad()
def _consecutive(recorded: Recorded, drafter: Drafter, shape, chunk: list[int], counted: np.ndarray) -> list[Round]:
    """The consecutive rounds of some rows; the drafter commits the trace's tokens."""
    trace, prompts = recorded.trace, recorded.prompts
    running, done, at = copy.copy(drafter), [], [0] * len(chunk)
    running = LeadingChain(running) if trace.about.get("chains") else running
    lengths = [len(prompts[row]) for row in chunk]
    hidden = [recorded.hidden_states(row, drafter.target) if drafter.wants_hidden_states else () for row in chunk]
    running.start([prompts[row] for row in chunk])
    running.commit([[] for _ in chunk], trace.tokens[chunk, 0].tolist(),
                   _outputs(hidden, [0] * len(chunk), [list(range(length)) for length in lengths]))
    while chunk:
        calls = running.calls
        drafts = running.propose(shape, GeneratorDraws(None))
        levels = running.levels or [running.calls - calls] * len(drafts)
        ahead = [trace.tokens[row, start + 1 : trace.ends[row] + 1].tolist() for row, start in zip(chunk, at)]
        paths = [draft.along(tokens) for draft, tokens in zip(drafts, ahead)]
        for row, start, draft, path, level_calls, tokens in zip(chunk, at, drafts, paths, levels, ahead):
            end = path[-1] if path else ROOT
            open_end = len(path) < len(tokens) and bool(draft.tree.children(end))
            done.append((row, start, len(path), end, draft.tree.budget, draft.tree.max_depth,
                         level_calls, open_end))
        after = [start + len(path) + 1 for start, path in zip(at, paths)]
        bonus = [int(trace.tokens[row, min(start, trace.ends[row])]) for row, start in zip(chunk, after)]
        running.commit(paths, bonus, _outputs(hidden, [length + start for length, start in zip(lengths, at)],
                                              [[ROOT, *path] for path in paths]))
        left = [index for index, row in enumerate(chunk) if after[index] < counted[row]]
        if 0 < len(left) < len(chunk):
            running.select(left)
        chunk, at, lengths, hidden = ([column[index] for index in left] for column in (chunk, after, lengths, hidden))
    return done


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
