"""Rules that do not keep the target's distribution: longer paths, for text that is only close to the target's.

Each definition includes the distribution of the bonus token, and the path that is taken where several qualify.
"""

import math
from typing import Callable

import torch
from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws, descend
from lib.verify.draws import bit_sum, native_sums_fit

LINEAR_ERROR = 0.062  # nats: log2(1 + x) - x is at most 0.0861, which is 0.0597 nats, and some rounding


def typical(
    draft: Draft, target_probs: Tensor, draws: Draws, *, epsilon: float = 0.09, delta: float = 0.3
) -> tuple[list[int], int]:
    """Medusa's typical acceptance (Cai et al. 2024, section 2.3.1): x qualifies if p(x) >= min(epsilon, delta
    exp(-H(p))).

    Accepted is the deepest node that qualifies together with all its ancestors; among equally deep nodes the one with
    the largest product of p along its path, then the first in node order. The bonus token is drawn from p there, and
    may be a child that did not qualify. H in nats.
    """
    tree, p_at = draft.tree, draft.entries(target_probs)
    likelihood = {ROOT: 1.0}
    for node in range(tree.size):
        children = tree.children(node) if node in likelihood else ()
        if children:
            chances = {child: p_at(child) for child in children}
            enough = ample(target_probs[node], delta) if min(chances.values()) < epsilon else None
            likelihood |= {child: likelihood[node] * chance
                           for child, chance in chances.items()
                           if chance >= epsilon or enough(chance)}
    best = max(likelihood, key=lambda node: (tree.depth[node], likelihood[node], -node))
    return list(tree.path(best)[1:]), draws.categorical(target_probs[best])


def ample(p: Tensor, delta: float) -> Callable[[float], bool]:
    """chance -> whether chance >= delta exp(-H(p)), p float[V]; logarithms are computed only if bounds of H do not
    decide it."""
    most = entropy_at_most(p)
    least, sure = delta * math.exp(-most), delta * math.exp(LINEAR_ERROR - most)
    return lambda chance: chance >= sure or chance >= least and chance >= delta * math.exp(-entropy(p))


def entropy(p: Tensor) -> float:
    """H(p) in nats, p float[V]."""
    return -float(p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p).sum())


def entropy_at_most(p: Tensor) -> float:
    """An upper bound of H(p) in nats, at most LINEAR_ERROR above it, p float[V].

    The bits of a floating-point number, read as an integer, are its binary logarithm with straight lines between
    powers of two (Mitchell 1962), in a tenth of a logarithm's time.
    """
    p = p if p.dtype == torch.float64 else p.float()
    integer, digits, bias = (torch.int64, 52, 1023) if p.dtype == torch.float64 else (torch.int32, 23, 127)
    mean_bits = bit_sum(p) if native_sums_fit(p) else float(torch.dot(p.view(integer).to(p.dtype), p))
    return math.log(2) * (bias - mean_bits / 2**digits)


def deterministic(draft: Draft, target_probs: Tensor, draws: Draws, *, share: float = 1.0) -> tuple[list[int], int]:
    """Accept x if p(x) >= share q(x), without randomness; for top-k children q is the drafter's confidence.

    Children are tried by rank or in draw order, and the first that qualifies is accepted. If none does, the bonus token
    is drawn from p, and may be a child that did not qualify.
    """
    p, q = draft.entries(target_probs), draft.entries(draft.proposal_probs())

    def decide(node: int, children: tuple[int, ...]):
        child = next((child for child in children if p(child) >= share * q(child)), None)
        return child, draws.categorical(target_probs[node]) if child is None else None

    return descend(draft, target_probs, draws, decide)


def conservative(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """`deterministic` with half of the drafter's probability: accept x if p(x) >= q(x) / 2."""
    return deterministic(draft, target_probs, draws, share=0.5)


def threshold(
    draft: Draft, target_probs: Tensor, draws: Draws, *, single: float = 0.3, total: float = 1.0
) -> tuple[list[int], int]:
    """Naive sampling with thresholds, as SGLang's speculative_accept_threshold_single and _acc set them.

    One U per family: children are tried by rank or in draw order, with s the sum of p over the children tried so far,
    this one included; x is accepted if U < s / total or p(x) >= single. If none is, the bonus token is drawn from p
    without the children. With single > 1 and total = 1 the law is that of naive sampling.
    """
    tokens, p_at = draft.token_list, draft.entries(target_probs)

    def decide(node: int, children: tuple[int, ...]):
        number, seen = draws.uniform(), 0.0
        for child in children:
            seen += p_at(child)
            if p_at(child) >= single or number < seen / total:
                return child, None
        p = target_probs[node]
        return None, draws.categorical(p, without=[tokens[child] for child in children], otherwise=p)

    return descend(draft, target_probs, draws, decide)
