"""The chance that a sampled child is accepted, given what the target's text says next: what a trace keeps of residual
rules.

Whatever lossless rule is at work, the text that comes out has the target's law. So a round can be told backwards: let
c be the next token of the target's text. With A_j(x) the chance that the child in place j is accepted and says x,
A_j(c) / p(c) is the chance that c came by that child. Exact for the drafts and coins of a node; the text is what was
sampled from the target.
"""

from math import comb
from typing import Sequence

import torch
from torch import Tensor

from lib.verify import k_seq as spectr
from lib.verify.overlap import Overlap

RULES = ("multi_step", "k_seq", "without_replacement")
SAMPLES = 4  # draws of what was rejected, at a position, behind which a later sibling is drawn without replacement


def chances(p: Tensor, q: Tensor, said: Tensor, siblings: int, generator: torch.Generator) -> dict[str, Tensor]:
    """By "rule|k", float[S, k] for k = 1 .. `siblings` children: the chance that text token `said` int64[S] came by the
    child in each place; p, q float[S, V] are the warped distributions of target and drafter.

    A place is where a child stands among its siblings: in draw order, repeats of a token being its first draw. Without
    replacement a later sibling does not change what an earlier one is worth, so that only the largest k is there.
    """
    found = {}
    for k in range(1, siblings + 1):
        found[f"multi_step|{k}"] = multi_step(p, q, said, k)
        found[f"k_seq|{k}"] = k_seq(p, q, said, k)
    found[f"without_replacement|{siblings}"] = without_replacement(p, q, said, siblings, generator)
    return {name: (values / _at(p, said)[:, None].clamp_min(1e-30)).clamp_max(1) for name, values in found.items()}


def multi_step(p: Tensor, q: Tensor, said: Tensor, k: int) -> Tensor:
    """A_j(said) float[S, k] of SpecInfer's rule (Miao et al. 2024, Alg. 2), in closed form.

    Its residuals do not depend on what was rejected: p_0 = p, p_(i+1) = norm (p_i - q)+. Trial i accepts x with
    chance min(p_i, q)(x), and an x that was rejected before can be accepted no more.
    """
    own, rest, reach, trials = _at(q, said), p, torch.ones_like(p[:, 0]), []
    for _ in range(k):
        trials.append(reach * torch.minimum(_at(rest, said), own))
        rest, mass = _residual(rest, q)
        reach = reach * mass
    return by_place(trials, torch.zeros_like(own), own)


def k_seq(p: Tensor, q: Tensor, said: Tensor, k: int) -> Tensor:
    """A_j(said) float[S, k] of SpecTr's K-SEQ (Sun et al. 2023), in closed form: each draw of x is accepted with chance
    min(p / rho, q)(x), b of all x, whatever came of the others.
    """
    rho = torch.tensor([spectr.scale(Overlap(*pair), k)[0] for pair in zip(p, q)], dtype=p.dtype, device=p.device)
    shared = torch.minimum(p / rho[:, None], q)
    own, missed = _at(shared, said), (1 - shared.sum(-1)).clamp_min(0)
    rejected = (_at(q, said) - own) / missed.clamp_min(1e-30)  # that a draw says x, given that it was rejected
    return by_place([missed**i * own for i in range(k)], rejected.clamp(0, 1), _at(q, said))


def without_replacement(
    p: Tensor, q: Tensor, said: Tensor, k: int, generator: torch.Generator, samples: int = SAMPLES
) -> Tensor:
    """A_j(said) float[S, k] of Sequoia's rule (Chen et al. 2024, Alg. 2), without bias: what was rejected, which
    changes what the next sibling is drawn from, is sampled; the chances themselves are computed.
    """
    total = torch.zeros(len(p), k, dtype=p.dtype, device=p.device)
    for _ in range(samples):
        rest, left, reach = p, q, torch.ones_like(p[:, 0])
        tried = torch.zeros_like(p, dtype=torch.bool)
        for place in range(k):
            total[:, place] += reach * torch.minimum(_at(rest, said), _at(left, said))
            tried.scatter_(1, _sample((left - rest).clamp_min(0), generator)[:, None], True)
            rest, mass = _residual(rest, left)
            reach = reach * mass
            left = _without(left, tried)
    return total / samples


def by_place(trials: Sequence[Tensor], earlier: Tensor, later: Tensor) -> Tensor:
    """float[S, k]: the chance of each place, where trial i of k, in random order, accepts x with chance trials[i]
    float[S], and draws tried before and behind it say x too with chances `earlier` and `later`.

    A token's child stands where it was drawn first: c further copies put it into place j with chance
    C(k - 1 - j, c) / C(k, c + 1).
    """
    k = len(trials)
    first = [[comb(k - 1 - place, copies) / comb(k, copies + 1) for place in range(k)] for copies in range(k)]
    first = torch.tensor(first, dtype=later.dtype, device=later.device)
    found = torch.zeros(len(later), k, dtype=later.dtype, device=later.device)
    for i, chance in enumerate(trials):
        found += chance[:, None] * (_copies([earlier] * i + [later] * (k - 1 - i), found) @ first)
    return found


def _copies(chances: Sequence[Tensor], like: Tensor) -> Tensor:
    """float[S, k]: how many of at most k - 1 independent draws say x; of the form of `like`."""
    law = torch.zeros_like(like)
    law[:, 0] = 1
    for chance in chances:
        one_more = torch.zeros_like(law)
        one_more[:, 1:] = law[:, :-1]
        law = law + chance[:, None] * (one_more - law)
    return law


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(1, tokens[:, None])[:, 0]


def _residual(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """norm (p - q)+ float[S, V], and its mass before float[S]: the chance that a draw from q was rejected."""
    rest = (p - q).clamp_min(0)
    mass = rest.sum(-1)
    return rest / mass.clamp_min(1e-30)[:, None], mass


def _sample(weights: Tensor, generator: torch.Generator) -> Tensor:
    """One index a row, by inversion, int64[S]; a row without weight gives its last index."""
    ends = weights.cumsum(-1)
    share = torch.rand(len(weights), 1, generator=generator, device=generator.device, dtype=torch.float64)
    goal = share.to(ends.device, ends.dtype) * ends[:, -1:]
    return (ends <= goal).sum(-1).clamp_max(weights.shape[1] - 1)


def _without(q: Tensor, tried: Tensor) -> Tensor:
    """q float[S, V] without the tokens tried bool[S, V], normalised; uniform over the others where no mass is left."""
    left = q.masked_fill(tried, 0)
    mass = left.sum(-1, keepdim=True)
    uniform = (~tried).to(q.dtype)
    return torch.where(mass > 1e-20, left / mass.clamp_min(1e-30), uniform / uniform.sum(-1, keepdim=True).clamp_min(1))
