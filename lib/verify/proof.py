"""Proofs of verification rules by enumeration: every draft and every decision of a round, with its probability.

The enumerated function is the one that decodes: its `draws` fork instead of drawing. A language is a function from a
path, the tuple of tokens after the root, to the distribution float64[V] of the next. Start at `law` and `distance`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.trees.growth import Candidates, Growth, grow
from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.rules import verify, without
from lib.verify.warping import warp

Path = tuple[int, ...]
Language = Callable[[Path], Tensor]
ROOT_TOKEN = 0  # any token: conditional distributions depend on the path after the root alone


class Law(NamedTuple):
    """The law of a round: the chance of each tuple of accepted tokens and bonus token; the mean of accepted nodes."""

    emitted: dict[Path, float]
    accepted_length: float

    def extended(self, target: Language, length: int) -> Tensor:
        """float64[V, ..., V]: the joint law of the first `length` tokens if the target continues after the round."""
        law = torch.zeros([len(target(()))] * length, dtype=torch.float64)
        for path, probability in self.emitted.items():
            law[path[:length]] += probability * joint(target, length, path[:length])
        return law


def law(rule: str | Callable, target: Language, drafter: Language, shape: Tree | Growth, proposal: str) -> Law:
    """The exact law of a round; rule: a name, or a function with the arguments of a rule."""
    run = rule if callable(rule) else partial(verify, rule)
    return law_of(run, target, drafts(drafter, shape, proposal))


def law_of(run: Callable, target: Language, drafted: Iterable[tuple[float, Draft]]) -> Law:
    """The exact law of a round in which a rule decides one of these drafts, each with its probability."""
    emitted, accepted_length = defaultdict(float), 0.0
    for draft_chance, draft in drafted:
        paths = draft.token_paths()
        probs = torch.stack([target(path) for path in paths])
        for decision_chance, (accepted, bonus) in outcomes(lambda draws: run(draft, probs, draws)):
            chance = draft_chance * decision_chance
            accepted_length += chance * len(accepted)
            for token, share in settle(bonus):
                emitted[(*paths[accepted[-1] if accepted else ROOT], token)] += chance * share
    return Law(dict(emitted), accepted_length)


def joint(language: Language, length: int, path: Path = ()) -> Tensor:
    """float64[V, ..., V]: the joint law of the tokens after a path, up to `length` tokens with the path."""
    if len(path) == length:
        return torch.ones((), dtype=torch.float64)
    probs = language(path)
    impossible = torch.zeros([len(probs)] * (length - len(path) - 1), dtype=torch.float64)
    return torch.stack([p * joint(language, length, (*path, token)) if p > 0 else impossible
                        for token, p in enumerate(probs)])


def distance(law: Law, target: Language, length: int) -> float:
    """Total variation between the target's next `length` tokens and those of a round that the target continues.

    It is the largest error in the probability of any event. Zero for a lossless rule at any length; to see every error
    of a lossy rule, length must exceed the tree's depth.
    """
    return float((law.extended(target, length) - joint(target, length)).abs().sum()) / 2


def drafts(drafter: Language, shape: Tree | Growth, proposal: str) -> Iterator[tuple[float, Draft]]:
    """Every draft of a shape with its probability; equal drafts are one. A growth rule makes a single one."""
    if isinstance(shape, Growth):
        yield 1.0, grown(drafter, shape)
        return
    found = {}
    for chance, draft in outcomes(lambda draws: fill(drafter, shape, proposal, draws)):
        key = (draft.tree, *draft.token_list, *draft.times_drawn())
        found[key] = found.get(key, (0.0, draft))[0] + chance, draft
    yield from found.values()


def fill(drafter: Language, shape: Tree, proposal: str, draws: Draws) -> Draft:
    """A shape filled with the drafter's best tokens or samples; repeats share a node, with the first one's subtree."""
    paths, counts, parents, node_of = [()], [1], [NO_PARENT], {ROOT: ROOT}  # node_of: by node of the shape
    for slot in range(shape.size):
        if slot not in node_of:  # a repeat, or no token remained to be drawn
            continue
        children, node = shape.children(slot), node_of[slot]
        tokens = _siblings(drafter(paths[node]), shape.rank[list(children)].tolist(), proposal, draws)
        for token in dict.fromkeys(tokens):
            node_of[children[tokens.index(token)]] = len(paths)
            paths.append((*paths[node], token))
            parents.append(node)
            counts.append(tokens.count(token))
    return _draft(drafter, Tree(parents), paths, proposal, torch.tensor(counts))


def _siblings(q: Tensor, ranks: list[int], proposal: str, draws: Draws) -> list[int]:
    """The tokens of children of these ranks, in their order; fewer where the vocabulary is smaller."""
    if proposal == "top_k":
        best = q.sort(descending=True, stable=True).indices.tolist()
        return [best[rank] for rank in ranks if rank < len(best)]
    tokens = []
    for _ in range(len(ranks) if proposal == "iid" else min(len(ranks), len(q))):
        tokens.append(int(draws.categorical(q)))
        if proposal == "without_replacement":
            q = without(q, tokens)
    return tokens


def grown(drafter: Language, rule: Growth) -> Draft:
    """The tree of the drafter's best tokens that a rule grows by its probabilities; no draw decides anything."""
    paths = [()]  # by candidate

    def children(candidates: Candidates, nodes: np.ndarray) -> np.ndarray:
        rows = [drafter(paths[node]).sort(descending=True, stable=True) for node in nodes]
        paths.extend((*paths[node], token) for node, row in zip(nodes, rows)
                     for token in row.indices[: rule.width].tolist())
        return np.stack([row.values[: rule.width].numpy() for row in rows])

    made = grow(rule, children)
    return _draft(drafter, made.tree, [paths[node] for node in made.nodes], "top_k")


def _draft(drafter: Language, tree: Tree, paths: list[Path], proposal: str, counts: Tensor | None = None) -> Draft:
    tokens = torch.tensor([ROOT_TOKEN] + [path[-1] for path in paths[1:]])
    return Draft(tree, tokens, proposal, torch.stack([drafter(path) for path in paths]), counts)


def outcomes(function: Callable[[Forks], Any]) -> Iterator[tuple[float, Any]]:
    """Every result of function(draws) with its probability, where that is above 0; the probabilities sum to one.

    The function runs from its beginning for each, so its draws must be its only source of randomness.
    """
    waiting = [[]]
    while waiting:
        draws = Forks(waiting.pop())
        result = function(draws)
        waiting += draws.other_ways
        yield draws.probability, result


class Forks:
    """Draws of one run: fork i takes ways[i], and forks beyond these take their first possible way. `other_ways` lists
    the `ways` of the runs that take another way at one of the latter.
    """

    def __init__(self, ways: list[int]):
        self.ways, self.passed = ways, 0  # passed: forks so far
        self.probability, self.other_ways = 1.0, []

    def uniform(self) -> Uniform:
        """A number that can only be compared."""
        return Uniform(self)

    def categorical(self, probs: Tensor) -> Token:
        """An index as `Draws` defines it, decided when it is used. ValueError if nothing can be drawn."""
        weights = {index: weight for index, weight in enumerate(probs.tolist()) if weight > 0}
        if not weights:
            raise ValueError("nothing can be drawn where all probabilities are zero")
        return Token(self, weights)

    def fork(self, weights: list[float]) -> int:
        """The index of the way that is taken; the chances of the ways are in proportion to weights."""
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        if len(possible) == 1:
            return possible[0]
        if self.passed == len(self.ways):
            self.other_ways += [[*self.ways, index] for index in possible[1:]]
            self.ways = [*self.ways, possible[0]]
        index = self.ways[self.passed]
        self.passed += 1
        self.probability *= weights[index] / sum(weights)
        return index


class Uniform:
    """A uniform number in an interval. A comparison with a number inside it forks and narrows it, so it stays one."""

    def __init__(self, draws: Forks):
        self.draws, self.low, self.high = draws, 0.0, 1.0

    def __lt__(self, bound) -> bool:
        cut = min(max(float(bound), self.low), self.high)
        below = self.draws.fork([self.high - cut, cut - self.low]) == 1
        self.low, self.high = (self.low, cut) if below else (cut, self.high)
        return below


class Token:
    """An index drawn in proportion to weights. A comparison forks into equal and different, use as an index into all.

    A token that is never used, such as the bonus token, needs no fork: `settle` gives its chances.
    """

    def __init__(self, draws: Forks, weights: dict[int, float]):
        self.draws, self.weights = draws, weights

    def __index__(self) -> int:
        index = list(self.weights)[self.draws.fork(list(self.weights.values()))]
        self.weights = {index: 1.0}
        return index

    __int__ = __index__

    def __eq__(self, other) -> bool:
        chance = self.weights.get(int(other), 0.0)
        others = {index: weight for index, weight in self.weights.items() if index != int(other)}
        equal = self.draws.fork([sum(others.values()), chance]) == 1
        self.weights = {int(other): 1.0} if equal else others
        return equal


def settle(token: int | Token) -> list[tuple[int, float]]:
    """The possible values of a drawn token, with their chances after the decisions so far."""
    if not isinstance(token, Token):
        return [(int(token), 1.0)]
    total = sum(token.weights.values())
    return [(index, weight / total) for index, weight in token.weights.items()]


@dataclass(frozen=True)
class Logits:
    """Logits float64[V] after every path of up to some tokens."""

    by_path: dict[Path, Tensor]

    @classmethod
    def random(cls, vocabulary: int, depth: int, generator: torch.Generator) -> Logits:
        """Independent standard normal logits after each path of up to `depth` tokens."""
        paths = [path for length in range(depth + 1) for path in product(range(vocabulary), repeat=length)]
        return cls({path: torch.randn(vocabulary, dtype=torch.float64, generator=generator) for path in paths})

    def related(self, agreement: float, generator: torch.Generator) -> Logits:
        """A drafter for this target: logits whose correlation with these is `agreement`, from 0 to 1 (the same)."""
        noise = (1 - agreement**2) ** 0.5
        return Logits({path: agreement * logits + noise * logits.new_empty(len(logits)).normal_(generator=generator)
                       for path, logits in self.by_path.items()})

    def language(self, temperature: float = 1.0, spread: float = 2.0) -> Language:
        """The conditional distributions at a temperature; a larger spread makes each next token more certain."""
        probs = {path: warp(spread * logits, temperature) for path, logits in self.by_path.items()}
        return probs.__getitem__


def random_pair(seed: int, vocabulary: int = 3, depth: int = 3) -> list[Language]:
    """A random target and drafter, more or less related; every third pair has zeros, every fifth is nearly certain."""
    generator = torch.Generator().manual_seed(seed)
    target = Logits.random(vocabulary, depth, generator)
    drafter = target.related(float(torch.rand((), generator=generator)), generator)
    spread = 12.0 if seed % 5 == 4 else 2.0
    pair = [target.language(1.0, spread), drafter.language(1.0, spread)]
    return [_thinned(language, index) for index, language in enumerate(pair)] if seed % 3 == 2 else pair


def _thinned(language: Language, index: int) -> Language:
    """The language without one token after each path; the token changes with the path and with the index."""
    def probs(path):
        p = language(path).clone()
        p[(sum(path) + index + len(path)) % len(p)] = 0
        return p / p.sum()

    return probs


def constant(*masses: float) -> Language:
    """The language with the same conditional distribution after every path."""
    p = torch.tensor(masses, dtype=torch.float64)
    p = p / p.sum()
    return lambda path: p


def _turning(language: Language) -> Language:
    """The language with its tokens rotated by the depth, so that levels differ."""
    return lambda path: language(path).roll(len(path))


_mild = random_pair(1)[0]
# Pairs that have exposed wrong rules: disjoint supports, zeros, ties, certainty, equality.
HARD = {
    "equal": (_mild, _mild),
    "uniform, equal": (constant(1, 1, 1), constant(1, 1, 1)),
    "disjoint": (constant(1, 2, 0), constant(0, 0, 1)),
    "disjoint, drafter wide": (constant(0, 0, 1), constant(3, 1, 0)),
    "overlap in one": (constant(1, 1, 0), constant(0, 1, 2)),
    "target certain": (constant(0, 1, 0), constant(2, 1, 1)),
    "drafter certain, right": (constant(2, 1, 1), constant(1, 0, 0)),
    "drafter certain, wrong": (constant(0, 2, 1), constant(1, 0, 0)),
    "both certain, equal": (constant(1, 0, 0), constant(1, 0, 0)),
    "both certain, apart": (constant(1, 0, 0), constant(0, 1, 0)),
    "ties": (constant(2, 1, 1), constant(1, 1, 2)),
    "drafter nearly certain": (constant(1, 1, 1), constant(1, 1e-9, 1e-18)),
    "drafter almost equal": (constant(0.5, 0.3, 0.2), constant(0.5, 0.3 + 1e-15, 0.2 - 1e-15)),
    "a denormal": (constant(1, 1e-310, 1), constant(1e-310, 1, 1)),
    "turning": (_turning(constant(3, 2, 0)), _turning(constant(0, 1, 1))),
    "turning, apart": (_turning(constant(3, 0, 1)), _turning(constant(0, 1, 0))),
}
