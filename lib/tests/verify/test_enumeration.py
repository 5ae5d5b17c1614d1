"""Rules proved lossless by enumeration: what a round emits, continued by the target, has the target's own law."""

import random
from collections import Counter
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters import filling
from lib.measure.rules import g_test
from lib.trees import Tree, named, shapes
from lib.trees.growth import Costs
from lib.verify import RULES, Draft, GeneratorDraws, verify
from lib.verify.draft import PROPOSALS
from lib.verify.proof import enumeration, sources
from lib.verify.proof.forks import Forks, outcomes, settle
from lib.verify.proof.languages import HARD, constant, random_pair

EXACT = 1e-12
HALF_THE_DIGITS = 1e-7  # of K-SEQ's scale in its fast form; any scale that is not below the solution is lossless
SMALL = ["chain:1", "star:2", "star:3", "chain:2", "expansion:2,1", "comb:2,2"]
LARGE = ["chain:3", "kary:2,2", "expansion:1,2,1", "expansion:2,1,1", "comb:3,2"]
ODD = {"uneven": Tree([-1, 0, 0, 2, 2, 3]), "gaps": Tree([-1, 0, 0, 1], rank=[0, 0, 2, 1]),
       "out of order": Tree([-1, 0, 0, 1, 2], rank=[0, 1, 0, 0, 0])}
FORMS = ("fast", "plain")
CASES = [(rule.name, proposal) for rule in RULES.values() if rule.sampled for proposal in sorted(rule.proposals)]
LOSSLESS = [(rule, proposal) for rule, proposal in CASES if RULES[rule].lossless]
WITH_TWO_FORMS = [(rule, proposal) for rule, proposal in CASES if RULES[rule].fast is not RULES[rule].plain]
SAMPLES = 4000  # G over 20 cells grows by 4 n d^2 or more: a distance of 0.05 is detected four times out of five
LEVEL = 1e-3


def fits(rule: str, tree: Tree) -> bool:
    return RULES[rule].shapes == "any" or tree.max_depth == tree.budget


def fitting(rule: str, names) -> list[Tree]:
    return [tree for tree in map(named, names) if fits(rule, tree)]


def law(rule, pair, tree, proposal, form="fast"):
    found = enumeration.law(getattr(RULES[rule], form), *pair, tree, proposal)
    assert sum(found.emitted.values()) == pytest.approx(1, abs=EXACT)
    return found


def distance(rule, pair, tree, proposal, form="fast"):
    return enumeration.distance(law(rule, pair, tree, proposal, form), pair[0], tree.max_depth + 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_many_random_languages(rule, proposal, form):
    trees = fitting(rule, SMALL)
    seeds = range(200 if form == "fast" else 24)
    assert max(distance(rule, random_pair(seed), trees[seed % len(trees)], proposal, form) for seed in seeds) < EXACT


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_hard_languages(rule, proposal, form):
    trees = fitting(rule, ["star:3", "chain:2", "expansion:2,1"] if form == "fast" else ["star:2", "chain:2"])
    far = {(name, str(tree)): found
           for name, pair in HARD.items()
           for tree in trees
           if (found := distance(rule, pair, tree, proposal, form)) > EXACT}
    assert not far


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_larger_and_odd_trees(rule, proposal):
    trees = [*fitting(rule, LARGE), *(tree for tree in ODD.values() if fits(rule, tree))]
    assert max(distance(rule, random_pair(seed), tree, proposal) for seed, tree in enumerate(trees)) < EXACT


@pytest.mark.parametrize("grown", ["dyspec:3@5", "eagle2:2,3@4", "opttree:2,3,0.2@5", "smart:3@5"])
@pytest.mark.parametrize("rule", [rule for rule, proposal in LOSSLESS if proposal == "top_k" and
                                  RULES[rule].shapes == "any"])
def test_grown_trees_of_chosen_children_are_lossless(rule, grown):
    costs = Costs((1.0, 1.2, 1.5, 1.6, 2.1, 2.2), 0.05)
    grows = named(grown, costs=costs)
    assert max(distance(rule, random_pair(seed), grows, "top_k") for seed in range(24)) < EXACT


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_over_more_tokens(rule, proposal):
    trees = fitting(rule, ["chain:2", "star:3", "expansion:2,1"])
    far = [distance(rule, random_pair(seed, vocabulary=3 + seed % 3, depth=2), tree, proposal)
           for seed, tree in enumerate(trees, 3)]
    assert max(far) < EXACT


@pytest.mark.parametrize("rule, proposal", WITH_TWO_FORMS)
def test_the_fast_form_has_the_law_of_the_definition(rule, proposal):
    close = HALF_THE_DIGITS if rule == "k_seq" else EXACT
    trees = fitting(rule, ["chain:3", "star:3", "expansion:2,1", "comb:2,2"])
    cases = [(random_pair(seed), tree) for seed, tree in enumerate(trees * (1 if rule == "k_seq" else 3))]
    cases += [(pair, fitting(rule, ["star:3", "chain:2"])[0]) for name, pair in HARD.items() if name != "a denormal"]
    for pair, tree in cases:
        fast, plain = (law(rule, pair, tree, proposal, form) for form in FORMS)
        assert fast.accepted_length == pytest.approx(plain.accepted_length, abs=close)
        paths = {*fast.emitted, *plain.emitted}
        assert max(abs(fast.emitted.get(path, 0) - plain.emitted.get(path, 0)) for path in paths) < close


@st.composite
def drafts_on_any_tree(draw):
    """A rule with a draft of one of its proposals on a random tree, and the target's probabilities at its nodes."""
    rule, proposal = draw(st.sampled_from([case for case in WITH_TWO_FORMS if RULES[case[0]].shapes == "any"]))
    tree = Tree([-1, *(draw(st.integers(0, node)) for node in range(draw(st.integers(0, 9))))])
    vocabulary, seed = draw(st.integers(2, 600)), draw(st.integers(0, 10_000))

    def language(which):
        @cache
        def probs(path):
            generator = torch.Generator().manual_seed(hash((which, seed, *path)) % 2**32)
            return torch.softmax(2 * torch.randn(vocabulary, dtype=torch.float64, generator=generator), -1)

        return probs

    draft = enumeration.fill(language(1), tree, proposal, seeded(seed))
    return rule, draft, torch.stack([language(0)(path) for path in enumeration.tokens_of(draft)]), seed


@settings(deadline=None, max_examples=300)
@given(drafts_on_any_tree())
def test_both_forms_decide_alike_on_any_tree_given_the_same_draws(case):
    """Without rules for chains, whose two forms use their draws in different order."""
    rule, draft, target, seed = case
    assert RULES[rule].fast(draft, target, seeded(seed)) == RULES[rule].plain(draft, target, seeded(seed))


@pytest.mark.parametrize("rule, proposal", CASES)
def test_what_is_drawn_from_a_generator_has_the_law_of_the_definition(rule, proposal):
    pair = random_pair(6, vocabulary=4)
    assert chance_of(rule, proposal, pair, shapes.chain(2) if RULES[rule].shapes == "chain" else ODD["gaps"]) > LEVEL


def test_samples_would_show_a_wrong_rule():
    """Independent samples whose repeats are merged without their count: a law that is wrong by 1 / 16."""
    pair = constant(1, 1), constant(1, 3)
    assert chance_of("multi_step", "iid", pair, shapes.star(4)) > LEVEL
    assert chance_of("multi_step", "iid", pair, shapes.star(4), forget_counts=True) < LEVEL


def chance_of(rule, proposal, pair, tree, forget_counts=False):
    """The p-value of a G-test of SAMPLES rounds, verified with a generator, against the enumerated law."""
    draws, weights, given, emitted = seeded(5), [], [], []
    for chance, draft in enumeration.drafts(pair[1], tree, proposal):
        paths = enumeration.tokens_of(draft)
        if forget_counts:
            draft = Draft(draft.tree, draft.tokens, proposal, draft.probs)
        weights.append(chance)
        given.append((draft, torch.stack([pair[0](path) for path in paths]), paths))
    for draft, probs, paths in random.Random(6).choices(given, weights, k=SAMPLES):
        accepted, bonus = verify(rule, draft, probs, draws)
        emitted.append((*paths[accepted[-1] if accepted else 0], bonus))
    return g_test(emitted, law(rule, pair, tree, proposal, "plain").emitted)["p_value"]


@pytest.mark.parametrize("proposal", ["top_k", "iid", "without_replacement"])
def test_greedy_is_lossless_where_the_target_is_certain(proposal):
    for seed in range(20):
        target, drafter = random_pair(seed)
        certain = lambda path: torch.nn.functional.one_hot(target(path).argmax(), 3).double()  # noqa: E731
        assert distance("greedy", (certain, drafter), named(SMALL[seed % 6]), proposal) < EXACT


def test_traversal_of_a_chain_is_block_verification():
    for seed in range(12):
        target, drafter = random_pair(seed)
        block, traversal = (
            law(rule, (target, drafter), shapes.chain(3), "without_replacement") for rule in ("block", "traversal")
        )
        assert block.accepted_length == pytest.approx(traversal.accepted_length, abs=EXACT)


def test_what_papers_say_of_acceptance():
    """One draw is accepted with chance sum min(p, q) (Leviathan et al. 2023); with one child all rules are equal."""
    for seed in range(20):
        target, drafter = random_pair(seed)
        alpha = float(torch.minimum(target(()), drafter(())).sum())
        for rule, proposal in [("multi_step", "iid"), ("without_replacement", "without_replacement"), ("k_seq", "iid"),
                               ("block", "iid"), ("traversal", "without_replacement")]:
            assert enumeration.law(rule, target, drafter, shapes.chain(1), proposal).accepted_length == pytest.approx(
                alpha, abs=EXACT
            )


@pytest.mark.parametrize("rule, proposal, accepted", [("multi_step", "iid", 10 / 9), ("block", "iid", 11 / 9)])
def test_the_example_that_block_verification_was_introduced_with(rule, proposal, accepted):
    """Sun et al. 2024, section 1: two tokens, p = (1/3, 2/3), q = (2/3, 1/3) after any text, a draft of two."""
    p, q = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64) / 3
    found = enumeration.law(rule, lambda text: p, lambda text: q, shapes.chain(2), proposal)
    assert found.accepted_length == pytest.approx(accepted, abs=EXACT)


@pytest.mark.parametrize("rule", ["typical", "deterministic", "conservative", "threshold"])
def test_a_lossy_rule_is_seen_to_be_lossy(rule):
    found = [distance(rule, random_pair(seed), shapes.chain(2), "iid") for seed in range(10)]
    assert max(found) > 0.05


@st.composite
def a_draft(draw):
    """A draft on any tree with the drafter's probabilities, and the target's at its nodes."""
    tree = Tree([-1, *(draw(st.integers(0, node)) for node in range(draw(st.integers(0, 9))))])
    target, drafter = random_pair(draw(st.integers(0, 1000)), vocabulary=4, depth=tree.max_depth)
    draft = enumeration.fill(drafter, tree, draw(st.sampled_from(PROPOSALS)), seeded(draw(st.integers(0, 1000))))
    return draft, torch.stack([target(path) for path in enumeration.tokens_of(draft)])


@settings(deadline=None)
@given(a_draft())
def test_conservative_accepts_wherever_deterministic_does(case):
    """It is the laxer of the two: of the children that both may take, it takes the same or an earlier one."""
    draft, target = case
    strict, lax = (RULES[name].fast(draft, target, seeded(0))[0] for name in ("deterministic", "conservative"))
    for node, other in zip(strict, lax):
        if other != node:
            assert draft.tree.parents[other] == draft.tree.parents[node] and other < node
            return
    assert len(lax) >= len(strict)


@pytest.mark.parametrize("shape", ["chain:1", "chain:2"])
def test_acceptance_with_p_over_q_needs_the_residual(shape):
    """A weblog's form: after a rejection a sample of p, or nothing and a new round. Only equal languages survive it."""
    tree = named(shape)
    far = {name: [sources.distance(name, *random_pair(seed), tree) for seed in range(12)]
           for name in (sources.RATIO, sources.AGAIN)}
    assert all(max(found) > 0.05 for found in far.values())
    for name in far:
        assert sources.distance(name, *HARD["equal"], tree) < EXACT
    assert sources.distance(sources.AGAIN, *HARD["disjoint"], tree) == pytest.approx(1), "it never emits a token"
    assert sources.RATIO not in RULES and sources.AGAIN not in RULES


def test_acceptance_without_a_residual_has_the_law_that_arithmetic_gives():
    """One token: min(p, q) + (1 - sum min(p, q)) p if a sample of p follows, min(p, q) normalised if nothing does."""
    for seed in range(12):
        target, drafter = random_pair(seed)
        p, both = target(()), torch.minimum(target(()), drafter(()))
        found = enumeration.law(sources.ratio, target, drafter, shapes.chain(1), "iid").extended(target, 1)
        assert found == pytest.approx(both + (1 - both.sum()) * p, abs=EXACT)
        assert sources.again(target, drafter)(()) == pytest.approx(both / both.sum(), abs=EXACT)


def test_threshold_that_no_token_reaches_is_naive_sampling():
    for seed in range(10):
        target, drafter = random_pair(seed)
        shut = enumeration.law("threshold", target, drafter, shapes.expansion([2, 1]), "top_k", single=1.1)
        assert enumeration.distance(shut, target, 3) < EXACT


# ------------------------------------------------------------------------------------------------- the enumeration


@pytest.mark.parametrize("proposal", ["top_k", "iid", "without_replacement"])
def test_drafts_have_the_law_of_drawing_them(proposal):
    _, drafter = random_pair(3)
    tree, generator = shapes.expansion([2, 1]), torch.Generator().manual_seed(0)
    chances = {key(draft): chance for chance, draft in enumeration.drafts(drafter, tree, proposal)}
    assert sum(chances.values()) == pytest.approx(1, abs=EXACT)
    drawn = [key(enumeration.fill(drafter, tree, proposal, GeneratorDraws(generator))) for _ in range(3000)]
    assert g_test(drawn, chances)["p_value"] > LEVEL


@pytest.mark.parametrize("proposal", ["iid", "without_replacement"])
def test_drafters_sample_siblings_as_the_enumeration_does(proposal):
    """The drafters' own sampling, enumerated, has the law of the drafts on which rules are proved."""
    for seed in range(6):
        q, sampler = random_pair(seed)[1](()), filling.SAMPLERS[proposal]
        own = dict_of(lambda draws: tuple((token, count) for _, token, count in sampler(q, 3, Decided(draws))))
        proved = {tuple(zip(draft.tokens[1:].tolist(), draft.times_drawn()[1:])): chance
                  for chance, draft in enumeration.drafts(lambda path: q, shapes.star(3), proposal)}
        assert own == pytest.approx(proved, abs=EXACT)


class Decided:
    """Forks whose tokens are decided when they are drawn."""

    def __init__(self, draws):
        self.draws = draws

    def categorical(self, probs):
        return int(self.draws.categorical(probs))


def test_repeats_are_one_node_with_their_count():
    drafts = list(enumeration.drafts(constant(1, 1), shapes.star(2), "iid"))
    found = {key(draft): chance for chance, draft in drafts}
    assert found == {((-1, 0), (0, 0), (1, 2)): 0.25, ((-1, 0), (0, 1), (1, 2)): 0.25,
                     ((-1, 0, 0), (0, 0, 1), (1, 1, 1)): 0.25, ((-1, 0, 0), (0, 1, 0), (1, 1, 1)): 0.25}


def test_a_number_compared_twice_is_one_number():
    found = dict_of(lambda draws: (lambda u: (u < 0.3, u <= 0.6, 0.9 > u))(draws.uniform()))
    assert found == pytest.approx(
        {(True, True, True): 0.3, (False, True, True): 0.3, (False, False, True): 0.3, (False, False, False): 0.1}
    )


def test_a_token_is_decided_as_far_as_it_is_looked_at():
    def look(draws):
        token = draws.categorical(torch.tensor([1.0, 0.0, 1.0, 2.0]))
        return "first" if token == 0 else settle(token)

    found = list(outcomes(look))
    assert (0.25, "first") in found and (0.75, [(2, 1 / 3), (3, 2 / 3)]) in found and len(found) == 2
    assert dict_of(lambda draws: int(draws.categorical(torch.tensor([1.0, 0.0, 3.0])))) == {0: 0.25, 2: 0.75}


def test_what_has_no_chance_is_no_outcome():
    assert dict_of(lambda draws: (draws.uniform() < 0, draws.uniform() < 1)) == {(False, True): 1}
    with pytest.raises(ValueError, match="all probabilities are zero"):
        Forks([]).categorical(torch.zeros(2))
    with pytest.raises(TypeError, match="compared"):
        bool(Forks([]).uniform())


def test_joint_law_and_distance():
    language = constant(1, 3)
    assert enumeration.joint(language, 2).tolist() == [[1 / 16, 3 / 16], [3 / 16, 9 / 16]]
    assert enumeration.total_variation(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8])) == pytest.approx(0.3)


def seeded(seed):
    return GeneratorDraws(torch.Generator().manual_seed(seed))


def key(draft):
    return tuple(draft.tree.parents.tolist()), tuple(draft.tokens.tolist()), tuple(draft.times_drawn())


def dict_of(function):
    law = Counter()
    for chance, result in outcomes(function):
        law[result] += chance
    return dict(law)
