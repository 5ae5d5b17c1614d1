"""The atlas: recorded traces as data, on which a new tree or growth rule can be tried without a model.

    atlas = load("base.continuation")
    evaluate(atlas, "tiny", named("kary:2@14"))
    evaluate_rule(atlas, "tiny", lambda candidates: candidates.best(8))

A file holds one target's greedy continuations: the prompts' tokens, the trace (see `trace.Trace`),
and for each drafter that grows trees, at each transition of a continuation before the limit, the NODES draft nodes of
largest reach that it would draft there (DySpec's best-first tree), of which each tells whether its path is the text's.
Growth rules are exact as long as they keep nodes among these. `data/atlas/README.md` is the card of the data.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import count
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.drafters.drafter import ROOT_ALONE, Drafter, TextDrafter, Wrapper, alone
from lib.lab import atomic_file
from lib.replay import acceptance, simulated, trace
from lib.replay.exact import Walk
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.trees import named
from lib.trees.growth import Candidates
from lib.trees.tree import NO_PARENT, Tree
from lib.verify.draft import Draft, Draws

NODES, DEPTH = 24, 6  # of the recorded draft trees
AHEAD, LAST = 16, 127  # levels of recorded ranks, and the largest of them, which stands for all from there on
SHIPPED = Path(__file__).parents[2] / "data" / "atlas"
PROMPTS, PARTS = "prompt_tokens", ("parents", "rank", "reach", "hit")


@dataclass(frozen=True)
class Drafts:
    """The draft tree at each transition, N continuations of up to L transitions; m = NODES + 1 places, the root first.

    parents: int8[N, L, m], -1 for the root and for places without a node. rank: uint8, among siblings. reach: float16,
    the product of the drafter's probabilities along the path, 0 without a node. hit: bool, whether the path's tokens
    are the text's.
    """

    parents: np.ndarray
    rank: np.ndarray
    reach: np.ndarray
    hit: np.ndarray

    def at(self, row: int, start: int) -> tuple[Candidates, np.ndarray]:
        """The candidates of a draft, the root first, and whether each is a hit."""
        size = int((self.reach[row, start] > 0).sum())
        parents, rank = (array[row, start, :size].astype(np.int64) for array in (self.parents, self.rank))
        depth = np.zeros(size, dtype=np.int64)
        for node in range(1, size):
            depth[node] = depth[parents[node]] + 1
        reach = self.reach[row, start, :size].astype(np.float64)
        return Candidates(parents, rank, depth, reach), self.hit[row, start, :size]


@dataclass(frozen=True)
class Atlas:
    """What a file holds: the trace with its prompts, and drafts by drafter."""

    recorded: Recorded
    drafts: Mapping[str, Drafts]

    @property
    def trace(self) -> Trace:
        """The recorded trace."""
        return self.recorded.trace


def load(path: str | Path) -> Atlas:
    """Reads a file that `publish` wrote, or by its name one of SHIPPED. FileNotFoundError without it; ValueError for
    another file.
    """
    named = SHIPPED / f"{path}.npz"
    path = named if named.is_file() else Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no atlas at {path.resolve()}; give a file of data/atlas, or one that notebook 2 "
                                "published")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if PROMPTS not in arrays:
        raise ValueError(f"{path} holds {', '.join(arrays)}, but no {PROMPTS}; give a file that notebook 2 wrote")
    lengths, tokens = arrays.pop("prompt_lengths"), torch.from_numpy(arrays.pop(PROMPTS).astype(np.int64))
    drafts = {name.split(".", 2)[2]: None for name in arrays if name.startswith("drafts.parents.")}
    drafts = {name: Drafts(*(arrays.pop(f"drafts.{part}.{name}") for part in PARTS)) for name in drafts}
    about = {name: json.loads(str(arrays.pop(name))) for name in trace.ABOUT}
    return Atlas(Recorded(trace.unpacked(arrays, about, path), tokens.split(lengths.tolist())), drafts)


def evaluate(atlas: Atlas, drafter: str | Drafter, tree: Tree) -> pd.DataFrame:
    """What a static tree accepts: rounds, draft and accepted tokens by prompt and stretch (see `acceptance.tally`).

    drafter: the name of a recorded one, or one that reads the text alone, which drafts again.
    """
    if isinstance(drafter, TextDrafter):
        return acceptance.tally_walk(atlas.trace, simulated.rounds(atlas.recorded, drafter, tree))
    if drafter not in atlas.trace.ranks:
        raise ValueError(f"drafter {drafter!r} is not in this atlas, which has {', '.join(atlas.trace.ranks)}")
    if tree.max_depth > (levels := levels_of(atlas.trace, drafter)):
        raise ValueError(f"the tree has {tree.max_depth} levels, ranks of {drafter!r} are known for {levels}: give one "
                         "that is no deeper")
    return acceptance.tally_walk(atlas.trace, acceptance.rounds_of(atlas.trace, tree, drafter))


def levels_of(known: Trace, drafter: str) -> float:
    """How deep a tree may be on a trace: without a limit where ranks depend on the path alone."""
    ranks = known.ranks[drafter]
    return float("inf") if ranks.ndim == 2 else ranks.shape[2]


def evaluate_rule(atlas: Atlas, drafter: str, keep: Callable[[Candidates], Sequence[int]]) -> pd.DataFrame:
    """The same for a rule that keeps some nodes of each draft: keep(candidates) gives the draft nodes of the tree, each
    with its parent (see `growth.Candidates`, whose `best(n)` is DySpec).

    ValueError for a drafter without drafts, and for a node without its parent.
    """
    if drafter not in atlas.drafts:
        raise ValueError(f"no drafts of {drafter!r} are in this atlas, but of {', '.join(atlas.drafts) or 'none'}")
    walked = [one for row, length in enumerate(atlas.trace.starts(DEPTH))
              for one in _chained(atlas.drafts[drafter], row, int(length), keep)]
    return acceptance.tally_walk(atlas.trace, Walk(*np.array(walked, dtype=np.int64).reshape(-1, 5).T))


def _chained(drafts: Drafts, row: int, length: int, keep) -> Iterator[tuple[int, int, int, int, int]]:
    """The consecutive rounds of a row, in the columns of `Walk`."""
    start = 0
    while start < length:
        candidates, hit = drafts.at(row, start)
        kept = np.zeros(len(hit), dtype=bool)
        kept[np.asarray(keep(candidates), dtype=np.int64)] = True
        kept[0] = True
        if orphans := np.flatnonzero(kept[1:] & ~kept[candidates.parents[1:]]).tolist():
            raise ValueError(f"the rule keeps node {orphans[0] + 1} without its parent "
                             f"{candidates.parents[orphans[0] + 1]}; keep both, or neither")
        along = np.flatnonzero(kept & hit)  # parents come first: the last is the end of the accepted path
        accepted = int(candidates.depth[along[-1]])
        yield row, start, accepted, int(along[-1]), int(kept.sum()) - 1
        start += accepted + 1


class _AtEachToken(Wrapper):
    """Keeps what a drafter drafts and gives the target nothing, so that a round begins at each token.

    kept: by the order of rows in which prompts came, and by start, the drafts.
    """

    def __init__(self, drafter: Drafter, shape):
        self.drafter, self.shape, self.kept, self.began = drafter, shape, {}, count()

    traits, target = property(attrgetter("drafter.traits")), property(attrgetter("drafter.target"))

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins the next rows."""
        self.rows, self.at = [next(self.began) for _ in prompts], 0
        self.drafter.start(prompts)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The roots alone."""
        drafts = self.drafter.propose(self.shape, draws)
        self.kept |= {(row, self.at): draft for row, draft in zip(self.rows, drafts)}
        self.at += 1
        return alone([draft.token_list[0] for draft in drafts])

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.rows = [self.rows[row] for row in rows]
        self.drafter.select(rows)


def drafts_of(recorded: Recorded, drafter: Drafter) -> Drafts:
    """The best-first draft of a drafter that grows trees, at each transition at which rounds count."""
    known, traits = recorded.trace, drafter.traits
    family = "ddtree" if traits.per_depth else "dyspec"
    rule = named(f"{family}:{min(DEPTH, drafter.deepest or DEPTH)}@{NODES}")
    seen = _AtEachToken(copy.copy(drafter), rule)
    simulated.rounds(recorded, seen, ROOT_ALONE)
    running = np.flatnonzero(known.starts(0) > 0)
    shape = (*known.tokens[:, 1:].shape, NODES + 1)
    drafts = Drafts(np.full(shape, NO_PARENT, np.int8), np.zeros(shape, np.uint8), np.zeros(shape, np.float16),
                    np.zeros(shape, bool))
    for (order, start), draft in seen.kept.items():
        row, size = running[order], draft.tree.size
        drafts.parents[row, start, :size], drafts.rank[row, start, :size] = draft.tree.parents, draft.tree.rank
        drafts.reach[row, start, :size] = np.maximum(draft.reach, np.finfo(np.float16).tiny)
        ahead = known.tokens[row, start + 1 : known.ends[row] + 1].tolist()
        drafts.hit[row, start, [0, *draft.along(ahead)]] = True
    return drafts


def _small(known: Trace) -> Trace:
    """A trace whose ranks go AHEAD levels down and to LAST, and whose probabilities are those by transition."""
    ranks = {name: np.minimum(array if array.ndim == 2 else array[:, :, :AHEAD], LAST)
             for name, array in known.ranks.items()}
    return replace(known, ranks=ranks, probs={name: array for name, array in known.probs.items() if array.ndim == 2},
                   chances={})


def publish(recorded: Recorded, drafters: Mapping[str, Drafter], path: str | Path) -> None:
    """Writes a trace with its prompts, and the drafts of these drafters by name, to one compressed file."""
    arrays, about = trace.packed(_small(recorded.trace))
    arrays |= {PROMPTS: torch.cat(list(recorded.prompts)).numpy().astype(np.int32),
               "prompt_lengths": np.array([len(ids) for ids in recorded.prompts], dtype=np.int32)}
    arrays |= {name: np.array(text) for name, text in about.items()}
    for name, drafter in drafters.items():
        drafts = drafts_of(recorded, drafter)
        arrays |= {f"drafts.{part}.{name}": getattr(drafts, part) for part in PARTS}
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    atomic_file.replace(Path(path), stream.getvalue())
