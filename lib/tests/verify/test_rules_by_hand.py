"""lib's rules against rules written a second time by hand: exact laws side by side, and samples against those laws."""

import math
import random
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest
import torch

from lib.tests import rules_by_hand as by_hand
from lib.trees import Tree
from lib.verify import RULES, Draft, GeneratorDraws, verify
from lib.verify.proof import enumeration

LEAF = ()
CHAIN, STAR, PAIR, FORKED, UNEVEN = (((LEAF,),),), (LEAF,) * 3, (LEAF,) * 2, ((LEAF,), (LEAF,)), (((LEAF,), LEAF), LEAF)
BY_HAND = {
    "naive": by_hand.down(by_hand.naive),
    "multi_step": by_hand.down(by_hand.multi_step),
    "without_replacement": by_hand.down(by_hand.without_replacement),
    "k_seq": by_hand.down(by_hand.k_seq),
    "block": by_hand.block,
    "traversal": by_hand.traversal,
    "typical": by_hand.typical(0.09, 0.3),
    "deterministic": by_hand.down(by_hand.at_least(1)),
    "conservative": by_hand.down(by_hand.at_least(Fraction(1, 2))),
    "threshold": by_hand.down(by_hand.threshold(Fraction(3, 10), 1)),
}
ALL = [(name, how) for name in BY_HAND for how in sorted(RULES[name].proposals)]
LOSSLESS = [(name, how) for name, how in ALL if RULES[name].lossless]
EXACT = 1e-12
HALF_THE_DIGITS = 1e-7  # to which K-SEQ's scale is found; any that is not below it is lossless
SAMPLES = 4000  # G over 20 cells grows by 4 n d^2 or more: a distance of 0.05 is seen four times of five
LEVEL = 1e-3


def always(*weights):
    """The same conditional everywhere."""
    p = by_hand.normal([Fraction(weight) for weight in weights])
    return lambda path: p


def random_language(seed, vocabulary):
    """Small integers as weights, with zeros and ties, drawn anew behind each path."""

    @cache
    def language(path):
        weights = random.Random(f"{seed} {path}").choices(range(5), k=vocabulary)
        return by_hand.normal([Fraction(weight) for weight in weights] if any(weights) else [Fraction(1)] * vocabulary)

    return language


PAIRS = {
    "p is q": (always(3, 2, 1), always(3, 2, 1)),
    "uniform": (always(1, 1, 1), always(1, 1, 1)),
    "disjoint": (always(1, 2, 0), always(0, 0, 1)),
    "disjoint, four tokens": (always(2, 1, 0, 0), always(0, 0, 3, 1)),
    "one in common": (always(1, 1, 0), always(0, 1, 2)),
    "target one-hot": (always(0, 1, 0), always(2, 1, 1)),
    "drafter one-hot": (always(2, 1, 1), always(1, 0, 0)),
    "both one-hot, equal": (always(0, 0, 1), always(0, 0, 1)),
    "both one-hot, apart": (always(1, 0, 0), always(0, 1, 0)),
    "ties": (always(2, 1, 1, 2), always(1, 2, 2, 1)),
    "rare tokens": (always(1, 1, 1), always(1, Fraction(1, 10**9), Fraction(1, 10**18))),
}
PAIRS |= {f"random {seed}": [random_language(one, 3 + seed % 2) for one in (seed, -seed)] for seed in range(1, 7)}


def shapes_for(rule, vocabulary):
    if RULES[rule].shapes == "chain":
        return [CHAIN]
    return [STAR, FORKED, PAIR] if vocabulary > 3 else [STAR, FORKED, UNEVEN, CHAIN]


@cache
def cases(rule, how):
    """Each pair of languages with one of the shapes, in turn, and the rule's law by hand."""
    found = []
    for place, (name, (p, q)) in enumerate(PAIRS.items()):
        shapes = shapes_for(rule, len(p(())))
        shape = shapes[place % len(shapes)]
        found.append((name, p, q, shape, by_hand.law(BY_HAND[rule], p, q, shape, how)))
    return found


def in_floats(language):
    return cache(lambda path: torch.tensor([float(mass) for mass in language(path)], dtype=torch.float64))


def tree_of(shape):
    """The same shape as lib has it, level by level."""
    parents, level = [-1], [(0, shape)]
    while level:
        below = []
        for node, children in level:
            for child in children:
                below.append((len(parents), child))
                parents.append(node)
        level = below
    return Tree(parents)


def as_lib_has_it(nodes, how, p, q):
    """A draft by hand as lib's Draft, level by level; the target's probabilities at each node; the path of each."""
    parents, counts, paths, level = [-1], [1], [()], [(0, nodes)]
    while level:
        below = []
        for parent, children in level:
            for token, times, draft in children:
                below.append((len(paths), draft))
                parents.append(parent)
                counts.append(times)
                paths.append((*paths[parent], token))
        level = below
    tokens = torch.tensor([0, *(path[-1] for path in paths[1:])])
    probs, target = (torch.stack([language(path) for path in paths]) for language in (q, p))
    return Draft(Tree(parents), tokens, how, probs, torch.tensor(counts)), target, paths


@pytest.mark.parametrize("rule, how", LOSSLESS)
def test_by_hand_the_lossless_rules_are_lossless_without_any_rounding(rule, how):
    for name, p, _, _, found in cases(rule, how):
        assert by_hand.continued(found, p, 4) == by_hand.continued({(): 1}, p, 4), name


@pytest.mark.parametrize("rule, how", ALL)
def test_the_law_by_hand_is_the_law_by_enumeration(rule, how):
    close = HALF_THE_DIGITS if rule == "k_seq" else EXACT
    for name, p, q, shape, expected in cases(rule, how):
        found = enumeration.law(rule, in_floats(p), in_floats(q), tree_of(shape), how)
        length = float(sum((len(said) - 1) * chance for said, chance in expected.items()))
        assert found.accepted_length == pytest.approx(length, abs=close), name
        far = {said: abs(found.emitted.get(said, 0) - expected.get(said, 0)) for said in {*expected, *found.emitted}}
        assert max(far.values()) < close, name


@pytest.mark.parametrize("rule, how", ALL)
def test_what_is_drawn_from_a_generator_has_the_law_by_hand(rule, how):
    p, q = random_language(7, 4), random_language(11, 4)
    shape = CHAIN[0] if RULES[rule].shapes == "chain" else FORKED
    assert chance_of(rule, how, p, q, shape) > LEVEL


def test_samples_would_show_a_wrong_rule():
    """Independent samples whose repeats are merged without their count: a law that is wrong by 1 / 16."""
    p, q = always(1, 1), always(1, 3)
    assert chance_of("multi_step", "iid", p, q, (LEAF,) * 4) > LEVEL
    assert chance_of("multi_step", "iid", p, q, (LEAF,) * 4, forget_counts=True) < LEVEL


def chance_of(rule, how, p, q, shape, forget_counts=False):
    """The p-value of a G-test of SAMPLES rounds, drafted by a generator of Python's, verified with one of torch's."""
    law = by_hand.law(BY_HAND[rule], p, q, shape, how)
    rounds = [(float(chance), as_lib_has_it(nodes, how, in_floats(p), in_floats(q)))
              for chance, nodes in by_hand.drafts(q, shape, how)]
    if forget_counts:
        rounds = [(chance, (Draft(draft.tree, draft.tokens, how, draft.probs), target, paths))
                  for chance, (draft, target, paths) in rounds]
    draws, said = GeneratorDraws(torch.Generator().manual_seed(5)), Counter()
    weights, given = zip(*rounds)
    for draft, target, paths in random.Random(6).choices(given, weights, k=SAMPLES):
        accepted, bonus = verify(rule, draft, target, draws)
        said[*paths[accepted[-1] if accepted else 0], bonus] += 1
    assert said.keys() <= law.keys(), "something was emitted that has no chance"
    common = {path: SAMPLES * float(chance) for path, chance in law.items() if SAMPLES * chance >= 5}
    cells = [(said[path], expected) for path, expected in common.items()]
    if rest := SAMPLES - sum(common.values()):
        cells.append((SAMPLES - sum(said[path] for path in common), rest))
    statistic = 2 * sum(count * math.log(count / expected) for count, expected in cells if count)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2), torch.tensor(max(statistic, 0) / 2)))
