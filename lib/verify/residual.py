"""Rules that accept a drawn child with a probability, and after a rejection go on with the residual of the target."""

import torch
from torch import Tensor

from lib.tree import ROOT
from lib.verify.draft import Draft, Draws


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2), for children drawn independently from q.

    The drawn children, repeats counted, are tried in random order: x is accepted if U <= p(x) / q(x), else p becomes the
    normalised (p - q)+ and one draw of x is used up. None left: emit from p.
    """
    tokens, node, accepted = draft.tokens.tolist(), ROOT, []
    counts = draft.counts.tolist() if draft.counts is not None else [1] * draft.tree.size
    while True:
        p, q = target_probs[node], draft.probs[node] if draft.tree.children(node) else None
        left = {child: counts[child] for child in draft.tree.children(node)}
        taken = None
        while left and taken is None:
            children = list(left)
            weights = torch.tensor([float(left[child]) for child in children], dtype=torch.float64)
            child = children[draws.categorical(weights)] if len(children) > 1 else children[0]
            if draws.uniform() <= ratio(p[tokens[child]], q[tokens[child]]):
                taken = child
                continue
            p = residual(p, q)
            left[child] -= 1
            if not left[child]:
                del left[child]
        if taken is None:
            return accepted, draws.categorical(p)
        node = taken
        accepted.append(node)


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for children drawn from q without replacement, tried in draw order.

    x is accepted if U < R(x) / D(x); else R becomes the normalised (R - D)+, D loses x and is normalised again. Where D has
    no mass left, the drafter drew uniformly from the tokens not yet drawn, and so does the rule. None left: emit from R.
    """
    tokens, node, accepted = draft.tokens.tolist(), ROOT, []
    while True:
        r = target_probs[node]
        d = draft.probs[node] if draft.tree.children(node) else None
        tried: list[int] = []
        taken = None
        for child in draft.tree.children(node):
            token = tokens[child]
            if draws.uniform() < ratio(r[token], d[token]):
                taken = child
                break
            r = residual(r, d)
            tried.append(token)
            d = without(d, tried)
        if taken is None:
            return accepted, draws.categorical(r)
        node = taken
        accepted.append(node)


def ratio(p: Tensor, q: Tensor) -> float:
    """p / q as a float, where a token that was drawn has q > 0; without draft mass nothing is owed to the draft: 0."""
    return float(p) / float(q) if q > 0 else 0.0


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The normalised (p - q)+, float[V]; p itself where nothing is left, which happens only where p = q and so never matters."""
    left = (p - q).clamp_min(0)
    mass = left.sum()
    return left / mass if mass > 0 else p


def without(d: Tensor, tokens: list[int]) -> Tensor:
    """The distribution with these tokens taken out, normalised; uniform over the other tokens where no mass is left."""
    d = d.clone()
    d[tokens] = 0
    mass = d.sum()
    if mass > 0:
        return d / mass
    d = torch.ones_like(d)
    d[tokens] = 0
    return d / d.sum().clamp_min(1)
