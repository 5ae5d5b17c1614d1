"""The definition of every rule: the form in which its paper states it, short and slow. Fast forms are held to these.

At a node, p float[V] is the target's distribution and q float[V] the one that its children were drawn from; U is a new
uniform number in [0, 1) wherever it stands. A rule returns the accepted nodes, root excluded, and the bonus token.
"""

import math
from typing import Callable

import torch
from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws, descend
from lib.verify.warping import best_token

Outcome = tuple[list[int], int]


def greedy(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Greedy verification (Leviathan et al. 2023, temperature 0): accept the child that is the target's best token.

    Of equally likely tokens the first is best. Only the order of target_probs matters, so logits serve as well.
    """
    return draft.follow(lambda node: int(best_token(target_probs[node])))  # x = argmax p


def naive(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Naive sampling (SpecInfer, Miao et al. 2024, section 4.3): accept the child that the target draws.

    Lossless for children chosen in any way that ignores the target's draw; no lossless rule accepts more of top-k
    children.
    """
    return draft.follow(lambda node: draws.categorical(target_probs[node]))  # x ~ p


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Multi-step speculative sampling (SpecInfer, Miao et al. 2024, Alg. 2), for samples of one drafter or several."""
    def decide(node, children):
        p, left = target_probs[node], draft.samples(node)  # every draw x ~ q_s, with the q_s of its drafter s
        while left:
            child, q = take_any(left, draws)
            x, q = draft.token_list[child], q.to(p)
            if draws.uniform() < p[x] / q[x]:  # accept if U < p(x) / q_s(x)
                return child, None
            p = _normalised((p - q).clamp_min(0), p)  # p <- norm (p - q_s)+
        return None, draws.categorical(p)

    return descend(draft, target_probs, draws, decide)


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """K-SEQ (SpecTr, Sun et al. 2023), for k independent samples of q."""
    def decide(node, children):
        p, q, left = target_probs[node], draft.proposal_probs()[node], draft.samples(node)
        k = len(left)

        def b(rho):
            return float(torch.minimum(p / rho, q).sum())  # b(rho) = sum min(p / rho, q)

        rho = _root(lambda rho: 1 - (1 - b(rho)) ** k <= rho * b(rho), 1.0, k)  # 1 - (1 - b)^k = rho b
        while left:
            child, _ = take_any(left, draws)
            x = draft.token_list[child]
            if draws.uniform() < p[x] / (rho * q[x]):  # accept if U < p(x) / (rho q(x))
                return child, None
        share = (1 - (1 - b(rho)) ** k) / b(rho) if b(rho) > 0 else 1.0
        # x ~ norm (p - min(p / rho, q) (1 - (1 - b)^k) / b)
        return None, draws.categorical(_normalised((p - torch.minimum(p / rho, q) * share).clamp_min(0), p))

    return descend(draft, target_probs, draws, decide)


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for samples of q without replacement, in draw order."""
    def decide(node, children):
        p, q, tried = target_probs[node], draft.probs[node], []
        for child in children:
            x = draft.token_list[child]
            if draws.uniform() < p[x] / q[x]:  # accept if U < p(x) / q(x)
                return child, None
            p = _normalised((p - q).clamp_min(0), p)  # p <- norm (p - q)+
            tried.append(x)
            q = _without(q, tried)  # q(x) <- 0, q <- norm q; uniform over the rest if nothing is left
        return None, draws.categorical(p)

    return descend(draft, target_probs, draws, decide)


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Block verification of a chain x_1 .. x_L (Sun et al. 2024); top-k children have a one-hot q each."""
    tokens, length, accepted = draft.token_list, draft.tree.budget, 0
    p, q, w = target_probs, [_next_q(draft, target_probs, node, [node + 1]) for node in range(length)], [1.0]
    for i in range(length):
        w.append(min(1.0, w[i] * float(p[i][tokens[i + 1]] / q[i][tokens[i + 1]])))  # w_i = min(1, w_(i-1) p / q (x_i))
    for i in range(1, length + 1):
        h = w[i]  # h_L = w_L
        if i < length:
            s = float((w[i] * p[i] - q[i]).clamp_min(0).sum())  # S_i = sum (w_i p - q)+
            h = _ratio(s, w[i])  # h_i = S_i / (S_i + 1 - w_i)
        if draws.uniform() < h:
            accepted = i  # the last i with U_i < h_i
    rest = p[accepted]
    if accepted < length:
        rest = _normalised((w[accepted] * rest - q[accepted]).clamp_min(0), rest)  # norm (w_i p - q)+
    return list(range(1, accepted + 1)), draws.categorical(rest)


def traversal(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Traversal verification of a tree (Weng et al. 2025, arXiv 2505.12398); top-k children have a one-hot q each."""
    tree, tokens, p = draft.tree, draft.token_list, list(target_probs)
    left = [list(tree.children(node)) for node in range(tree.size)]
    q = [_next_q(draft, target_probs, node, left[node]) for node in range(tree.size)]
    own = {ROOT: 1.0}  # w of the nodes that have lost a child; w of any other node follows from its parent

    def w(node):
        above, x = int(tree.parents[node]), tokens[node]
        # w(x) = min(1, w p(x) / q(x)), with w, p, q of x's parent
        return own[node] if node in own else min(1.0, w(above) * float(p[above][x] / q[above][x]))

    while True:
        leaf = ROOT
        while left[leaf]:
            leaf = left[leaf][0]  # the first leaf in depth-first order
        if leaf == ROOT or draws.uniform() < w(leaf):  # accept the whole path if U < w
            return [int(node) for node in tree.path(leaf)[1:]], draws.categorical(p[leaf])
        above = int(tree.parents[leaf])
        rest = (w(above) * p[above] - q[above]).clamp_min(0)
        own[above] = _ratio(float(rest.sum()), w(above))  # w <- S / (S + 1 - w), S = sum (w p - q)+
        p[above] = _normalised(rest, p[above])  # p <- norm (w p - q)+
        left[above].remove(leaf)
        q[above] = _next_q(draft, target_probs, above, left[above])  # q(leaf) <- 0, q <- norm q


def typical(draft: Draft, target_probs: Tensor, draws: Draws, *, epsilon: float = 0.09, delta: float = 0.3) -> Outcome:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1): the deepest node that qualifies with its ancestors.

    Of equally deep nodes, the one with the likeliest path under the target, then the first in node order. The bonus
    token is drawn from p there, and may be a child that did not qualify. H in nats.
    """
    tree, likelihood = draft.tree, {ROOT: 1.0}
    for node in range(tree.size):
        if node in likelihood and tree.children(node):
            p = target_probs[node]
            least = min(epsilon, delta * math.exp(-float(torch.special.entr(p).sum())))
            for child in tree.children(node):
                chance = float(p[draft.token_list[child]])
                if chance >= least:  # p(x) >= min(epsilon, delta exp(-H(p))), for x and all its ancestors
                    likelihood[child] = likelihood[node] * chance
    best = max(likelihood, key=lambda node: (tree.depth[node], likelihood[node], -node))
    return [int(node) for node in tree.path(best)[1:]], draws.categorical(target_probs[best])


def deterministic(draft: Draft, target_probs: Tensor, draws: Draws, *, share: float = 1.0) -> Outcome:
    """The first child with p >= share q, as blog posts state it; for top-k children q is the drafter's confidence.

    If there is none, the bonus token is drawn from p, and may be a child that did not qualify.
    """
    def decide(node, children):
        p, q = target_probs[node], draft.proposal_probs()[node]
        for child in children:
            x = draft.token_list[child]
            if p[x] >= share * q[x]:
                return child, None
        return None, draws.categorical(p)

    return descend(draft, target_probs, draws, decide)


def conservative(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """The first child with p >= q / 2, as blog posts state it: laxer than `deterministic`, whose children all qualify.
    """
    return deterministic(draft, target_probs, draws, share=0.5)


def threshold(draft: Draft, target_probs: Tensor, draws: Draws, *, single: float = 0.3, total: float = 1.0) -> Outcome:
    """Naive sampling with SGLang's speculative_accept_threshold_single and speculative_accept_threshold_acc.

    With single > 1 and total = 1 the law is that of naive sampling.
    """
    def decide(node, children):
        p, number, seen = target_probs[node], draws.uniform(), 0.0  # one U per family
        for child in children:
            x = draft.token_list[child]
            seen += float(p[x])
            if number < seen / total or p[x] >= single:  # U < sum p / total, or p(x) >= single
                return child, None
        rest = p.index_fill(0, draft.tokens[list(children)].to(p.device), 0)
        return None, draws.categorical(_normalised(rest, p))  # x ~ p without the children

    return descend(draft, target_probs, draws, decide)


# ------------------------------------------------------------------------------------------------- what rules share


def take_any(left: list, draws: Draws):
    """Removes and returns one of the entries that are left, each equally likely."""
    return left.pop(int(draws.categorical(torch.ones(len(left), dtype=torch.float64))) if len(left) > 1 else 0)


def _normalised(mass: Tensor, otherwise: Tensor) -> Tensor:
    """mass / its sum; `otherwise` where p was q, which is never rejected but for rounding."""
    return mass / mass.sum() if mass.sum() > 0 else otherwise


def _without(q: Tensor, tokens: list[int]) -> Tensor:
    """q float[V] without these tokens, normalised; uniform over the others where no mass is left."""
    index = torch.tensor(tokens, dtype=torch.long)
    left = q.index_fill(0, index, 0)
    return _normalised(left, _normalised(torch.ones_like(q).index_fill(0, index, 0), left))


def _next_q(draft: Draft, target_probs: Tensor, node: int, left: list[int]) -> Tensor | None:
    """q float[V] of the first of the children that are left, after those before it were rejected."""
    if not left:
        return None
    if draft.proposal == "top_k":
        return torch.nn.functional.one_hot(draft.tokens[left[0]], target_probs.shape[-1]).to(target_probs)
    before = [child for child in draft.tree.children(node) if child not in left]
    return _without(draft.proposal_probs()[node], draft.tokens_of(before)) if before else draft.proposal_probs()[node]


def _ratio(s: float, w: float) -> float:
    """S / (S + 1 - w)."""
    return s / (s + (1 - w)) if s > 0 else 0.0


def _root(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number from which on `reached` holds, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
