"""Expected acceptance of rules that sample their children, from recorded text, without sampling drafts.

The output of a lossless rule has the target's distribution. So let c be the next token of the target's text, and A_j(x)
the probability that the j-th drawn child is accepted and is token x: then A_j(c) / p(c) is the probability that c came
from that child. Of a round that starts in the text c_1, c_2, ..., a rule that decides node by node accepts the node
whose path has the draws j_1 .. j_d with probability A_j1(c_1) / p(c_1) ... A_jd(c_d) / p(c_d). `chances` computes these
ratios while a trace is recorded; `survival` combines them for a tree.

The text was sampled from the target at the temperature by which both distributions are warped. Block verification has a
form of its own, traversal has none.
"""

from math import comb
from typing import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.trees.tree import Tree
from lib.verify.rules import k_seq_scale

SAMPLES = 4  # samples of the rejected tokens at a position, for siblings that are drawn without replacement


def chances(p: Tensor, q: Tensor, tokens: Tensor, siblings: int, generator: torch.Generator) -> dict[str, Tensor]:
    """By "rule|k", float[S, k] for k = 1 .. `siblings` children: the probability that each of the tokens int64[S] came
    from each child, in draw order; p, q: the warped distributions float[S, V] of target and drafter. A token that is
    drawn twice is the child of its first draw. Without replacement the largest k serves the others.
    """
    accepted = {}
    for k in range(1, siblings + 1):
        accepted[f"multi_step|{k}"] = multi_step(p, q, tokens, k)
        accepted[f"k_seq|{k}"] = k_seq(p, q, tokens, k)
    accepted[f"without_replacement|{siblings}"] = without_replacement(p, q, tokens, siblings, generator)
    return {name: (values / _at(p, tokens)[:, None].clamp_min(1e-30)).clamp_max(1) for name, values in accepted.items()}


def multi_step(p: Tensor, q: Tensor, tokens: Tensor, k: int) -> Tensor:
    """A_j(token) float[S, k] of SpecInfer's rule (Miao et al. 2024, Alg. 2), in closed form: p_0 = p, p_(i+1) =
    norm (p_i - q)+; trial i accepts x with probability min(p_i, q)(x), and never an x that was rejected before.
    """
    proposed, rest, reach, trials = _at(q, tokens), p, torch.ones_like(p[:, 0]), []
    for _ in range(k):
        trials.append(reach * torch.minimum(_at(rest, tokens), proposed))
        rest, mass = _residual(rest, q)
        reach = reach * mass
    return by_draw(trials, torch.zeros_like(proposed), proposed)


def k_seq(p: Tensor, q: Tensor, tokens: Tensor, k: int) -> Tensor:
    """A_j(token) float[S, k] of SpecTr's K-SEQ (Sun et al. 2023), in closed form: each draw is x and accepted with
    probability min(p / rho, q)(x), independently of the other draws.
    """
    rho = torch.tensor([k_seq_scale(*pair, k) for pair in zip(p, q)], dtype=p.dtype, device=p.device)
    shared = torch.minimum(p / rho[:, None], q)
    accepted, rejection = _at(shared, tokens), (1 - shared.sum(-1)).clamp_min(0)
    rejected_x = (_at(q, tokens) - accepted) / rejection.clamp_min(1e-30)  # that a rejected draw is x
    return by_draw([rejection**i * accepted for i in range(k)], rejected_x.clamp(0, 1), _at(q, tokens))


def without_replacement(p: Tensor, q: Tensor, tokens: Tensor, k: int, generator: torch.Generator,
                        samples: int = SAMPLES) -> Tensor:
    """A_j(token) float[S, k] of Sequoia's rule (Chen et al. 2024, Alg. 2), without bias: the rejected tokens, which
    change the distribution of the next sibling, are sampled; the probabilities themselves are computed.
    """
    total = torch.zeros(len(p), k, dtype=p.dtype, device=p.device)
    for _ in range(samples):
        rest, proposal, reach = p, q, torch.ones_like(p[:, 0])
        rejected = torch.zeros_like(p, dtype=torch.bool)
        for draw in range(k):
            total[:, draw] += reach * torch.minimum(_at(rest, tokens), _at(proposal, tokens))
            weights = (proposal - rest).clamp_min(1e-30).to(generator.device)  # of the token that is rejected
            rejected.scatter_(1, torch.multinomial(weights, 1, generator=generator).to(p.device), True)
            rest, mass = _residual(rest, proposal)
            reach = reach * mass
            proposal = _without(proposal, rejected)
    return total / samples


def by_draw(trials: Sequence[Tensor], earlier: Tensor, later: Tensor) -> Tensor:
    """float[S, k]: the probability of each draw, where trial i of k, in random order, accepts x with probability
    trials[i] float[S], and draws tried before and after it are x too with probabilities `earlier` and `later`.

    A token is the child of its first draw: c further copies make that draw j with probability
    C(k - 1 - j, c) / C(k, c + 1).
    """
    k = len(trials)
    first = [[comb(k - 1 - draw, copies) / comb(k, copies + 1) for draw in range(k)] for copies in range(k)]
    first = torch.tensor(first, dtype=later.dtype, device=later.device)
    total = torch.zeros(len(later), k, dtype=later.dtype, device=later.device)
    for i, chance in enumerate(trials):
        copies = torch.zeros_like(total)  # the distribution of their number
        copies[:, 0] = 1
        for is_x in [earlier] * i + [later] * (k - 1 - i):
            copies = copies + is_x[:, None] * (pad(copies[:, :-1], (1, 0)) - copies)
        total += chance[:, None] * (copies @ first)
    return total


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(1, tokens[:, None])[:, 0]


def _residual(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """norm (p - q)+ float[S, V], and its mass before, float[S]: the probability that a draw from q was rejected."""
    rest = (p - q).clamp_min(0)
    mass = rest.sum(-1)
    return rest / mass.clamp_min(1e-30)[:, None], mass


def _without(q: Tensor, rejected: Tensor) -> Tensor:
    """q float[S, V] without the rejected tokens bool[S, V], normalised; uniform over the others if no mass is left."""
    remaining = q.masked_fill(rejected, 0)
    mass = remaining.sum(-1, keepdim=True)
    others = (~rejected).to(q.dtype)
    uniform = others / others.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mass > 1e-20, remaining / mass.clamp_min(1e-30), uniform)


def survival(trace: Trace, tree: Tree, drafter: str, rule: str) -> np.ndarray:
    """float[N, L, D + 1]: the probability that a round that starts at a transition accepts at least d = 0 .. D tokens.

    Children of a node stand in draw order. The trace has chances for as many siblings.
    """
    alive = {0: (trace.tokens[:, 1:] >= 0).astype(float)}
    survive = np.zeros((*alive[0].shape, tree.max_depth + 1))
    survive[..., 0] = alive[0]
    for node in range(tree.size):
        if children := tree.children(node):
            depth = int(tree.depth[node])
            steps = _ahead(_chances(trace, drafter, rule, len(children)), depth)
            for draw, child in enumerate(children):
                alive[child] = alive[node] * steps[..., draw]
                survive[..., depth + 1] += alive[child]
    return survive


def block_survival(trace: Trace, length: int, drafter: str) -> np.ndarray:
    """float[N, L, length + 1]: as `survival`, for a chain under block verification (Sun et al. 2024), which accepts at
    least i tokens of a draft with probability w_i = min(1, w_(i-1) p / q). Along the text, v_i = w_i prod q / p is
    min(v_(i-1), prod_(l <= i) q(c_l) / p(c_l)), v_0 = 1: a running minimum of products.
    """
    inside = trace.tokens[:, 1:] >= 0
    ratio = inside * trace.probs[drafter].astype(float) / np.maximum(trace.target_probs, 1e-12)
    products = [inside.astype(float)]
    for depth in range(length):
        products.append(products[-1] * _ahead(ratio, depth))
    return np.minimum.accumulate(np.stack(products, axis=-1), axis=-1)


def tally(trace: Trace, survive: np.ndarray) -> pd.DataFrame:
    """`acceptance.tally` in expectation: the chained rounds, and their accepted tokens."""
    rows, width, depths = survive.shape
    at = np.arange(width)[None]
    starts = _chained_starts(survive) * (at < trace.starts(depths - 1)[:, None])
    accepted = starts * survive[..., 1:].sum(-1)
    return acceptance.tally(trace.prompts, np.repeat(np.arange(rows), width), rounds=starts.ravel(),
                            accepted=accepted.ravel())


def _chained_starts(survive: np.ndarray) -> np.ndarray:
    """float[N, L]: the probability that one of the chained rounds of a row starts at each transition."""
    rows, width, depths = survive.shape
    ends_at = survive - np.pad(survive[..., 1:], ((0, 0), (0, 0), (0, 1)))
    weight = np.zeros((rows, width + depths))
    weight[:, 0] = 1
    for start in range(width):
        weight[:, start + 1 : start + 1 + depths] += weight[:, start, None] * ends_at[:, start]
    return weight[:, :width]


def _ahead(values: np.ndarray, steps: int) -> np.ndarray:
    """values [N, L, ...] of the transition `steps` later; 0 after the end."""
    moved = np.zeros_like(values, dtype=float)
    moved[:, : max(0, values.shape[1] - steps)] = values[:, steps:]
    return moved


def _chances(trace: Trace, drafter: str, rule: str, siblings: int) -> np.ndarray:
    """float[N, L, >= siblings]; without replacement a larger k serves a smaller one."""
    counts = [int(name.rpartition("|")[2]) for name in trace.chances if name.startswith(f"{drafter}|{rule}|")]
    if siblings > max(counts, default=0):
        raise ValueError(f"the trace has chances of {drafter!r} under {rule!r} for {max(counts, default=0)} siblings, "
                         f"the tree {siblings}; give a narrower tree, or record with more `siblings`")
    return trace.chances[f"{drafter}|{rule}|{min(count for count in counts if count >= siblings)}"]
