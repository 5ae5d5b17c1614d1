"""Verification rules, each in the form in which its paper states it, and `RULES`, their registry.

At a node, p float[V] is the target's distribution of the next token and q float[V] the one that the node's children
were drawn from; x is a child's token, and U a new uniform number in [0, 1) wherever it stands. A rule returns the
accepted nodes in the order of the path, root excluded, and the bonus token.

A new rule is a function here and a row of `RULES`; `lib/tests/verify` then enumerates what it emits.
"""

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import PROPOSALS, Draft, Draws
from lib.verify.warping import best_token

Outcome = tuple[list[int], int]


def greedy(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Greedy verification (Leviathan et al. 2023, temperature 0): accept the child that is the target's best token.

    Of equally likely tokens the first is best. Only the order of target_probs matters, so logits serve as well.
    """
    return draft.follow(lambda node: int(best_token(target_probs[node])))  # x = argmax p


def naive(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Naive sampling (SpecInfer, Miao et al. 2024, section 4.3): accept the child that the target draws.

    Lossless for children chosen in any way that ignores the draw; no lossless rule accepts more of top-k children.
    """
    return draft.follow(lambda node: draws.categorical(target_probs[node]))  # x ~ p


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Multi-step speculative sampling (SpecInfer, Miao et al. 2024, Alg. 2), for samples of one drafter or several.

    The samples, repeats included, are tried in random order, each with the q of its drafter.
    """
    return _one_by_one(draft, target_probs, draws, lambda node: _in_random_order(draft.samples(node), draws))


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for samples of q without replacement, in draw order."""
    return _one_by_one(draft, target_probs, draws, lambda node: (
        (child, _drawn_from(draft, child, target_probs[node])) for child in draft.tree.children(node)))


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """K-SEQ (SpecTr, Sun et al. 2023), for k independent samples of q, repeats included; rho: see `k_seq_scale`."""
    def decide(node, p):
        samples, q = draft.samples(node), draft.proposal_probs()[node].to(p)
        k = len(samples)
        rho = k_seq_scale(p, q, k)
        for child, _ in _in_random_order(samples, draws):
            if draws.uniform() < _ratio(p, q, draft.token_list[child]) / rho:  # accept if U < p(x) / (rho q(x))
                return child, p
        shared = torch.minimum(p / rho, q)
        b = min(1.0, float(shared.sum()))  # b = sum min(p / rho, q)
        share = (1 - (1 - b) ** k) / b if b > 0 else 1.0
        return None, _normalised(_excess(p, share * shared), p)  # norm (p - min(p / rho, q) (1 - (1 - b)^k) / b)

    return _descend(draft, target_probs, draws, decide)


def k_seq_scale(p: Tensor, q: Tensor, k: int) -> float:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, where b = sum min(p / rho, q); p, q float[V].

    Any larger rho is lossless as well. This one is rounded up, to half of the digits of the chance of acceptance.
    """
    from scipy.optimize import brentq  # takes longer to import than this package

    close = torch.finfo(p.dtype).eps ** 0.5

    def excess(rho: float) -> float:  # above 0 where rho is at least close / 2 too large; its slope is at most k + 1
        b = min(1.0, float(torch.minimum(p / rho, q).sum()))
        return rho * b - (1 - (1 - b) ** k) - close / 2

    return brentq(excess, 1.0, float(k), xtol=close / (4 * (k + 1))) if excess(k) > 0 else float(k)


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Block verification of a chain x_1 .. x_L (Sun et al. 2024); no lossless rule accepts more of a sampled chain."""
    tokens, length, p = draft.token_list, draft.tree.budget, target_probs
    q = [_drawn_from(draft, i + 1, p[i]) for i in range(length)]  # q_i of x_(i+1)
    w = [1.0]
    for i in range(length):
        w.append(min(1.0, w[i] * _ratio(p[i], q[i], tokens[i + 1])))  # w_(i+1) = min(1, w_i p_i / q_i (x_(i+1)))
    accepted = 0
    for i in range(1, length + 1):
        # h_L = w_L, h_i = S_i / (S_i + 1 - w_i) with S_i = sum (w_i p_i - q_i)+
        h = w[i] if i == length else _odds(_excess(p[i], q[i], w[i]), w[i])
        if draws.uniform() < h:
            accepted = i  # the last i with U_i < h_i
    rest = p[accepted]
    if accepted < length:
        rest = _normalised(_excess(rest, q[accepted], w[accepted]), rest)  # norm (w_i p_i - q_i)+
    return list(range(1, accepted + 1)), draws.categorical(rest)


def traversal(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Traversal verification of a tree (Weng et al. 2025, arXiv 2505.12398): leaves first, in draw order.

    Distinct ones of independent samples, in the order first drawn, are samples without replacement.
    """
    tree, p, w = draft.tree, list(target_probs), {ROOT: 1.0}
    q: dict[int, Tensor] = {}  # by child: what its token was drawn from
    remaining = [list(tree.children(node)) for node in range(tree.size)]
    node = ROOT
    while True:
        if remaining[node]:
            child = remaining[node][0]
            q[child] = _drawn_from(draft, child, target_probs[node])
            ratio = _ratio(p[node], q[child], draft.token_list[child])
            w[child] = min(1.0, w[node] * ratio)  # w(x) = min(1, w p(x) / q(x)), with w, p, q at x's parent
            node = child
        elif node == ROOT or draws.uniform() < w[node]:  # accept the whole path to a leaf if U < w
            return [int(step) for step in tree.path(node)[1:]], draws.categorical(p[node])
        else:  # delete the leaf
            leaf, node = node, int(tree.parents[node])
            remaining[node].remove(leaf)
            excess = _excess(p[node], q[leaf], w[node])
            p[node] = _normalised(excess, p[node])  # p <- norm (w p - q)+
            w[node] = _odds(excess, w[node])  # w <- S / (S + 1 - w) with S = sum (w p - q)+


def typical(draft: Draft, target_probs: Tensor, draws: Draws, *, epsilon: float = 0.09, delta: float = 0.3) -> Outcome:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1): the deepest node that qualifies with its ancestors.

    Of equally deep nodes, the one with the likeliest path, then the first. The bonus token is drawn from p there, and
    may be a child that did not qualify. H in nats.
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


def stochastic(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """The first child with U < p(x) / q(x), as blog posts state it: without a residual after a rejection."""
    return _compare(draft, target_probs, draws, lambda p, q, x: draws.uniform() < _ratio(p, q, x))


def deterministic(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """The first child with p(x) >= q(x), as blog posts state it."""
    return _compare(draft, target_probs, draws, lambda p, q, x: p[x] >= q[x])


def conservative(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """The first child with p(x) >= q(x) / 2, as blog posts state it."""
    return _compare(draft, target_probs, draws, lambda p, q, x: p[x] >= q[x] / 2)


def threshold(draft: Draft, target_probs: Tensor, draws: Draws, *, single: float = 0.3, total: float = 1.0) -> Outcome:
    """Naive sampling with SGLang's speculative_accept_threshold_single and speculative_accept_threshold_acc."""
    def decide(node, p):
        children, number, mass = draft.tree.children(node), draws.uniform(), 0.0  # one U for all siblings
        for child in children:
            x = draft.token_list[child]
            mass += float(p[x])
            if number < mass / total or p[x] >= single:  # U < sum p / total, or p(x) >= single
                return child, p
        return None, _normalised(_emptied(p, draft.tokens_of(children)), p)  # p without the children

    return _descend(draft, target_probs, draws, decide)


def _descend(draft: Draft, target_probs: Tensor, draws: Draws, decide: Callable) -> Outcome:
    """The path that decide(node, p) takes from the root, at each node that has children.

    It returns the accepted child; or None, and float[V] from which the bonus token is drawn.
    """
    node, accepted = ROOT, []
    while draft.tree.children(node):
        child, rest = decide(node, target_probs[node])
        if child is None:
            return accepted, draws.categorical(rest)
        accepted.append(child)
        node = child
    return accepted, draws.categorical(target_probs[node])


def _one_by_one(draft: Draft, target_probs: Tensor, draws: Draws, samples: Callable) -> Outcome:
    """Tries the samples(node), pairs of a child and the q float[V] of its token, in their order."""
    def decide(node, p):
        for child, q in samples(node):
            q = q.to(p)
            if draws.uniform() < _ratio(p, q, draft.token_list[child]):  # accept if U < p(x) / q(x)
                return child, p
            p = _normalised(_excess(p, q), p)  # p <- norm (p - q)+
        return None, p

    return _descend(draft, target_probs, draws, decide)


def _compare(draft: Draft, target_probs: Tensor, draws: Draws, qualifies: Callable) -> Outcome:
    """Accepts the first child with qualifies(p, q, x), where q of top-k children is the drafter's confidence.

    If there is none, the bonus token is drawn from p, not from a residual, and may be a child that did not qualify.
    """
    probs = draft.proposal_probs()

    def decide(node, p):
        q = probs[node].to(p)
        qualified = (child for child in draft.tree.children(node) if qualifies(p, q, draft.token_list[child]))
        return next(qualified, None), p

    return _descend(draft, target_probs, draws, decide)


def _in_random_order(samples: list, draws: Draws) -> Iterator:
    """The samples, each of those that remain equally likely to be next; later ones are drawn only if needed."""
    while samples:
        count = len(samples)
        yield samples.pop(int(draws.categorical(torch.ones(count, dtype=torch.float64))) if count > 1 else 0)


def _drawn_from(draft: Draft, child: int, p: Tensor) -> Tensor:
    """q float[V] that a child's token was drawn from, after its siblings before it; one-hot for a top-k child."""
    if draft.proposal == "top_k":
        return torch.zeros_like(p).index_fill_(0, torch.tensor(draft.token_list[child], device=p.device), 1)
    node = int(draft.tree.parents[child])
    earlier = takewhile(lambda sibling: sibling != child, draft.tree.children(node))
    return without(draft.proposal_probs()[node].to(p), draft.tokens_of(earlier))


def _ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p / q at a token that was drawn from q; 0 where rounding has made its q 0, so that it is rejected."""
    return float(p[token]) / float(q[token]) if q[token] > 0 else 0.0


def _excess(p: Tensor, q: Tensor, w: float = 1.0) -> Tensor:
    """(w p - q)+."""
    return (w * p - q).clamp_min(0)


def _odds(excess: Tensor, w: float) -> float:
    """S / (S + 1 - w), where S is the sum of the excess."""
    s = float(excess.sum())
    return s / (s + (1 - w)) if s > 0 else 0.0  # the brackets matter where w = 1 and S is tiny


def _normalised(mass: Tensor, otherwise: Tensor) -> Tensor:
    """mass / its sum; `otherwise` where there is none, as where p is q, which only rounding rejects."""
    total = mass.sum()
    return mass / total if total > 0 else otherwise


def _emptied(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """A copy of row float[V] with 0 at these tokens."""
    return row.index_fill(0, torch.tensor(tokens, dtype=torch.long, device=row.device), 0)


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """q float[V] without these tokens, normalised; uniform over other tokens if no mass remains, 0 if no token does."""
    if not tokens:
        return q
    rest = _emptied(q, tokens)
    return _normalised(rest if rest.any() else _emptied(torch.ones_like(q), tokens), rest)


ANY, IID, DISTINCT = frozenset(PROPOSALS), frozenset(["iid"]), frozenset(["without_replacement"])


@dataclass(frozen=True)
class Rule:
    """A verification rule; it has the name of its function."""

    verify: Callable[[Draft, Tensor, Draws], Outcome]
    lossless: bool  # the emitted tokens have the target's distribution
    proposals: frozenset[str]  # the ways of choosing children that it is valid for
    made_for: str  # the one of them that it was published for, with which studies and explorers decode
    paper: str  # where it was published, or its formula; for tables
    shapes: str = "any"  # or "chain"
    compares: bool = False  # reads the drafter's probabilities of children that were chosen, not sampled

    @property
    def name(self) -> str:
        return self.verify.__name__

    @property
    def sampled(self) -> bool:
        """Whether it needs a temperature above 0."""
        return self.name != "greedy"


RULES = {rule.name: rule for rule in (
    Rule(greedy, True, ANY, "top_k", "Leviathan et al. 2023, temperature 0"),
    Rule(naive, True, ANY, "top_k", "Miao et al. 2024, naive sampling"),
    Rule(multi_step, True, IID, "iid", "Miao et al. 2024, Alg. 2"),
    Rule(k_seq, True, IID, "iid", "Sun et al. 2023 (SpecTr), K-SEQ"),
    Rule(without_replacement, True, DISTINCT, "without_replacement", "Chen et al. 2024, Alg. 2"),
    Rule(block, True, ANY, "iid", "Sun et al. 2024, block verification", shapes="chain"),
    Rule(traversal, True, ANY, "without_replacement", "Weng et al. 2025, traversal verification"),
    Rule(typical, False, ANY, "top_k", "Cai et al. 2024, section 2.3.1"),
    Rule(stochastic, False, ANY, "iid", "U < p / q, from blog posts", compares=True),
    Rule(deterministic, False, ANY, "top_k", "p >= q, from blog posts", compares=True),
    Rule(conservative, False, ANY, "top_k", "p >= q / 2, from blog posts", compares=True),
    Rule(threshold, False, ANY, "top_k", "SGLang, speculative_accept_threshold_single and _acc"),
)}
# The simplest lossless rule of each proposal, for any tree.
SIMPLEST = {"top_k": "naive", "iid": "multi_step", "without_replacement": "without_replacement"}


def verify(name: str, draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """The accepted nodes, root excluded, in the order of the path; and the bonus token.

    target_probs float[m, V]: the warped target's distribution of the next token at each node. ValueError for an unknown
    rule, a proposal or shape that it is not valid for, or sizes of tree, target and drafter that differ.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; choose one of {', '.join(RULES)}")
    rule, tree = RULES[name], draft.tree
    if draft.proposal not in rule.proposals:
        raise ValueError(f"rule {name!r} is not valid for {draft.proposal!r} drafts, only for "
                         f"{', '.join(sorted(rule.proposals))}; verify with 'naive', which takes any")
    if rule.shapes == "chain" and not tree.is_path:
        raise ValueError(f"rule {name!r} is defined for chains, the draft is {tree}; choose another rule")
    if target_probs.dim() != 2 or len(target_probs) != tree.size:
        raise ValueError(f"target_probs has shape {tuple(target_probs.shape)} for a tree of {tree.size} nodes; "
                         f"give one row per node: [{tree.size}, V]")
    if tree.budget and draft.probs is not None and draft.probs.shape[-1] != target_probs.shape[-1]:
        raise ValueError(f"the drafter's probabilities are over {draft.probs.shape[-1]} tokens, the target's over "
                         f"{target_probs.shape[-1]}; cut both to their common tokens")
    return rule.verify(draft, target_probs, draws)
