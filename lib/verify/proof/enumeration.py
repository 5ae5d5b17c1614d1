"""The exact law of the tokens that a verification rule emits: every draft and every decision, with its probability.

The enumerated function is the one that decodes: its `draws` fork here instead of drawing. A language is a function
from a path, the tuple of tokens after the root, to the distribution float64[V] of the next token.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lib.trees.growth import Candidates, Growth, grow
from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.proof.forks import outcomes, settle
from lib.verify.rules import verify, without

Language = Callable[[tuple[int, ...]], Tensor]
Path = tuple[int, ...]
ROOT_TOKEN = 0  # any token: conditional distributions depend on the path after the root alone


@dataclass(frozen=True)
class Law:
    """The law of a round: the probability of each tuple of accepted tokens and bonus token, and the mean number of
    accepted nodes.
    """

    emitted: dict[Path, float]
    accepted_length: float

    def extended(self, target: Language, length: int) -> Tensor:
        """float64[V, ..., V]: the joint law of the first `length` tokens if the target continues after the round."""
        law = torch.zeros([len(target(()))] * length, dtype=torch.float64)
        for path, probability in self.emitted.items():
            law[path[:length]] += probability * joint(target, length, path[:length])
        return law


def law(rule: str | Callable, target: Language, drafter: Language, shape: Tree | Growth, proposal: str) -> Law:
    """The exact law of a round; rule: a name, or a function with the arguments of a rule.

    The work is proportional to the number of drafts times the decisions of the rule.
    """
    run = rule if callable(rule) else partial(verify, rule)
    return law_of(run, target, drafts(drafter, shape, proposal))


def law_of(run: Callable, target: Language, drafted: Iterable[tuple[float, Draft]]) -> Law:
    """The exact law of a round in which a rule decides one of these drafts, each with its probability."""
    emitted: dict[Path, float] = defaultdict(float)
    accepted_length = 0.0
    for draft_chance, draft in drafted:
        paths = tokens_of(draft)
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


def total_variation(one: Tensor, other: Tensor) -> float:
    """Half the sum of absolute differences: the largest error in the probability of any event."""
    return float((one - other).abs().sum()) / 2


def distance(law: Law, target: Language, length: int) -> float:
    """Total variation between the target's next `length` tokens and those of a round that the target continues.

    Zero for a lossless rule at any length; to see every error of a lossy rule, length must exceed the tree's depth.
    """
    return total_variation(law.extended(target, length), joint(target, length))


def drafts(drafter: Language, shape: Tree | Growth, proposal: str) -> Iterator[tuple[float, Draft]]:
    """Every draft of a shape with its probability; equal drafts are one. A growth rule makes a single one."""
    if isinstance(shape, Growth):
        yield 1.0, grown(drafter, shape)
        return
    found: dict[tuple, tuple[float, Draft]] = {}
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
    tokens: list[int] = []
    for _ in range(len(ranks) if proposal == "iid" else min(len(ranks), len(q))):
        tokens.append(int(draws.categorical(q)))
        if proposal == "without_replacement":
            q = without(q, tokens)
    return tokens


def grown(drafter: Language, rule: Growth) -> Draft:
    """The tree of the drafter's best tokens that a rule grows by its probabilities; no draw decides anything."""
    paths: list[Path] = [()]  # by candidate

    def children(candidates: Candidates, nodes: np.ndarray) -> np.ndarray:
        rows = [drafter(paths[node]).sort(descending=True, stable=True) for node in nodes.tolist()]
        paths.extend((*paths[node], token) for node, row in zip(nodes.tolist(), rows)
                     for token in row.indices[: rule.width].tolist())
        return np.stack([row.values[: rule.width].numpy() for row in rows])

    made = grow(rule, children)
    return _draft(drafter, made.tree, [paths[node] for node in made.nodes.tolist()], "top_k")


def _draft(drafter: Language, tree: Tree, paths: list[Path], proposal: str, counts: Tensor | None = None) -> Draft:
    tokens = torch.tensor([ROOT_TOKEN] + [path[-1] for path in paths[1:]])
    return Draft(tree, tokens, proposal, torch.stack([drafter(path) for path in paths]), counts)


def tokens_of(draft: Draft) -> list[Path]:
    """The tokens of the path to each node, the root's excluded."""
    return [tuple(draft.tokens_of(draft.tree.path(node)[1:])) for node in range(draft.tree.size)]
