"""Rules proved lossless by enumeration: what a round emits, continued by the target, has the target's own law."""

from collections import Counter

import pytest
import torch

from lib.drafters import proposals
from lib.tests import plain_rules
from lib.trees import Tree, shapes
from lib.verify import RULES, GeneratorDraws
from lib.verify.proof import enumeration
from lib.verify.proof.forks import Forks, outcomes, settle
from lib.verify.proof.hard_languages import HARD, constant, random_pair

EXACT = 1e-12
SMALL = ["chain:1", "star:2", "star:3", "chain:2", "expansion:2,1", "comb:2,2"]
LARGE = ["chain:3", "kary:2,2", "expansion:1,2,1", "expansion:2,1,1", "comb:3,2"]
ODD = {
    "uneven": Tree([-1, 0, 0, 2, 2, 3]),
    "gaps": Tree([-1, 0, 0, 1], rank=[0, 0, 2, 1]),
    "out of order": Tree([-1, 0, 0, 1, 2], rank=[0, 1, 0, 0, 0]),
}
LOSSLESS = [
    (rule.name, proposal)
    for rule in RULES.values()
    if rule.lossless and rule.name != "greedy"
    for proposal in sorted(rule.proposals)
]
PLAIN = {
    "multi_step": "iid",
    "without_replacement": "without_replacement",
    "k_seq": "iid",
    "block": "iid",
    "traversal": "without_replacement",
}
HALF_THE_DIGITS = 1e-7  # to which K-SEQ's scale is found; any that is not below it is lossless


def fits(rule: str, tree: Tree) -> bool:
    return RULES[rule].shapes == "any" or tree.max_depth == tree.budget


def distance(rule, pair, tree, proposal):
    target, drafter = pair
    found = enumeration.law(rule, target, drafter, tree, proposal)
    assert sum(found.emitted.values()) == pytest.approx(1, abs=EXACT)
    return enumeration.distance(found, target, tree.max_depth + 1)


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_hundreds_of_random_languages(rule, proposal):
    trees = [tree for tree in map(shapes.parse, SMALL) if fits(rule, tree)]
    worst = max(distance(rule, random_pair(seed), trees[seed % len(trees)], proposal) for seed in range(200))
    assert worst < EXACT


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_hard_languages(rule, proposal):
    trees = [tree for tree in map(shapes.parse, ["star:3", "chain:2", "expansion:2,1"]) if fits(rule, tree)]
    far = {
        (name, str(tree)): found
        for name, pair in HARD.items()
        for tree in trees
        if (found := distance(rule, pair, tree, proposal)) > EXACT
    }
    assert not far


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_on_larger_and_odd_trees(rule, proposal):
    trees = [shapes.parse(name) for name in LARGE]
    trees = [tree for tree in [*trees, *ODD.values()] if fits(rule, tree)]
    assert max(distance(rule, random_pair(seed), tree, proposal) for seed, tree in enumerate(trees)) < EXACT


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_lossless_over_more_tokens(rule, proposal):
    trees = [tree for tree in (shapes.chain(2), shapes.star(3), shapes.expansion([2, 1])) if fits(rule, tree)]
    far = [
        distance(rule, random_pair(seed, vocabulary=3 + seed % 3, depth=2), tree, proposal)
        for seed, tree in enumerate(trees, 3)
    ]
    assert max(far) < EXACT


@pytest.mark.parametrize("proposal", ["top_k", "iid", "without_replacement"])
def test_greedy_is_lossless_where_the_target_is_certain(proposal):
    for seed in range(20):
        target, drafter = random_pair(seed)
        certain = lambda path: torch.nn.functional.one_hot(target(path).argmax(), 3).double()  # noqa: E731
        assert distance("greedy", (certain, drafter), shapes.parse(SMALL[seed % 6]), proposal) < EXACT


@pytest.mark.parametrize("rule", PLAIN)
def test_the_fast_form_of_a_rule_has_the_law_of_the_printed_one(rule):
    trees = [tree for tree in map(shapes.parse, ["chain:3", "star:3", "expansion:2,1", "comb:2,2"]) if fits(rule, tree)]
    close = HALF_THE_DIGITS if rule == "k_seq" else EXACT
    for seed, tree in enumerate(trees * 6):
        target, drafter = random_pair(seed)
        fast = enumeration.law(rule, target, drafter, tree, PLAIN[rule])
        plain = enumeration.law(getattr(plain_rules, rule), target, drafter, tree, PLAIN[rule])
        assert fast.accepted_length == pytest.approx(plain.accepted_length, abs=close)
        assert all(
            abs(fast.emitted.get(path, 0) - plain.emitted.get(path, 0)) < close
            for path in {*fast.emitted, *plain.emitted}
        )


def test_traversal_of_a_chain_is_block_verification():
    for seed in range(12):
        target, drafter = random_pair(seed)
        block, traversal = (
            enumeration.law(rule, target, drafter, shapes.chain(3), "without_replacement")
            for rule in ("block", "traversal")
        )
        assert block.accepted_length == pytest.approx(traversal.accepted_length, abs=EXACT)


def test_what_papers_say_of_acceptance():
    """One draw is accepted with sum min(p, q) (Leviathan et al. 2023); with one child all rules are that
    rule."""
    for seed in range(20):
        target, drafter = random_pair(seed)
        alpha = float(torch.minimum(target(()), drafter(())).sum())
        for rule, proposal in [
            ("multi_step", "iid"),
            ("without_replacement", "without_replacement"),
            ("k_seq", "iid"),
            ("block", "iid"),
            ("traversal", "without_replacement"),
        ]:
            assert enumeration.law(rule, target, drafter, shapes.chain(1), proposal).accepted_length == pytest.approx(
                alpha, abs=EXACT
            )


@pytest.mark.parametrize("rule, proposal, accepted", [("multi_step", "iid", 10 / 9), ("block", "iid", 11 / 9)])
def test_the_example_that_block_verification_was_introduced_with(rule, proposal, accepted):
    """Sun et al. 2024, section 1: two tokens, p = (1/3, 2/3), q = (2/3, 1/3) behind any text, a draft of two."""
    p, q = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64) / 3
    found = enumeration.law(rule, lambda text: p, lambda text: q, shapes.chain(2), proposal)
    assert found.accepted_length == pytest.approx(accepted, abs=EXACT)


@pytest.mark.parametrize("rule", ["typical", "deterministic", "conservative", "threshold"])
def test_a_lossy_rule_is_seen_to_be_lossy(rule):
    found = [distance(rule, random_pair(seed), shapes.chain(2), "iid") for seed in range(10)]
    assert max(found) > 0.05


def test_threshold_without_its_door_is_naive_sampling():
    for seed in range(10):
        target, drafter = random_pair(seed)
        shut = enumeration.law("threshold", target, drafter, shapes.expansion([2, 1]), "top_k", single=1.1)
        assert enumeration.distance(shut, target, 3) < EXACT


# --------------------------------------------------------------------------------------------------- the instrument
# itself


@pytest.mark.parametrize("proposal", ["top_k", "iid", "without_replacement"])
def test_drafts_have_the_law_of_drawing_them(proposal):
    _, drafter = random_pair(3)
    tree, generator = shapes.expansion([2, 1]), torch.Generator().manual_seed(0)
    law = {key(draft): chance for chance, draft in enumeration.drafts(drafter, tree, proposal)}
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    drawn = Counter(key(enumeration.fill(drafter, tree, proposal, GeneratorDraws(generator))) for _ in range(3000))
    assert set(drawn) <= set(law)
    assert all(
        abs(drawn[draft] / 3000 - chance) < 4.5 * (chance * (1 - chance) / 3000) ** 0.5 + 1e-9
        for draft, chance in law.items()
    )


@pytest.mark.parametrize("proposal", ["iid", "without_replacement"])
def test_drafters_sample_siblings_as_the_enumeration_does(proposal):
    """The drafters' own sampling runs on forks too, so that what is proved is proved of their drafts."""
    for seed in range(6):
        q, sampler = random_pair(seed)[1](()), proposals.SAMPLERS[proposal]
        own = dict_of(lambda draws: tuple((token, count) for _, token, count in sampler(q, 3, Decided(draws))))
        proved = {
            tuple(zip(draft.tokens[1:].tolist(), draft.times_drawn()[1:])): chance
            for chance, draft in enumeration.drafts(lambda path: q, shapes.star(3), proposal)
        }
        assert own == pytest.approx(proved, abs=EXACT)


class Decided:
    """Forks whose tokens are plain numbers at once."""

    def __init__(self, draws):
        self.draws = draws

    def categorical(self, probs):
        return int(self.draws.categorical(probs))


@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_the_enumerated_law_is_the_drawn_one(rule, proposal):
    target, drafter = random_pair(6)
    tree = shapes.chain(2) if RULES[rule].shapes == "chain" else shapes.expansion([2, 1])
    law = enumeration.law(rule, target, drafter, tree, proposal)
    draws, count, total = GeneratorDraws(torch.Generator().manual_seed(1)), 1500, 0
    for _ in range(count):
        draft = enumeration.fill(drafter, tree, proposal, draws)
        probs = torch.stack([target(path) for path in enumeration.tokens_of(draft)])
        total += len(RULES[rule].function(draft, probs, draws)[0])
    assert total / count == pytest.approx(law.accepted_length, abs=4.5 / count**0.5)


def test_repeats_are_one_node_with_their_count():
    drafts = list(enumeration.drafts(constant(1, 1), shapes.star(2), "iid"))
    found = {key(draft): chance for chance, draft in drafts}
    assert found == {
        ((-1, 0), (0, 0), (1, 2)): 0.25,
        ((-1, 0), (0, 1), (1, 2)): 0.25,
        ((-1, 0, 0), (0, 0, 1), (1, 1, 1)): 0.25,
        ((-1, 0, 0), (0, 1, 0), (1, 1, 1)): 0.25,
    }


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


def key(draft):
    return tuple(draft.tree.parents.tolist()), tuple(draft.tokens.tolist()), tuple(draft.times_drawn())


def dict_of(function):
    law = Counter()
    for chance, result in outcomes(function):
        law[result] += chance
    return dict(law)
