"""Bounds: closed forms, the linear programme and the rules known to be optimal agree; no rule exceeds them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import named, shapes
from lib.verify import RULES
from lib.verify.proof import bounds, enumeration
from lib.verify.proof.languages import HARD, random_pair

CLOSE = 1e-7
PROPOSALS = ["top_k", "iid", "without_replacement"]


def accepted(rule, pair, tree, proposal):
    return enumeration.law(rule, *pair, tree, proposal).accepted_length


def test_on_a_chain_block_verification_is_the_best_there_is():
    for seed in range(12):
        pair = random_pair(seed)
        for length in (1, 2, 3):
            best = bounds.best_accepted_length(*pair, shapes.chain(length), "iid")
            assert accepted("block", pair, shapes.chain(length), "iid") == pytest.approx(best, abs=CLOSE)


def test_of_chosen_children_naive_sampling_is_the_best_there_is():
    for seed, name in enumerate(["star:2", "expansion:2,1", "kary:2,2", "comb:2,3"] * 3):
        pair, tree = random_pair(seed), named(name)
        best = bounds.best_accepted_length(*pair, tree, "top_k")
        assert accepted("naive", pair, tree, "top_k") == pytest.approx(best, abs=CLOSE)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_no_lossless_rule_is_above_the_bound(proposal):
    pairs = [random_pair(seed) for seed in range(9)] + [pair for name, pair in HARD.items() if name != "a denormal"]
    for place, pair in enumerate(pairs):
        tree = named(["star:3", "expansion:2,1", "comb:2,2"][place % 3])
        best = bounds.best_accepted_length(*pair, tree, proposal)
        for rule in RULES.values():
            if rule.lossless and rule.sampled and proposal in rule.proposals and rule.shapes == "any":
                assert accepted(rule.name, pair, tree, proposal) <= best + CLOSE, rule.name


def test_a_path_bound_is_above_what_siblings_alone_allow():
    """On chains of two, deciding token by token accepts less than deciding about the path."""
    gains = []
    for seed in range(12):
        pair = random_pair(seed)
        gains.append(bounds.best_accepted_length(*pair, shapes.chain(2), "iid")
                     / max(accepted("multi_step", pair, shapes.chain(2), "iid"), 1e-9))
    assert min(gains) >= 1 - CLOSE and max(gains) > 1.02


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_one_set_of_siblings_has_the_closed_form(proposal):
    """min over sets H of tokens of P(H) + 1 - Pr(all siblings in H) (Sun et al. 2023; Hu et al. 2025)."""
    for seed in range(20):
        target, drafter = pair = random_pair(seed, vocabulary=4, depth=1)
        p, count = target(()), 1 + seed % 3
        drawn = [(chance, set(draft.tokens[1:].tolist()))
                 for chance, draft in enumeration.drafts(drafter, shapes.star(count), proposal)]
        least = min(float(p[list(inside)].sum()) + 1 - sum(chance for chance, tokens in drawn if tokens <= set(inside))
                    for size in range(5)
                    for inside in combinations(range(4), size))
        assert bounds.best_accepted_length(*pair, shapes.star(count), proposal) == pytest.approx(least, abs=CLOSE)


def test_what_is_too_large_is_refused():
    with pytest.raises(ValueError, match="take a smaller vocabulary or tree"):
        bounds.best_accepted_length(*random_pair(0), shapes.expansion([2, 1]), "without_replacement", most_entries=1000)


# ------------------------------------------------------------------------------------------------- linear programme


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 100_000), st.integers(1, 4), st.integers(1, 4))
def test_a_linear_programme_against_all_its_corners(seed, unknowns, constraints):
    draw = np.random.default_rng(seed)
    rows = np.vstack([draw.integers(-2, 4, (constraints, unknowns)), np.ones((1, unknowns))]).astype(float)
    limits = np.append(draw.integers(0, 5, constraints), 10).astype(float)  # the last one makes the maximum finite
    gain = draw.integers(-3, 5, unknowns).astype(float)
    sides, ends = np.vstack([rows, -np.eye(unknowns)]), np.append(limits, np.zeros(unknowns))
    best = -np.inf
    for chosen in combinations(range(len(sides)), unknowns):
        square = sides[list(chosen)]
        if abs(np.linalg.det(square)) > 1e-9:
            corner = np.linalg.solve(square, ends[list(chosen)])
            if (sides @ corner <= ends + 1e-9).all():
                best = max(best, float(gain @ corner))
    assert bounds.maximum(gain, rows, limits, 10) == pytest.approx(best, abs=1e-8)


def test_a_linear_programme_without_a_maximum_is_refused():
    with pytest.raises(RuntimeError, match="not solved"):
        bounds.maximum(np.ones(2), np.array([[1.0, -1.0]]), np.ones(1), 1)


def test_a_solution_that_its_dual_does_not_prove_is_refused(monkeypatch):
    """Wrong prices make the bound larger, never wrong; a bound too far above the value is refused."""
    solve = bounds.linprog

    def without_prices(*given, **settings):
        solved = solve(*given, **settings)
        solved.ineqlin.marginals = np.zeros_like(solved.ineqlin.marginals)
        return solved

    gain, rows, limits = np.array([1.0, 2.0]), np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, 0.4])
    assert bounds.maximum(gain, rows, limits, 1) == pytest.approx(1.4)
    monkeypatch.setattr(bounds, "linprog", without_prices)
    with pytest.raises(RuntimeError, match="its dual gives 2"):
        bounds.maximum(gain, rows, limits, 1)
