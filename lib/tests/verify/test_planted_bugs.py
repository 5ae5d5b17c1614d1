"""The proof can fail: known bugs of verification are planted here, and the enumeration detects each of them.

Each variant is a rule as some implementation has shipped it. The same code without the bug passes, so that the tests
detect the bug and not the second implementation.
"""

import pytest
import torch

from lib.trees import Tree, shapes
from lib.verify import Draft, verify
from lib.verify.rules import multi_step
from lib.verify.proof import enumeration
from lib.verify.proof.forks import outcomes, settle
from lib.verify.proof.languages import random_pair

TREES = [shapes.star(2), shapes.star(3), shapes.chain(2), shapes.expansion([2, 1])]
SEEN = 1e-3  # the smallest distance that counts as caught; errors found are 10 to 1000 times larger


def normalised(mass, otherwise):
    return mass / mass.sum() if mass.sum() > 0 else otherwise


def largest_distance(rule, proposal, *, seeds=range(12), unwarped=None):
    found = []
    for seed in seeds:
        target, drafter = random_pair(seed)
        for tree in TREES:
            run = rule if unwarped is None else rule(target)
            law = enumeration.law(run, target, drafter, tree, proposal)
            found.append(enumeration.distance(law, target, tree.max_depth + 1))
    return max(found)


def top_down(among):
    """A rule from among(p, q, {child: token}, draws) -> (child, or None and the distribution of the bonus token)."""

    def rule(draft, target, draws):
        tokens, node, accepted = draft.tokens.tolist(), 0, []
        while True:
            children = {child: tokens[child] for child in draft.tree.children(node)}
            child, rest = among(target[node], draft.probs[node], children, draws)
            if child is None:
                return accepted, draws.categorical(rest)
            accepted.append(child)
            node = child

    return rule


def siblings(*, zeroed=True, residual=lambda p, q: normalised((p - q).clamp_min(0), p), updated=True,
             number=lambda draws: draws.uniform):
    """Sequoia's rule among siblings, with parts that can be removed."""

    def among(p, q, children, draws):
        uniform = number(draws)
        for child, token in children.items():
            if q[token] > 0 and uniform() < p[token] / q[token]:
                return child, None
            p = residual(p, q) if updated else p
            if zeroed:
                q = q.clone()
                q[token] = 0
                q = normalised(q, q) if q.sum() > 0 else uniform_but(q, list(children.values()), token)
        return None, p

    return among


def uniform_but(q, order, last):
    left = torch.ones_like(q)
    left[order[: order.index(last) + 1]] = 0
    return normalised(left, left)


def one_number(draws):
    number = draws.uniform()
    return lambda: number


def merged_without_counts(draft, target, draws):
    return multi_step(Draft(draft.tree, draft.tokens, "iid", draft.probs), target, draws)


def sorted_siblings(draft, target, draws):
    """Siblings in order of probability instead of draw order, as in a tree that was sorted for its mask."""
    rank = draft.tree.rank.copy()
    for node in range(draft.tree.size):
        children = sorted(draft.tree.children(node), key=lambda child: -float(draft.probs[node][draft.tokens[child]]))
        rank[children] = range(len(children))
    again = Draft(Tree(draft.tree.parents, rank), draft.tokens, draft.proposal, draft.probs)
    return top_down(siblings())(again, target, draws)


def a_decision_a_path(draft, target, draws):
    """Each root-to-leaf path verified by itself, the longest accepted: a shared node is decided once per path."""
    best = ([], None)
    for path in draft.tree.paths():
        kept = []
        for parent, child in zip(path, path[1:]):
            if not draws.uniform() < target[parent][draft.tokens[child]]:
                break
            kept.append(child)
        if len(kept) > len(best[0]):
            best = (kept, None)
    last = best[0][-1] if best[0] else 0
    rest = target[last].clone()
    rest[draft.tokens[list(draft.tree.children(last))]] = 0
    return best[0], draws.categorical(normalised(rest, target[last]))


def unwarped_bonus(target):
    """Verification under the warped target, but the bonus token from the target before warping (here, at twice the
    temperature)."""

    def rule(draft, probs, draws):
        tokens, node, accepted = draft.tokens.tolist(), 0, []
        while True:
            children = {child: tokens[child] for child in draft.tree.children(node)}
            if not children:
                return accepted, draws.categorical(normalised(probs[node] ** 0.5, None))
            child, rest = siblings()(probs[node], draft.probs[node], children, draws)
            if child is None:
                return accepted, draws.categorical(rest)
            accepted.append(child)
            node = child

    return rule


def one_number_a_round(draft, target, draws):
    number = draws.uniform()
    return top_down(siblings(number=lambda _: lambda: number))(draft, target, draws)


def softmax_residual(p, q):
    return torch.softmax((p - q).clamp_min(0), -1)


BUGS = {
    "softmax q on top-k children": (top_down(siblings()), "top_k"),
    "siblings sorted instead of in draw order": (sorted_siblings, "without_replacement"),
    "repeats merged without their count": (merged_without_counts, "iid"),
    "one decision a path": (a_decision_a_path, "top_k"),
    "softmax of the residual": (top_down(siblings(residual=softmax_residual)), "without_replacement"),
    "one number for all siblings": (top_down(siblings(number=one_number)), "without_replacement"),
    "one number for the whole round": (one_number_a_round, "without_replacement"),
    "q not zeroed after a rejection": (top_down(siblings(zeroed=False)), "without_replacement"),
    "p not updated after a rejection": (top_down(siblings(updated=False)), "without_replacement"),
    "samples without replacement taken for independent ones": (top_down(siblings(zeroed=False)), "without_replacement"),
}


def test_a_tree_pruned_by_what_was_sampled_is_caught():
    """Of q = (.9, .1) the unlikely sample is dropped: the first token is emitted with .55 in place of .5."""
    p, q = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0.9, 0.1], dtype=torch.float64)

    def a_round(pruning):
        emitted = torch.zeros(2, dtype=torch.float64)
        for chance, draft in enumeration.drafts(lambda path: q, shapes.chain(1), "iid"):
            kept = draft.tokens[1] == 0 or not pruning
            draft = draft if kept else Draft(shapes.chain(0), draft.tokens[:1], "iid", draft.probs[:1])
            probs = p.expand(draft.tree.size, -1)
            for share, (accepted, bonus) in outcomes(lambda draws: verify("multi_step", draft, probs, draws)):
                firsts = [(int(draft.tokens[1]), 1.0)] if accepted else settle(bonus)
                for token, part in firsts:
                    emitted[token] += chance * share * part
        return emitted.tolist()

    assert a_round(pruning=False) == pytest.approx([0.5, 0.5])
    assert a_round(pruning=True) == pytest.approx([0.55, 0.45])


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name):
    rule, proposal = BUGS[name]
    assert largest_distance(rule, proposal) > SEEN


def test_a_bonus_from_the_unwarped_distribution_is_caught():
    assert largest_distance(unwarped_bonus, "without_replacement", unwarped=True) > SEEN


def test_the_same_code_without_a_bug_passes():
    assert largest_distance(top_down(siblings()), "without_replacement") < 1e-12


def test_distinct_ones_of_independent_samples_are_samples_without_replacement():
    """Not a bug: in the order first drawn, each new token has the law of q without the earlier ones."""
    assert largest_distance(top_down(siblings()), "iid") < 1e-12


def test_randomness_reused_between_rounds_is_caught():
    """Two rounds that share a random number: each has the right law by itself, but their joint law is wrong."""
    target, drafter = random_pair(0)
    rule = top_down(siblings())

    def two_rounds(shared):
        def both(draws):
            number, said = draws.uniform(), ()
            source = _Shared(draws, number) if shared else draws
            for _ in range(2):
                draft = enumeration.fill(
                    lambda path: drafter((*said, *path)), shapes.chain(1), "without_replacement", draws
                )
                probs = torch.stack([target((*said, *path)) for path in enumeration.tokens_of(draft)])
                accepted, bonus = rule(draft, probs, source)
                # Only the first token of each round: the rest of an accepted path is drawn anew.
                said += (int(draft.tokens[1]) if accepted else int(bonus),)
            return said

        law = torch.zeros(3, 3, dtype=torch.float64)
        for chance, said in enumeration.outcomes(both):
            law[said] += chance
        return law

    truth = enumeration.joint(target, 2)
    assert enumeration.total_variation(two_rounds(shared=False), truth) < 1e-12
    assert enumeration.total_variation(two_rounds(shared=True), truth) > SEEN
    assert torch.allclose(two_rounds(shared=True).sum(1), truth.sum(1), atol=1e-12)


class _Shared:
    def __init__(self, draws, number):
        self.number, self.categorical = number, draws.categorical

    def uniform(self):
        return self.number
