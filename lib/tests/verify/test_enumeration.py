"""Rules proved lossless by enumeration: the tokens of a round, continued by the target, have the target's own law."""

import random
from collections import Counter
from functools import cache, partial

import pytest
import torch

from lib.drafters import filling
from lib.measure.rules import g_test
from lib.trees import Tree, named, shapes
from lib.trees.growth import Costs
from lib.verify import RULES, Draft, GeneratorDraws, rules, verify
from lib.verify.draft import PROPOSALS
from lib.verify.proof import enumeration
from lib.verify.proof.forks import Forks, outcomes, settle
from lib.verify.proof.languages import HARD, constant, random_pair
from lib.verify.rules import k_seq_scale, threshold

EXACT = 1e-12
ROUNDING = 1e-6  # of float32
SMALL = ["chain:1", "star:2", "star:3", "chain:2", "expansion:2,1", "comb:2,2"]
LARGE = ["chain:3", "kary:2,2", "expansion:1,2,1", "expansion:2,1,1", "comb:3,2"]
ODD = {"uneven": Tree([-1, 0, 0, 2, 2, 3]), "gaps": Tree([-1, 0, 0, 1], rank=[0, 0, 2, 1]),
       "out of order": Tree([-1, 0, 0, 1, 2], rank=[0, 1, 0, 0, 0])}
CASES = [(rule.name, proposal) for rule in RULES.values() if rule.sampled for proposal in sorted(rule.proposals)]
LOSSLESS = [(rule, proposal) for rule, proposal in CASES if RULES[rule].lossless]
LOSSY = [rule.name for rule in RULES.values() if not rule.lossless]
SAMPLES = 4000  # G over 20 cells grows by 4 n d^2 or more: a distance of 0.05 is detected four times out of five
LEVEL = 1e-3


@pytest.fixture(autouse=True, scope="module")
def scales_are_solved_once():
    """For each p, q and k of K-SEQ: the enumeration comes back to the same node many times."""
    @cache
    def solve(p, q, k, dtype):
        return k_seq_scale(torch.tensor(p, dtype=dtype), torch.tensor(q, dtype=dtype), k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "k_seq_scale", lambda p, q, k: solve(tuple(p.tolist()), tuple(q.tolist()), k, p.dtype))
        yield


def fitting(rule: str, trees) -> list[Tree]:
    """The trees, or shapes of these names, that a rule is defined for."""
    trees = [named(tree) if isinstance(tree, str) else tree for tree in trees]
    return [tree for tree in trees if RULES[rule].shapes == "any" or tree.is_path]


def law(rule, pair, tree, proposal):
    found = enumeration.law(rule, *pair, tree, proposal)
    assert sum(found.emitted.values()) == pytest.approx(1, abs=EXACT)
    return found


def distance(rule, pair, tree, proposal):
    return enumeration.distance(law(rule, pair, tree, proposal), pair[0], tree.max_depth + 1)


def seeded(seed):
    return GeneratorDraws(torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------ lossless rules


def cases(rule: str, kind: str):
    """Pairs of languages and trees on which a rule is proved."""
    small, three = (fitting(rule, names) for names in (SMALL, ["star:3", "chain:2", "expansion:2,1"]))
    if kind == "random":
        return [(random_pair(seed), small[seed % len(small)]) for seed in range(200)]
    if kind == "hard":
        return [(pair, tree) for pair in HARD.values() for tree in three]
    if kind == "larger and odd trees":
        return [(random_pair(seed), tree) for seed, tree in enumerate(fitting(rule, [*LARGE, *ODD.values()]))]
    return [(random_pair(seed, vocabulary=3 + seed % 3, depth=2), tree) for seed, tree in enumerate(three, 3)]


@pytest.mark.parametrize("kind", ["random", "hard", "larger and odd trees", "more tokens"])
@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless(rule, proposal, kind):
    distances = [distance(rule, pair, tree, proposal) for pair, tree in cases(rule, kind)]
    assert max(distances) < EXACT, cases(rule, kind)[distances.index(max(distances))]


@pytest.mark.parametrize("off", [-1e-5, 0, 1e-5])
@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_rows_of_float32_that_do_not_quite_sum_to_one_change_the_law_by_no_more(rule, proposal, off):
    """Sums over a long vocabulary are nearly one; where p equals q, the bonus token is still a token of the target."""
    pairs = [*map(random_pair, (0, 1, 2, 5)), *HARD.values(), (constant(1, 1e-40, 1), constant(1e-40, 1, 1))]
    for target, drafter in pairs:
        rows = [lambda path: ((1 + off) * target(path)).float(), lambda path: ((1 - off) * drafter(path)).float()]
        found = enumeration.law(rule, *rows, shapes.chain(2) if RULES[rule].shapes == "chain" else shapes.star(3),
                                proposal)
        assert sum(found.emitted.values()) == pytest.approx(1, abs=ROUNDING)
        assert all(float(target(path[:-1])[path[-1]]) > 0 for path, chance in found.emitted.items() if chance > 0)
        assert enumeration.distance(found, target, 3) < 10 * abs(off) + ROUNDING


@pytest.mark.parametrize("grown", ["dyspec:3@5", "eagle2:2,3@4", "opttree:2,3,0.2@5", "smart:3@5"])
@pytest.mark.parametrize("rule", [rule for rule, proposal in LOSSLESS if proposal == "top_k" and
                                  RULES[rule].shapes == "any"])
def test_grown_trees_of_chosen_children_are_lossless(rule, grown):
    grows = named(grown, costs=Costs((1.0, 1.2, 1.5, 1.6, 2.1, 2.2), 0.05))
    assert max(distance(rule, random_pair(seed), grows, "top_k") for seed in range(24)) < EXACT


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_greedy_is_lossless_where_the_target_is_certain(proposal):
    for seed in range(20):
        target, drafter = random_pair(seed)
        certain = lambda path: torch.nn.functional.one_hot(target(path).argmax(), 3).double()  # noqa: E731
        assert distance("greedy", (certain, drafter), named(SMALL[seed % 6]), proposal) < EXACT


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_traversal_of_a_chain_is_block_verification(proposal):
    for seed in range(12):
        laws = [law(rule, random_pair(seed), shapes.chain(3), proposal) for rule in ("block", "traversal")]
        assert laws[0].accepted_length == pytest.approx(laws[1].accepted_length, abs=EXACT)
        assert laws[0].emitted == pytest.approx(laws[1].emitted, abs=EXACT)


def test_one_sample_is_accepted_with_the_published_chance():
    """It is sum min(p, q) (Leviathan et al. 2023) for every rule that compares with q."""
    for rule, proposal in LOSSLESS:
        for seed in range(20 if proposal != "top_k" and rule != "naive" else 0):
            pair = random_pair(seed)
            alpha = float(torch.minimum(pair[0](()), pair[1](())).sum())
            assert law(rule, pair, shapes.chain(1), proposal).accepted_length == pytest.approx(alpha, abs=EXACT)


@pytest.mark.parametrize("rule, accepted", [("multi_step", 10 / 9), ("block", 11 / 9)])
def test_the_example_that_block_verification_was_introduced_with(rule, accepted):
    """Sun et al. 2024, section 1: two tokens, p = (1/3, 2/3), q = (2/3, 1/3) after any text, a draft of two."""
    found = law(rule, (constant(1, 2), constant(2, 1)), shapes.chain(2), "iid")
    assert found.accepted_length == pytest.approx(accepted, abs=EXACT)


# --------------------------------------------------------------------------------------------------------- lossy rules


@pytest.mark.parametrize("rule", LOSSY)
def test_the_error_of_a_lossy_rule_is_found(rule):
    assert max(distance(rule, random_pair(seed), shapes.chain(2), "iid") for seed in range(10)) > 0.05


def test_acceptance_without_a_residual_has_the_law_that_arithmetic_gives():
    """One token: min(p, q) if it is accepted, else a sample of p: min(p, q) + (1 - sum min(p, q)) p."""
    for pair in [*map(random_pair, range(12)), HARD["equal"], HARD["disjoint"]]:
        p, shared = pair[0](()), torch.minimum(pair[0](()), pair[1](()))
        found = law("stochastic", pair, shapes.chain(1), "iid").extended(pair[0], 1)
        assert found == pytest.approx(shared + (1 - shared.sum()) * p, abs=EXACT)


def test_threshold_that_no_token_reaches_is_naive_sampling():
    for seed in range(10):
        rule = partial(threshold, single=1.1)
        found = law(rule, random_pair(seed), shapes.expansion([2, 1]), "top_k")
        assert enumeration.distance(found, random_pair(seed)[0], 3) < EXACT


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_conservative_accepts_wherever_deterministic_does(proposal):
    """It is the laxer of the two: of the children that both may take, it takes the same or an earlier one."""
    for seed in range(60):
        target, drafter = random_pair(seed, vocabulary=4)
        draft = enumeration.fill(drafter, named(LARGE[seed % len(LARGE)]), proposal, seeded(seed))
        probs = torch.stack([target(path) for path in enumeration.tokens_of(draft)])
        strict, lax = (verify(rule, draft, probs, seeded(0))[0] for rule in ("deterministic", "conservative"))
        for strict_node, lax_node in zip(strict, lax):
            if strict_node != lax_node:
                assert draft.tree.parents[lax_node] == draft.tree.parents[strict_node] and lax_node < strict_node
                break
        else:
            assert len(lax) >= len(strict)


# -------------------------------------------------------------------------------------- rules and drafters that sample


@pytest.mark.parametrize("rule, proposal", CASES)
def test_rounds_with_a_generator_have_the_enumerated_law(rule, proposal):
    pair = random_pair(6, vocabulary=4)
    assert chance_of(rule, proposal, pair, shapes.chain(2) if RULES[rule].shapes == "chain" else ODD["gaps"]) > LEVEL


def test_samples_would_show_a_wrong_rule():
    """Independent samples whose repeats are merged without their count: a law that is wrong by 1 / 16."""
    pair = constant(1, 1), constant(1, 3)
    assert chance_of("multi_step", "iid", pair, shapes.star(4)) > LEVEL
    assert chance_of("multi_step", "iid", pair, shapes.star(4), forget_counts=True) < LEVEL


def chance_of(rule, proposal, pair, tree, forget_counts=False):
    """The p-value of a G-test of SAMPLES rounds, verified with a generator, against the enumerated law."""
    draws, weights, rounds, emitted = seeded(5), [], [], []
    for chance, draft in enumeration.drafts(pair[1], tree, proposal):
        paths = enumeration.tokens_of(draft)
        if forget_counts:
            draft = Draft(draft.tree, draft.tokens, proposal, draft.probs)
        weights.append(chance)
        rounds.append((draft, torch.stack([pair[0](path) for path in paths]), paths))
    for draft, probs, paths in random.Random(6).choices(rounds, weights, k=SAMPLES):
        accepted, bonus = verify(rule, draft, probs, draws)
        emitted.append((*paths[accepted[-1] if accepted else 0], bonus))
    return g_test(emitted, law(rule, pair, tree, proposal).emitted)["p_value"]


class Decided:
    """Forks whose tokens are decided when they are drawn."""

    def __init__(self, draws):
        self.draws = draws

    def categorical(self, probs):
        return int(self.draws.categorical(probs))


@pytest.mark.parametrize("proposal", ["iid", "without_replacement"])
def test_drafters_sample_siblings_as_the_enumeration_does(proposal):
    """The drafters' own sampling, enumerated, has the law of the drafts on which rules are proved."""
    for seed in range(6):
        q, sampler = random_pair(seed)[1](()), filling.SAMPLERS[proposal]
        sampled = law_by_forks(lambda draws: tuple((token, count) for _, token, count in sampler(q, 3, Decided(draws))))
        proved = {tuple(zip(draft.tokens[1:].tolist(), draft.times_drawn()[1:])): chance
                  for chance, draft in enumeration.drafts(lambda path: q, shapes.star(3), proposal)}
        assert sampled == pytest.approx(proved, abs=EXACT)


# ----------------------------------------------------------------------------------------------------- the enumeration


def test_repeats_are_one_node_with_their_count():
    drafts = list(enumeration.drafts(constant(1, 1), shapes.star(2), "iid"))
    assert {key(draft): chance for chance, draft in drafts} == {
        ((-1, 0), (0, 0), (1, 2)): 0.25, ((-1, 0), (0, 1), (1, 2)): 0.25,
        ((-1, 0, 0), (0, 0, 1), (1, 1, 1)): 0.25, ((-1, 0, 0), (0, 1, 0), (1, 1, 1)): 0.25}


def test_a_number_compared_twice_is_one_number():
    found = law_by_forks(lambda draws: (lambda u: (u < 0.3, u < 0.6, 0.9 > u))(draws.uniform()))
    assert found == pytest.approx(
        {(True, True, True): 0.3, (False, True, True): 0.3, (False, False, True): 0.3, (False, False, False): 0.1})


def test_a_token_is_decided_as_far_as_it_is_looked_at():
    def look(draws):
        token = draws.categorical(torch.tensor([1.0, 0.0, 1.0, 2.0]))
        return "first" if token == 0 else settle(token)

    found = list(outcomes(look))
    assert (0.25, "first") in found and (0.75, [(2, 1 / 3), (3, 2 / 3)]) in found and len(found) == 2
    assert law_by_forks(lambda draws: int(draws.categorical(torch.tensor([1.0, 0.0, 3.0])))) == {0: 0.25, 2: 0.75}


def test_events_without_a_chance_are_no_outcomes():
    assert law_by_forks(lambda draws: (draws.uniform() < 0, draws.uniform() < 1)) == {(False, True): 1}
    with pytest.raises(ValueError, match="all probabilities are zero"):
        Forks([]).categorical(torch.zeros(2))


def test_joint_law_and_distance():
    language = constant(1, 3)
    assert enumeration.joint(language, 2).tolist() == [[1 / 16, 3 / 16], [3 / 16, 9 / 16]]
    assert enumeration.total_variation(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8])) == pytest.approx(0.3)


def key(draft):
    return tuple(draft.tree.parents.tolist()), tuple(draft.tokens.tolist()), tuple(draft.times_drawn())


def law_by_forks(function):
    chances = Counter()
    for chance, result in outcomes(function):
        chances[result] += chance
    return dict(chances)
