"""What no verification rule can beat: optimal transport between what is drafted and what the target says."""

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from lib.trees.tree import Tree
from lib.verify.proof.enumeration import Language, Path, drafts, tokens_of
from lib.verify.proof.linear_program import maximise

NEGLIGIBLE = 1e-10  # chances that rounding in the linear program would swallow
LARGEST_SUBSETS = 12  # vocabulary beyond which subsets are too many to be looked at


def best_acceptance(p: Tensor, q: Tensor, count: int, proposal: str) -> float:
    """The largest chance that one of `count` siblings is accepted by a lossless rule: one level, one node.

    min over sets H of tokens of P(H) + 1 - Pr(all siblings in H) (Sun et al. 2023; Hu et al. 2025). p, q float64[V].
    For "iid" the least set holds the tokens of smallest p / q, so that any vocabulary will do; for
    "without_replacement" all subsets are looked at. It bounds rules that decide siblings alone; rules about whole
    paths can beat it.
    """
    if proposal == "top_k":
        return float(p[q.sort(descending=True, stable=True).indices[:count]].sum())
    if proposal == "iid":
        order = (p / q).nan_to_num(nan=torch.inf, posinf=torch.inf).argsort()
        inside_p, inside_q = p[order].cumsum(0), q[order].cumsum(0).clamp_max(1)
        return min(1.0, float((inside_p + 1 - inside_q**count).min()))
    if len(p) > LARGEST_SUBSETS:
        raise ValueError(
            f"the vocabulary has {len(p)} tokens; draws without replacement are bounded over all subsets of at most "
            f"{LARGEST_SUBSETS}: take a smaller one"
        )
    drawn = _drawn_sets(q.tolist(), count)
    sets = range(1 << len(p))
    inside_p = _sums(p.tolist())
    inside = [sum(chance for found, chance in drawn.items() if found | one == one) for one in sets]
    return min(inside_p[one] + 1 - inside[one] for one in sets)


def _drawn_sets(q: list[float], count: int) -> dict[int, float]:
    """The law of the set (as bits) of `count` draws without replacement; uniform among the rest where no mass is
    left."""
    law = {0: 1.0}
    for _ in range(min(count, len(q))):
        grown: dict[int, float] = {}
        for drawn, chance in law.items():
            left = [token for token in range(len(q)) if not drawn >> token & 1]
            mass = sum(q[token] for token in left)
            for token in left:
                share = q[token] / mass if mass > 0 else 1 / len(left)
                grown[drawn | 1 << token] = grown.get(drawn | 1 << token, 0.0) + chance * share
        law = grown
    return law


def _sums(values: list[float]) -> np.ndarray:
    """The sum of the values in every subset, by its bits."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def best_accepted_length(
    target: Language, drafter: Language, shape: Tree, proposal: str, *, most_entries: int = 40_000_000
) -> float:
    """The largest expected accepted length of any lossless rule: the joint transport over whole trees and emitted
    paths.

    A rule sends every draft D to one of its nodes, where it stops: mass s(D, y) >= 0, sum over y in D of s(D, y) =
    P(D). With a(y) the mass that stops at y or below it, what follows an accepted y must have the target's law: a(y
    t) <= p(t | y) a(y) for every token t; the rest of p(t | y) a(y) is what bonus tokens give. Largest is the sum of
    depth(y) s(D, y), a linear program; `most_entries` limits its table. ValueError where it is larger. What has a
    chance below NEGLIGIBLE is left out of the program and counted as if all of it were accepted.
    """
    masses, left_out = _supplies(target, drafter, shape, proposal)
    stops = [(drafted, path) for drafted in masses for path in sorted(drafted)]
    nodes = sorted({path for _, path in stops})
    count = len(masses) + len(nodes)
    entries = (count + 1) * (len(stops) + count + 1)
    if entries > most_entries:
        raise ValueError(
            f"the transport over {shape} needs {entries} entries where {most_entries} are the most; "
            "take a smaller vocabulary or tree"
        )
    rows, limits = np.zeros((count, len(stops))), np.zeros(count)
    limits[: len(masses)] = list(masses.values())
    supply = {drafted: row for row, drafted in enumerate(masses)}
    demand = {path: len(masses) + row for row, path in enumerate(nodes)}
    for path in nodes:
        if len(path) == 1:
            limits[demand[path]] = target(())[path[0]]
    for column, (drafted, path) in enumerate(stops):
        rows[supply[drafted], column] = 1
        for length in range(1, len(path) + 1):
            above = path[:length]
            rows[demand[above], column] += 1
            for token, chance in enumerate(target(above).tolist()):
                if (*above, token) in demand:
                    rows[demand[*above, token], column] -= chance
    return maximise(np.array([float(len(path)) for _, path in stops]), rows, limits).bound + left_out * shape.max_depth


def _supplies(
    target: Language, drafter: Language, shape: Tree, proposal: str
) -> tuple[dict[frozenset[Path], float], float]:
    """The chance of each set of drafted paths that the target may say, and the chance of all that is left out."""
    masses: dict[frozenset[Path], float] = defaultdict(float)
    rare: dict[Path, float] = {}
    left_out = 0.0
    for chance, draft in drafts(drafter, shape, proposal):
        if chance < NEGLIGIBLE:
            left_out += chance
            continue
        said = {path: chance_of(target, path) for path in tokens_of(draft)[1:]}
        rare |= {path: likely for path, likely in said.items() if likely < NEGLIGIBLE}
        masses[frozenset(said.keys() - rare.keys())] += chance
    return masses, left_out + sum(rare.values())


def chance_of(language: Language, path: Path) -> float:
    """The probability that a language says these tokens."""
    chance = 1.0
    for length, token in enumerate(path):
        chance *= float(language(path[:length])[token])
    return chance
