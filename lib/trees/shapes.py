"""Static shapes of a draft tree: of a given branching, and grown from measured acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from lib.trees.growth import BestFirst, grow, whole_number
from lib.trees.tree import NO_PARENT, ROOT, Tree

MOST_NODES = 1 << 16  # far more than one forward pass can verify; a typed "kary:9,9" must not fill the memory


def chain(length: int) -> Tree:
    """One path of favourites (Leviathan et al. 2023); length 0 drafts nothing."""
    return level_order(length)


def star(count: int) -> Tree:
    """`count` candidates for the next token and nothing below them."""
    return level_order(count, then=MOST_NODES)


def independent(count: int, length: int) -> Tree:
    """`count` chains of `length` nodes that share only the root: the drafter's best first tokens, each continued."""
    return level_order(count * whole_number(length, "length"), [count])


def kary(branching: int, depth: int) -> Tree:
    """The complete tree in which every node above `depth` has `branching` children."""
    return expansion([branching] * min(whole_number(depth, "depth"), MOST_NODES + 1))


def expansion(branching_by_depth: Sequence[int]) -> Tree:
    """<k1, k2, ...>: every node at depth d has k_(d+1) children (SpecInfer, section 3)."""
    return level_order(sum(accumulate(branching_by_depth, mul)), branching_by_depth)


def level_order(budget: int, first_levels: Sequence[int] = (), then: int = 1, favourites_only: bool = False) -> Tree:
    """The first `budget` draft nodes of an endless tree, level by level, left to right.

    So the tree of a smaller budget is the beginning of a larger one. first_levels: the number of children of a node at
    depth 0, 1, ...; then: that of all deeper nodes. favourites_only: whether only favourites of favourites have
    children. ValueError for a branching or budget that is no such number, and for more than `MOST_NODES`.
    """
    for branching in (*first_levels, then):
        whole_number(branching, "branching")
    if whole_number(budget, "budget", least=0) > MOST_NODES:
        raise ValueError(f"the shape has more than {MOST_NODES} draft nodes: give fewer branches, levels or budget")
    parents, level, depth = [NO_PARENT], [(ROOT, True)], 0
    while len(parents) <= budget:
        branching, next_level = first_levels[depth] if depth < len(first_levels) else then, []
        for parent, favourite in level:
            missing = budget + 1 - len(parents)
            for rank in range(min(branching, missing) if favourite or not favourites_only else 0):
                next_level.append((len(parents), favourite and rank == 0))
                parents.append(parent)
        level, depth = next_level, depth + 1
    return Tree(parents)


def sparse(acceptance_by_depth_and_rank, budget: int) -> Tree:
    """The `budget` nodes of largest path product, grown greedily (Medusa, section 2.3.3); ranks may have gaps.

    acceptance_by_depth_and_rank: float[D, R] in [0, 1], row d for depth d + 1; float[R] holds for every depth.
    Ties go to the shallower node, then to the better ranks. ValueError if D and R leave too few nodes.
    """
    acceptance = _probabilities(acceptance_by_depth_and_rank, whole_number(budget, "budget", least=0))
    rule = BestFirst(budget, max_depth=len(acceptance))
    tree = grow(rule, lambda candidates, nodes: np.tile(acceptance[candidates.levels], (len(nodes), 1))).tree
    if tree.budget < budget:
        raise ValueError(f"budget {budget} is more than the {tree.budget} nodes that acceptance of shape "
                         f"{acceptance.shape} (depths, ranks) allows: give more depths or ranks, or a smaller budget")
    return tree


def optimal(acceptance_by_rank, budget: int, max_depth: int | None = None) -> Tree:
    """The tree of `budget` nodes with the largest expected accepted length (Sequoia, Alg. 1; its p_k by child rank).

    acceptance_by_rank: float[R] in [0, 1], entry r the probability that the target accepts the child of rank r.
    Siblings have the first ranks, without gaps. ValueError if R and max_depth leave too few nodes.
    """
    acceptance, limited = _probabilities(acceptance_by_rank), max_depth is not None
    budget = whole_number(budget, "budget", least=0)
    tables = [_best_subtrees(acceptance[:0] if limited else acceptance, budget + 1)]  # of depth 0: one node
    for _ in range(min(whole_number(max_depth, "max_depth", least=0), budget) if limited else 0):
        tables.append(_best_subtrees(acceptance, budget + 1, below=tables[-1][0]))
    if np.isneginf(tables[-1][0][budget + 1]):
        raise ValueError(f"no tree of {budget} nodes has at most {len(acceptance)} children per node and depth "
                         f"{max_depth}: give more ranks, a larger max_depth, or a smaller budget")
    choices, pending = [], [((), budget + 1, len(tables) - 1)]
    while pending:
        path, size, level = pending.pop()
        _, num_children, last_child_sizes = tables[level]
        for rank in reversed(range(num_children[size])):  # size: of the subtree without the later siblings' subtrees
            child_size = last_child_sizes[rank + 1, size]
            choices.append(path + (rank,))
            pending.append((path + (rank,), child_size, level - limited))
            size -= child_size
    return Tree.from_choices(choices)


def _best_subtrees(acceptance: np.ndarray, largest: int,
                   below: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best subtrees by their size N, root included: their value float[N + 1] and number of branches int64[N + 1],
    and by number of branches the size of the last child's subtree, int64[B + 1, N + 1].

    table[b, size] = max over m of table[b - 1, size - m] + acceptance[b - 1] below[m]; `below` is `value` of the next
    level. Without a limit on depth (None) it is this level's own `value`, which is complete for m < size.
    """
    branches_most = min(len(acceptance), largest - 1)
    table = np.full((branches_most + 1, largest + 1), -np.inf)
    taken = np.zeros((branches_most + 1, largest + 1), dtype=np.int64)
    table[0, 1] = 1.0
    value = np.full(largest + 1, -np.inf)
    value[1] = 1.0
    below = value if below is None else below
    for size in range(2, largest + 1):
        for branch in range(1, min(branches_most, size - 1) + 1):
            last_child = np.arange(1, size)
            with np.errstate(invalid="ignore"):
                gain = np.where(np.isneginf(below[1:size]), -np.inf, acceptance[branch - 1] * below[1:size])
            candidates = table[branch - 1, size - last_child] + gain
            best = int(candidates.argmax())
            table[branch, size], taken[branch, size] = candidates[best], last_child[best]
        value[size] = table[:, size].max()
    return value, table.argmax(axis=0), taken


def reach(tree: Tree, acceptance) -> np.ndarray:
    """float[m]: each node's probability of acceptance under the rank model, the product of acceptance along its path.

    acceptance: float[R] by rank, or float[D, R] by depth and rank; deeper nodes and higher ranks are never accepted.
    The model assumes that each step's acceptance is independent of the path (Sequoia, Prop. 3.4).
    """
    steps = np.pad(_probabilities(acceptance, tree.max_depth), ((0, tree.max_depth), (0, tree.rank.max() + 1)))
    reach = np.ones(tree.size)
    for node in range(1, tree.size):
        reach[node] = reach[tree.parents[node]] * steps[tree.depth[node] - 1, tree.rank[node]]
    return reach


def expected_accepted(tree: Tree, acceptance) -> float:
    """The mean accepted length under the rank model: the sum of `reach` over the draft nodes."""
    return float(reach(tree, acceptance)[1:].sum())


def _probabilities(values, depths: int | None = None) -> np.ndarray:
    """float64[R] of these values, or with `depths` float64[D, R], where values [R] hold for so many depths.

    ValueError for other shapes, and for values outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or array.ndim != 1 and (depths is None or array.ndim != 2):
        shapes = "[ranks]" if depths is None else "[ranks] or [depths, ranks]"
        raise ValueError(f"acceptance has shape {array.shape}: give {shapes}")
    outside = ~((array >= 0) & (array <= 1))
    if outside.any():
        raise ValueError(f"acceptance holds {array[outside][0]}: give probabilities from 0 to 1")
    return array if depths is None or array.ndim == 2 else np.tile(array, (depths, 1))
