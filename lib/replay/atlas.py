"""The atlas: recorded traces as data, on which a new tree or growth rule can be tried without a model.

    atlas = load("base.continuation")
    evaluate(atlas, "tiny", named("kary:2@14"))
    evaluate_rule(atlas, "tiny", lambda candidates: candidates.best(8))

A file holds one target's greedy continuations: prompts, trace, and for each drafter that grows trees, at each
transition before the limit, the NODES draft nodes of largest reach, and whether the path of each is the text's. Growth
rules that keep nodes among these are exact. The card of the data is `data/atlas/README.md`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.drafters.drafter import Drafter, TextDrafter
from lib.replay import acceptance, simulated, trace
from lib.replay.exact import Walk
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.trees import named
from lib.trees.growth import Candidates
from lib.trees.tree import NO_PARENT, ROOT, Tree

NODES, DEPTH = 24, 6  # of the recorded draft trees
AHEAD, LAST = 16, 127  # levels of recorded ranks, and the largest of them, which stands for all from there on
SHIPPED = Path(__file__).parents[2] / "data" / "atlas"
PARTS = ("parents", "rank", "reach", "hit")


@dataclass(frozen=True)
class Drafts:
    """The draft tree at each transition of N continuations, [N, L, m] in m = NODES + 1 slots, the root first.

    parents: int8, -1 for the root and for slots without a node. rank: uint8, among siblings. reach: float16, product of
    the drafter's probabilities along the path, 0 without a node. hit: bool, whether the path is the text's.
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
    """A file that `publish` wrote, or by its name one of SHIPPED. FileNotFoundError; ValueError for another file."""
    shipped = SHIPPED / f"{path}.npz"
    path = shipped if shipped.is_file() else Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no atlas at {path.resolve()}; give a file that notebook 2 published")
    recorded = trace.load(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file if name.startswith(("prompt_", "drafts."))}
    if "prompt_tokens" not in arrays:
        raise ValueError(f"{path} holds a trace, but no prompt_tokens; give a file that notebook 2 published")
    prompts = torch.from_numpy(arrays["prompt_tokens"].astype(np.int64)).split(arrays["prompt_lengths"].tolist())
    drafters = [name.removeprefix("drafts.hit.") for name in arrays if name.startswith("drafts.hit.")]
    return Atlas(Recorded(recorded, prompts), {
        name: Drafts(*(arrays[f"drafts.{part}.{name}"] for part in PARTS)) for name in drafters})


def evaluate(atlas: Atlas, drafter: str | Drafter, tree: Tree) -> pd.DataFrame:
    """What a static tree of a drafter accepts (see `acceptance.tally`): one that is recorded, by its name, or one that
    reads the text alone, which drafts again.
    """
    if isinstance(drafter, TextDrafter):
        return acceptance.tally_walk(atlas.trace, simulated.rounds(atlas.recorded, drafter, tree))
    if drafter not in atlas.trace.ranks:
        raise ValueError(f"drafter {drafter!r} is not in this atlas, which has {', '.join(atlas.trace.ranks)}")
    if tree.max_depth > (levels := levels_of(atlas.trace, drafter)):
        raise ValueError(f"the tree has {tree.max_depth} levels, the atlas {levels} of {drafter!r}: give no deeper one")
    return acceptance.tally_walk(atlas.trace, acceptance.rounds_of(atlas.trace, tree, drafter))


def levels_of(recorded: Trace, drafter: str) -> float:
    """How deep a tree may be on a trace: without a limit where ranks depend on the path alone."""
    ranks = recorded.ranks[drafter]
    return inf if ranks.ndim == 2 else ranks.shape[2]


def evaluate_rule(atlas: Atlas, drafter: str, keep: Callable[[Candidates], Sequence[int]]) -> pd.DataFrame:
    """The same for a rule: keep(candidates) gives the nodes of a draft that it keeps, each with its parent (see
    `growth.Candidates`). ValueError for a drafter without drafts, and for a node without its parent.
    """
    if drafter not in atlas.drafts:
        raise ValueError(f"no drafts of {drafter!r} are in this atlas, but of {', '.join(atlas.drafts) or 'none'}")
    rounds = [one for row, length in enumerate(atlas.trace.starts(DEPTH))
              for one in _chained(atlas.drafts[drafter], row, int(length), keep)]
    return acceptance.tally_walk(atlas.trace, Walk(*np.array(rounds, dtype=np.int64).reshape(-1, 5).T))


def _chained(drafts: Drafts, row: int, length: int, keep) -> Iterator[tuple[int, int, int, int, int]]:
    """The consecutive rounds of a row, in the columns of `Walk`."""
    start = 0
    while start < length:
        candidates, hit = drafts.at(row, start)
        kept = np.zeros(len(hit), dtype=bool)
        kept[np.asarray(keep(candidates), dtype=np.int64)] = True
        kept[ROOT] = True
        if orphans := np.flatnonzero(kept[1:] & ~kept[candidates.parents[1:]]).tolist():
            raise ValueError(f"the rule keeps node {orphans[0] + 1} without its parent "
                             f"{candidates.parents[orphans[0] + 1]}; keep both, or neither")
        end = int(np.flatnonzero(kept & hit)[-1])  # parents come first: the last is the end of the accepted path
        accepted = int(candidates.depth[end])
        yield row, start, accepted, end, int(kept.sum()) - 1
        start += accepted + 1


def drafts_of(recorded: Recorded, drafter: Drafter) -> Drafts:
    """The best-first draft of a drafter that grows trees, at each transition before the limit."""
    family = "ddtree" if drafter.traits.per_depth else "dyspec"
    rule = named(f"{family}:{min(DEPTH, drafter.deepest or DEPTH)}@{NODES}")
    shape = (*recorded.trace.tokens[:, 1:].shape, NODES + 1)
    drafts = Drafts(np.full(shape, NO_PARENT, np.int8), np.zeros(shape, np.uint8), np.zeros(shape, np.float16),
                    np.zeros(shape, bool))
    for row, start, draft, path, _ in simulated.drafted(recorded, drafter, rule, everywhere=True):
        size = draft.tree.size
        drafts.parents[row, start, :size], drafts.rank[row, start, :size] = draft.tree.parents, draft.tree.rank
        drafts.reach[row, start, :size] = np.maximum(draft.reach, np.finfo(np.float16).tiny)
        drafts.hit[row, start, [ROOT, *path]] = True
    return drafts


def publish(recorded: Recorded, drafters: Mapping[str, Drafter], path: str | Path) -> None:
    """Writes a trace with its prompts, and the drafts of drafters by name: ranks up to LAST of AHEAD levels."""
    full = recorded.trace
    small = replace(full, chances={},
                    ranks={name: np.minimum(ranks if ranks.ndim == 2 else ranks[:, :, :AHEAD], LAST)
                           for name, ranks in full.ranks.items()},
                    probs={name: probs for name, probs in full.probs.items() if probs.ndim == 2})
    drafts = {name: drafts_of(recorded, drafter) for name, drafter in drafters.items()}
    trace.save(small, path, {
        "prompt_tokens": torch.cat(list(recorded.prompts)).numpy(),
        "prompt_lengths": np.array([len(ids) for ids in recorded.prompts]),
        **{f"drafts.{part}.{name}": getattr(one, part) for name, one in drafts.items() for part in PARTS}})
