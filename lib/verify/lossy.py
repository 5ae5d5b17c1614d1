"""Rules that do not keep the target's law: longer paths for a distribution that is only near the target's.

What each emits where it accepts no further, and which path it takes where several qualify, is part of its definition.
"""

import math

import torch
from torch import Tensor

from lib.tree import ROOT
from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws


def typical(
    draft: Draft, target_probs: Tensor, draws: Draws, *, epsilon: float = 0.09, delta: float = 0.3
) -> tuple[list[int], int]:
    """Medusa's typical acceptance (Cai et al. 2024, section 2.3.1): a token qualifies if p >= min(epsilon, delta
    exp(-H(p))).

    Taken is the deepest node of which it and all its ancestors qualify; among equally deep ones that of the largest
    product of p along its path, then the first in node order. The bonus token is drawn from p there, and may be a
    child that did not qualify. H in nats.
    """
    tokens, tree = draft.tokens.tolist(), draft.tree
    likelihood = {ROOT: 1.0}
    for node in range(tree.size):
        children = tree.children(node) if node in likelihood else ()
        if children:
            p = target_probs[node]
            chances = p[[tokens[child] for child in children]].tolist()
            least = epsilon
            if min(chances) < epsilon:  # the entropy is a slow pass over the vocabulary
                least = min(epsilon, delta * math.exp(-entropy(p)))
            likelihood |= {
                child: likelihood[node] * chance for child, chance in zip(children, chances) if chance >= least
            }
    best = max(likelihood, key=lambda node: (tree.depth[node], likelihood[node], -node))
    return list(tree.path(best)[1:]), draws.categorical(target_probs[best])


def entropy(p: Tensor) -> float:
    """H(p) in nats, p float[V]."""
    return -float(p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p).sum())


def deterministic(draft: Draft, target_probs: Tensor, draws: Draws, *, share: float = 1.0) -> tuple[list[int], int]:
    """Accept x if p(x) >= share q(x), without randomness; q is the drafter's probability, for top-k children its
    confidence.

    Children are looked at by rank or in draw order, the first that qualifies is taken. None: the bonus token is drawn
    from p, and may be a child that did not qualify.
    """

    def decide(node: int, tokens: dict[int, int]):
        p, q = target_probs[node], draft.proposal_at(node, target_probs)
        child = next((child for child, token in tokens.items() if p[token] >= share * q[token]), None)
        return child, p

    return descend(draft, target_probs, draws, decide)


def conservative(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """`deterministic` with half of the drafter's probability: accept x if p(x) >= q(x) / 2."""
    return deterministic(draft, target_probs, draws, share=0.5)


def threshold(
    draft: Draft, target_probs: Tensor, draws: Draws, *, single: float = 0.3, total: float = 1.0
) -> tuple[list[int], int]:
    """Naive sampling with the door ajar, as SGLang's speculative_accept_threshold_single and _acc offer it.

    One U a family: children are looked at by rank or in draw order, with s the sum of p over those seen so far, this
    one included; x is accepted if U < s / total or p(x) >= single. None: the bonus token is drawn from p without the
    children. With single > 1 and total = 1 it is naive sampling in law.
    """

    def decide(node: int, tokens: dict[int, int]):
        p, coin, seen = target_probs[node], draws.uniform(), 0.0
        for child, token in tokens.items():
            chance = float(p[token])
            seen += chance
            if chance >= single or coin < seen / total:
                return child, None
        rest = p.clone()
        rest[list(tokens.values())] = 0
        return None, rest if rest.sum() > 0 else p

    return descend(draft, target_probs, draws, decide)
