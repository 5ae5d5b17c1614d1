"""The forms of draft that engines take (any static tree, a tree of equal levels, a chain, a dynamic tree), and the
parsing of their lines.
"""

import ast
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib.trees.growth.layered import Eagle2
from lib.trees.tree import Tree

ANY_RANK = 1 << 20  # for engines without a limit on ranks
TREE, LEVELS, CHAIN, DYNAMIC = "any tree", "equal levels", "chain", "dynamic tree"


@dataclass(frozen=True)
class Dynamic:
    """A tree that an engine grows anew in each round (EAGLE-2): `steps` levels; the best `top_k` nodes of each level
    get `top_k` children each, and the `nodes` best of all candidates are verified, root excluded.
    """

    steps: int
    top_k: int
    nodes: int

    def __post_init__(self):
        if self.steps < 1 or self.top_k < 1:
            raise ValueError(f"a dynamic tree of {self.steps} steps and top_k {self.top_k}: give at least 1 each")
        if not 1 <= self.nodes <= self.candidates:
            raise ValueError(f"a dynamic tree of {self.nodes} nodes: {self.steps} steps of top_k {self.top_k} give "
                             f"1 to {self.candidates}")

    @property
    def candidates(self) -> int:
        """Nodes from which the verified ones are chosen."""
        return self.top_k + (self.steps - 1) * self.top_k**2

    @property
    def rule(self) -> Eagle2:
        """The growth rule that the engine follows."""
        return Eagle2(self.top_k, self.steps, self.nodes)

    @property
    def widths(self) -> list[int]:
        """Nodes of each forward pass of the drafter: the root, then the best of every level but the last."""
        return [1, *[self.top_k] * (self.steps - 1)]

    @classmethod
    def like(cls, tree: Tree) -> "Dynamic":
        """The dynamic tree with a static one's depth and nodes, and with its widest level of nodes with children or
        its largest family as top-k: it can grow every node of the static one.
        """
        if not tree.budget:
            raise ValueError("a tree without nodes has no dynamic counterpart: switch speculation off")
        families = np.bincount(tree.parents[1:])
        inner = np.unique(tree.parents[1:])
        return cls(tree.max_depth, int(max(families.max(), np.bincount(tree.depth[inner]).max())), tree.budget)


def equal_levels(tree: Tree) -> list[int] | None:
    """[k1, k2, ..]: the number of children of every node at each level; None where nodes of one level differ."""
    families = np.bincount(tree.parents[1:], minlength=tree.size)
    levels = []
    for depth in range(tree.max_depth):
        own = set(families[tree.depth == depth].tolist())
        if len(own) != 1:
            return None
        levels.append(own.pop())
    gapless = all(tree.rank[list(tree.children(node))].tolist() == list(range(families[node]))
                  for node in range(tree.size))
    return levels if gapless else None


def length_of_chain(tree: Tree, engine: str) -> int:
    """The number of nodes of a chain of rank-0 nodes. ValueError for any other tree, and for an empty one."""
    if not tree.budget or tree.max_depth < tree.budget or tree.rank.any():
        raise ValueError(f"{engine} drafts chains, not {tree!r} with ranks {tree.rank.tolist()}: "
                         "give its nearest setting, see engines.nearest")
    return tree.budget


def favourites(text: str, most_rank: int) -> Tree:
    """The tree of a Python list of choices, such as "[(0,), (0, 0)]": lists or tuples of ranks below a limit."""
    try:
        choices = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        choices = None
    return within(tree_of(choices, text), most_rank)


def tree_of(choices, text: str) -> Tree:
    """The tree of a list of choices. ValueError, which quotes the text that it came from, where it is no such list."""
    lists = isinstance(choices, (list, tuple)) and all(isinstance(choice, (list, tuple)) for choice in choices)
    if not lists or not all(isinstance(rank, int) for choice in choices for rank in choice):
        raise ValueError(f"{text[:60]!r} is no list of choices: write one such as [(0,), (0, 0), (1,)]")
    return Tree.from_choices(choices)


def whole(given: Mapping[str, object], names: Sequence[str], text: str) -> list[int]:
    """The whole numbers under these names among options or keywords. ValueError where one is missing or no number."""
    numbers = []
    for name in names:
        value = given.get(name)
        if isinstance(value, bool) or not str(value).isdecimal():
            raise ValueError(f"{text[:60]!r} has {name} {value}: give a whole number" if name in given else
                             f"{text[:60]!r} lacks {name}: give it, a whole number")
        numbers.append(int(value))
    return numbers


def within(tree: Tree, most_rank: int) -> Tree:
    """The tree itself. ValueError where it has a rank that the engine does not know."""
    if tree.rank.max(initial=0) >= most_rank:
        raise ValueError(f"the tree has a child of rank {tree.last_rank}; the engine keeps the {most_rank} best "
                         "tokens of a position: give its nearest setting, see engines.nearest")
    return tree


def options(text: str) -> dict[str, str]:
    """A command line's options by name without dashes, each with its value, after a space or "=". ValueError for a
    text that no shell accepts.
    """
    try:
        words = [part for word in shlex.split(text) for part in (word.split("=", 1) if word[:1] == "-" else [word])]
    except ValueError as reason:
        raise ValueError(f"{text[:60]!r} is no command line: {reason}") from None
    return {word.lstrip("-"): value for word, value in zip(words, words[1:])
            if word.startswith("-") and not value.startswith("-")}


def keywords(text: str) -> dict[str, object]:
    """The constant keywords of a Python call. ValueError for any other text."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (AttributeError, SyntaxError, ValueError):
        raise ValueError(f"{text[:60]!r} is no call with constant keywords") from None
