"""The draft tree: one frozen list of parents, from which depth, rank, mask and paths are derived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

ROOT = 0
NO_PARENT = -1


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A draft tree's shape: node 0 is the last committed token, the others are draft tokens; parents precede children.

    parents: int64[m], m = n + 1, parents[0] == -1 and 0 <= parents[i] < i.
    rank: int64[m], a node's place among its siblings in the drafter's order (0 for its favourite), rank[0] == 0; by
        default the order in `parents`. Ranks may have gaps.
    Both are read-only copies. ValueError names the node, its value and the remedy.
    """

    parents: np.ndarray
    rank: np.ndarray = None

    def __post_init__(self):
        parents = _as_int64(self.parents, "parents")
        _check_parents(parents)
        rank = _order_among_siblings(parents) if self.rank is None else _as_int64(self.rank, "rank")
        _check_rank(parents, rank)
        object.__setattr__(self, "parents", _read_only(parents))
        object.__setattr__(self, "rank", _read_only(rank))

    @classmethod
    def from_choices(cls, choices: Iterable[Sequence[int]]) -> Tree:
        """The tree with one node per tuple of ranks, in any order, in Medusa's notation: (0,), (0, 0), (1,).

        Nodes are numbered level by level, siblings by rank. ValueError for a tuple that occurs twice, is empty, or
        whose parent is missing.
        """
        node_of, parents, rank = {(): ROOT}, [NO_PARENT], [0]
        for choice in sorted((tuple(map(int, choice)) for choice in choices), key=lambda choice: (len(choice), choice)):
            if choice in node_of:
                raise ValueError(f"choice {choice} is given twice, or is the root, which every tree has: leave it out")
            if choice[:-1] not in node_of:
                raise ValueError(f"choice {choice} has no parent: add {choice[:-1]}, or leave {choice} out")
            node_of[choice] = len(parents)
            parents.append(node_of[choice[:-1]])
            rank.append(choice[-1])
        return cls(parents, rank)

    @property
    def size(self) -> int:
        """m: the number of nodes, the root included."""
        return len(self.parents)

    @property
    def budget(self) -> int:
        """n: the number of draft nodes, the root excluded."""
        return self.size - 1

    @cached_property
    def depth(self) -> np.ndarray:
        """int64[m]: edges from the root; a node's position id is the prefix length plus its depth."""
        depth = np.zeros(self.size, dtype=np.int64)
        for node in range(1, self.size):
            depth[node] = depth[self.parents[node]] + 1
        return _read_only(depth)

    @property
    def is_path(self) -> bool:
        """Whether no node has a sibling: a chain, of whatever ranks, or the root alone."""
        return self.max_depth == self.budget

    @cached_property
    def max_depth(self) -> int:
        """The most draft tokens that a round can accept."""
        return int(self.depth.max())

    @cached_property
    def mask(self) -> np.ndarray:
        """bool[m, m]: row i is true at the nodes that node i attends to: itself and its ancestors."""
        mask = np.eye(self.size, dtype=bool)
        for node in range(1, self.size):
            mask[node] |= mask[self.parents[node]]
        return _read_only(mask)

    @cached_property
    def leaves(self) -> np.ndarray:
        """int64[]: nodes without children, in node order; the root if there is no draft node."""
        return _read_only(np.setdiff1d(np.arange(self.size), self.parents))

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        children = [()] * self.size
        for node in np.argsort(self.rank, kind="stable").tolist()[1:]:  # without the root
            children[self.parents[node]] += (node,)
        return tuple(children)

    def children(self, node: int) -> tuple[int, ...]:
        """A node's children, by rank."""
        return self._children[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to this node, both included."""
        return tuple(int(ancestor) for ancestor in np.flatnonzero(self.mask[node]))

    def paths(self) -> list[tuple[int, ...]]:
        """One path for each leaf, from the root to the leaf, in the order of `leaves`."""
        return [*map(self.path, self.leaves)]

    def choices(self) -> list[tuple[int, ...]]:
        """One tuple of ranks for each draft node, in node order: the rank of the child at each depth of its path."""
        choices = [()]
        for node in range(1, self.size):
            choices.append(choices[self.parents[node]] + (int(self.rank[node]),))
        return choices[1:]

    def __eq__(self, other) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return np.array_equal(self.parents, other.parents) and np.array_equal(self.rank, other.rank)

    def __hash__(self) -> int:
        return hash((self.parents.tobytes(), self.rank.tobytes()))

    def __repr__(self) -> str:
        return f"Tree(budget={self.budget}, depth={self.max_depth}, leaves={len(self.leaves)})"


def _as_int64(values, name: str) -> np.ndarray:
    array = np.array(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: give one integer per node, the root first")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}: give integers")
    return array.astype(np.int64)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _check_parents(parents: np.ndarray) -> None:
    if parents[ROOT] != NO_PARENT:
        raise ValueError(f"parents[0] is {parents[ROOT]}: node 0 is the root, its parent must be {NO_PARENT}")
    wrong = (parents < 0) | (parents >= np.arange(len(parents)))
    wrong[ROOT] = False
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(f"parents[{node}] is {parents[node]}: it must be a node from 0 to {node - 1}; "
                         "order the nodes so that parents precede children")


def _check_rank(parents: np.ndarray, rank: np.ndarray) -> None:
    if len(rank) != len(parents):
        raise ValueError(f"rank has {len(rank)} entries for {len(parents)} nodes: give one for each, the root included")
    wrong = rank < 0
    wrong[ROOT] = rank[ROOT] != 0
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(f"rank[{node}] is {rank[node]}: ranks count from 0, and the root's is 0")
    order = np.lexsort((rank, parents))
    twins = (np.diff(parents[order]) == 0) & (np.diff(rank[order]) == 0)
    if twins.any():
        first, second = order[twins.argmax()], order[twins.argmax() + 1]
        raise ValueError(f"rank[{second}] is {rank[second]}, as is that of its sibling {first}: "
                         "siblings need distinct ranks; merge the two nodes or rank one lower")


def _order_among_siblings(parents: np.ndarray) -> np.ndarray:
    order = np.argsort(parents, kind="stable")  # siblings adjacent, each family in node order
    first_of_family = np.searchsorted(parents[order], parents[order])
    rank = np.empty(len(parents), dtype=np.int64)
    rank[order] = np.arange(len(parents)) - first_of_family
    return rank
