"""The proof can fail: known bugs of verification are planted here, and the enumeration detects each of them.

Each variant is a rule as some implementation has shipped it. The same code without the bug passes, so that the tests
detect the bug and not the second implementation.
"""

from functools import partial

import pytest
import torch

from lib.trees import Tree, shapes
from lib.verify import Draft
from lib.verify.proof import enumeration
from lib.verify.proof.forks import outcomes
from lib.verify.proof.languages import random_pair
from lib.verify.rules import multi_step, without

TREES = [shapes.star(2), shapes.star(3), shapes.chain(2), shapes.expansion([2, 1])]
VISIBLE = 1e-3  # the smallest distance that counts as caught; errors found are 10 to 1000 times larger
EXACT = 1e-12


def largest_distance(rule, proposal):
    return max(enumeration.distance(enumeration.law(rule, *random_pair(seed), tree, proposal), random_pair(seed)[0],
                                    tree.max_depth + 1)
               for seed in range(12) for tree in TREES)


def residual_of(p, q):
    rest = (p - q).clamp_min(0)
    return rest / rest.sum() if rest.sum() > 0 else p


def sequoia(draft, target, draws, *, numbers="each", zeroed=True, residual=residual_of, at_leaf=lambda p: p):
    """Sequoia's rule, with parts that can be removed; numbers: one for each child, all siblings, or the round."""
    node, accepted, number = 0, [], draws.uniform() if numbers == "round" else None
    while children := draft.tree.children(node):
        p, q, tokens = target[node], draft.probs[node], draft.tokens_of(children)
        number = draws.uniform() if numbers == "siblings" else number
        for count, (child, token) in enumerate(zip(children, tokens), 1):
            drawn = draws.uniform() if numbers == "each" else number
            if q[token] > 0 and drawn < p[token] / q[token]:
                break
            p = residual(p, q)
            q = without(draft.probs[node], tokens[:count]) if zeroed else q
        else:
            return accepted, draws.categorical(p)
        accepted.append(child)
        node = child
    return accepted, draws.categorical(at_leaf(target[node]))


def merged_without_counts(draft, target, draws):
    return multi_step(Draft(draft.tree, draft.tokens, "iid", draft.probs), target, draws)


def sorted_siblings(draft, target, draws):
    """Siblings in order of probability instead of draw order, as in a tree that was sorted for its mask."""
    rank = draft.tree.rank.copy()
    for node in range(draft.tree.size):
        children = sorted(draft.tree.children(node), key=lambda child: -float(draft.probs[node][draft.tokens[child]]))
        rank[children] = range(len(children))
    return sequoia(Draft(Tree(draft.tree.parents, rank), draft.tokens, draft.proposal, draft.probs), target, draws)


def a_decision_per_path(draft, target, draws):
    """Each root-to-leaf path verified by itself, the longest accepted: a shared node is decided once per path."""
    longest = []
    for path in draft.tree.paths():
        accepted = []
        for parent, child in zip(path, path[1:]):
            if not draws.uniform() < target[parent][draft.tokens[child]]:
                break
            accepted.append(child)
        longest = max(longest, accepted, key=len)
    last = longest[-1] if longest else 0
    rest = target[last].clone()
    rest[draft.tokens_of(draft.tree.children(last))] = 0
    return longest, draws.categorical(rest if rest.sum() > 0 else target[last])


def pruned(draft, target, draws):
    """The unlikely sample is dropped after it was drawn."""
    if draft.probs[0][draft.tokens[1]] > 0.5:
        return multi_step(draft, target, draws)
    return [], draws.categorical(target[0])


BUGS = {
    "softmax q on top-k children": (sequoia, "top_k"),
    "siblings sorted instead of in draw order": (sorted_siblings, "without_replacement"),
    "repeats merged without their count": (merged_without_counts, "iid"),
    "one decision per path": (a_decision_per_path, "top_k"),
    "softmax of the residual": (partial(sequoia, residual=lambda p, q: torch.softmax((p - q).clamp_min(0), -1)),
                                "without_replacement"),
    "one number for all siblings": (partial(sequoia, numbers="siblings"), "without_replacement"),
    "one number for the whole round": (partial(sequoia, numbers="round"), "without_replacement"),
    "q not zeroed after a rejection": (partial(sequoia, zeroed=False), "without_replacement"),
    "p not updated after a rejection": (partial(sequoia, residual=lambda p, q: p), "without_replacement"),
    "a bonus token from the target before warping": (
        partial(sequoia, at_leaf=lambda p: p**0.5 / (p**0.5).sum()), "without_replacement"),
    "a tree pruned by the samples": (pruned, "iid"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name):
    assert largest_distance(*BUGS[name]) > VISIBLE


@pytest.mark.parametrize("proposal", ["without_replacement", "iid"])
def test_the_same_code_without_a_bug_passes(proposal):
    """The distinct ones of independent samples, in the order first drawn, are samples without replacement."""
    assert largest_distance(sequoia, proposal) < EXACT


class Shared:
    """Draws whose uniform number is always the same one."""

    def __init__(self, draws, number):
        self.number, self.categorical = number, draws.categorical

    def uniform(self):
        return self.number


def two_rounds(shared: bool):
    """The joint law of the first token of each of two rounds, which share a random number or not."""
    target, drafter = random_pair(0)

    def emit(draws):
        number, emitted = draws.uniform(), ()
        for _ in range(2):
            draft = enumeration.fill(lambda path: drafter((*emitted, *path)), shapes.chain(1), "without_replacement",
                                     draws)
            probs = torch.stack([target((*emitted, *path)) for path in enumeration.tokens_of(draft)])
            accepted, bonus = sequoia(draft, probs, Shared(draws, number) if shared else draws)
            emitted += (int(draft.tokens[1]) if accepted else int(bonus),)
        return emitted

    law = torch.zeros(3, 3, dtype=torch.float64)
    for chance, emitted in outcomes(emit):
        law[emitted] += chance
    return law


def test_randomness_reused_between_rounds_is_caught():
    """Each round has the right law by itself, but the joint law is wrong."""
    truth = enumeration.joint(random_pair(0)[0], 2)
    assert enumeration.total_variation(two_rounds(shared=False), truth) < EXACT
    assert enumeration.total_variation(two_rounds(shared=True), truth) > VISIBLE
    assert torch.allclose(two_rounds(shared=True).sum(1), truth.sum(1), atol=EXACT)
