"""Rules proved lossless by enumeration: the tokens of a round, continued by the target, have the target's own law."""

import math
from collections import Counter
from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from lib.drafters import filling
from lib.trees import Tree, named, shapes
from lib.trees.growth import Costs
from lib.verify import RULES, Draft, GeneratorDraws, proof, rules, verify
from lib.verify.draft import PROPOSALS, merge_samples
from lib.verify.proof import HARD, Forks, constant, outcomes, random_pair, settle
from lib.verify.rules import k_seq_scale, multi_step

EXACT = 1e-12
VISIBLE = 1e-3  # the smallest distance that counts as an error; errors found are 10 to 1000 times larger
ROUNDING = 1e-6  # of float32
SMALL = ["chain:1", "star:2", "star:3", "chain:2", "expansion:2,1", "comb:2@4"]
LARGE = ["chain:3", "kary:2,2", "expansion:1,2,1", "expansion:2,1,1", "comb:3@6"]
ODD = {"root alone": Tree([-1]), "uneven": Tree([-1, 0, 0, 2, 2, 3]), "gaps": Tree([-1, 0, 0, 1], rank=[0, 0, 2, 1]),
       "out of order": Tree([-1, 0, 0, 1, 2], rank=[0, 1, 0, 0, 0])}
LOSSLESS = [(rule.name, proposal) for rule in RULES.values() if rule.lossless and rule.sampled
            for proposal in sorted(rule.proposals)]
LOSSY = [rule.name for rule in RULES.values() if not rule.lossless]


@pytest.fixture(autouse=True, scope="module")
def scales_are_solved_once():
    """For each p, q and k of K-SEQ: the enumeration comes back to the same node many times."""
    @cache
    def solve(p, q, k, dtype):
        return k_seq_scale(torch.tensor(p, dtype=dtype), torch.tensor(q, dtype=dtype), k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "k_seq_scale", lambda p, q, k: solve(tuple(p.tolist()), tuple(q.tolist()), k, p.dtype))
        yield


def law(rule, pair, tree, proposal, drafts=None):
    """The law of a round; drafts: of the proposal, where they are enumerated already."""
    run = rule if callable(rule) else partial(verify, rule)
    found = proof.law_of(run, pair[0], drafts or proof.drafts(pair[1], tree, proposal))
    assert sum(found.emitted.values()) == pytest.approx(1, abs=EXACT)
    return found


def distance(rule, pair, tree, proposal, drafts=None):
    return proof.distance(law(rule, pair, tree, proposal, drafts), pair[0], tree.max_depth + 1)


THREE = ["star:3", "chain:2", "expansion:2,1"]
PROVED = {  # pairs of languages and trees
    "random": [(random_pair(seed), SMALL[seed % len(SMALL)]) for seed in range(120)],
    "hard": list(product(HARD.values(), THREE)),
    "larger and odd trees": [(random_pair(seed), tree) for seed, tree in enumerate([*LARGE, *ODD.values()])],
    "more tokens": [(random_pair(seed, vocabulary=3 + seed % 3, depth=2), name) for seed, name in enumerate(THREE, 3)]}


@pytest.mark.parametrize("kind", PROVED)
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_lossless(proposal, kind):
    """Every lossless rule that takes the proposal."""
    for pair, name in PROVED[kind]:
        tree = named(name)
        drafts = [*proof.drafts(pair[1], tree, proposal)]
        for rule in [rule for rule, other in LOSSLESS if other == proposal]:
            if RULES[rule].shapes == "chain" and not tree.is_path:
                continue
            assert distance(rule, pair, tree, proposal, drafts) < EXACT, (rule, pair, name)


@pytest.mark.parametrize("off", [-1e-5, 0, 1e-5])
@pytest.mark.parametrize("rule, proposal", LOSSLESS)
def test_rows_of_float32_that_do_not_quite_sum_to_one_change_the_law_by_no_more(rule, proposal, off):
    """Sums over a long vocabulary are nearly one; where p equals q, the bonus token is still a token of the target."""
    pairs = [*map(random_pair, (0, 1, 2, 5)), *HARD.values(), (constant(1, 1e-40, 1), constant(1e-40, 1, 1))]
    for target, drafter in pairs:
        rows = [lambda path: ((1 + off) * target(path)).float(), lambda path: ((1 - off) * drafter(path)).float()]
        found = proof.law(rule, *rows, shapes.chain(2) if RULES[rule].shapes == "chain" else shapes.star(3),
                                proposal)
        assert sum(found.emitted.values()) == pytest.approx(1, abs=ROUNDING)
        assert all(float(target(path[:-1])[path[-1]]) > 0 for path, chance in found.emitted.items() if chance > 0)
        assert proof.distance(found, target, 3) < 10 * abs(off) + ROUNDING


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


@pytest.mark.parametrize("rule", LOSSY)
def test_the_error_of_a_lossy_rule_is_found(rule):
    assert max(distance(rule, random_pair(seed), shapes.chain(2), "iid") for seed in range(10)) > 0.05


def as_single_samples(draft, target, draws):
    """Multi-step on children of any kind, as if each were one sample of q."""
    return multi_step(Draft(draft.tree, draft.tokens, "iid", draft.probs), target, draws)


def pruned(draft, target, draws):
    """Multi-step on a tree whose unlikely sample is dropped after it was drawn."""
    if draft.probs[0][draft.tokens[1]] > 0.5:
        return multi_step(draft, target, draws)
    return [], draws.categorical(target[0])


@pytest.mark.parametrize("rule, proposal", [(as_single_samples, "top_k"), (as_single_samples, "iid"), (pruned, "iid")],
                         ids=["softmax q on top-k children", "repeats counted once", "a tree pruned by the samples"])
def test_a_lossless_rule_on_children_that_it_is_not_for_is_biased(rule, proposal):
    assert max(distance(rule, random_pair(seed), shapes.star(3), proposal) for seed in range(12)) > VISIBLE


def merged_distance(rule, seed, shape):
    """Of a rule on the merged samples of two drafters, from the target's law."""
    (target, first), (_, second) = random_pair(seed), random_pair(seed + 100)
    parts = product(*(list(proof.drafts(language, shape, "iid")) for language in (first, second)))
    merged = ((math.prod(chance for chance, _ in pair), merge_samples([draft for _, draft in pair])) for pair in parts)
    return proof.distance(proof.law_of(rule, target, merged), target, shape.max_depth + 1)


def first_level(draft, probs, draws):
    """Multi-step on a part of the draft, which keeps the proposals of each drafter."""
    nodes = [node for node in range(draft.tree.size) if draft.tree.depth[node] <= 1]
    accepted, bonus = multi_step(draft.part(shapes.star(len(nodes) - 1), nodes), probs[nodes], draws)
    return [nodes[node] for node in accepted], bonus


@pytest.mark.parametrize("seed", range(3))
def test_samples_of_two_drafters_leave_the_targets_law(seed):
    for shape in (shapes.chain(2), shapes.star(2)):
        assert merged_distance(multi_step, seed, shape) < EXACT
    assert merged_distance(first_level, seed, shapes.chain(2)) < EXACT


def test_chosen_children_are_no_samples_to_merge_and_only_some_rules_take_merged_ones():
    (_, chosen), = proof.drafts(random_pair(1)[1], shapes.chain(1), "top_k")
    with pytest.raises(ValueError, match="proposals are top_k"):
        merge_samples([chosen])
    sample = next(draft for _, draft in proof.drafts(random_pair(1)[1], shapes.chain(1), "iid"))
    with pytest.raises(ValueError, match="the draft of 2 drafters comes without probs of one"):
        verify("k_seq", merge_samples([sample, sample]), torch.full((2, 3), 1 / 3), GeneratorDraws(None))


@pytest.mark.parametrize("proposal", ["iid", "without_replacement"])
def test_drafters_sample_siblings_as_the_enumeration_does(proposal):
    """Their sampling has the law of the drafts on which rules are proved, also where no mass is left for a sibling."""
    for _, drafter in [*map(random_pair, range(6)), *HARD.values()]:
        q, sampler = drafter(()), filling.SAMPLERS[proposal]
        sampled = law_by_forks(lambda draws: tuple((token, count) for _, token, count in sampler(
            q, 3, SimpleNamespace(categorical=lambda probs: int(draws.categorical(probs))))))
        proved = {tuple(zip(draft.tokens[1:].tolist(), draft.times_drawn()[1:])): chance
                  for chance, draft in proof.drafts(lambda path: q, shapes.star(3), proposal)}
        assert sampled == pytest.approx(proved, abs=EXACT)


def test_a_number_compared_twice_is_one_number_and_events_without_a_chance_are_no_outcomes():
    found = law_by_forks(lambda draws: (lambda u: (u < 0.3, u < 0.6, 0.9 > u, u < 0, u < 1))(draws.uniform()))
    assert found == pytest.approx({(True, True, True, False, True): 0.3, (False, True, True, False, True): 0.3,
                                   (False, False, True, False, True): 0.3, (False, False, False, False, True): 0.1})


def test_a_token_is_decided_as_far_as_it_is_looked_at():
    def look(draws):
        token = draws.categorical(torch.tensor([1.0, 0.0, 1.0, 2.0]))
        return "first" if token == 0 else settle(token)

    found = list(outcomes(look))
    assert (0.25, "first") in found and (0.75, [(2, 1 / 3), (3, 2 / 3)]) in found and len(found) == 2
    assert law_by_forks(lambda draws: int(draws.categorical(torch.tensor([1.0, 0.0, 3.0])))) == {0: 0.25, 2: 0.75}
    with pytest.raises(ValueError, match="all probabilities are zero"):
        Forks([]).categorical(torch.zeros(2))


def test_joint_law_and_distance():
    language = constant(1, 3)
    assert proof.joint(language, 2).tolist() == [[1 / 16, 3 / 16], [3 / 16, 9 / 16]]
    assert proof.distance(proof.Law({(0,): 0.55, (1,): 0.45}, 0.0), language, 1) == pytest.approx(0.3)


def law_by_forks(function):
    chances = Counter()
    for chance, result in outcomes(function):
        chances[result] += chance
    return dict(chances)
