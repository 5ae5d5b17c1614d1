"""Graft (arXiv 2605.20104): a drafter's tree is pruned, and tokens retrieved from the text take the freed nodes."""

from dataclasses import replace
from operator import attrgetter

import numpy as np

from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import Traits, merge, part_of
from lib.drafters.merged import by_rank
from lib.trees.growth.candidates import Growth
from lib.trees.shapes import chain
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws

MOST = 0.5  # share of a tree's nodes that retrieved tokens may take


class GraftDrafter(CombinedDrafter):
    """The other drafter's tree where there is no long match; else the tokens after the longest match take the place of
    its weakest nodes.
    """

    levels = property(attrgetter("drafter.levels"))
    deepest = property(attrgetter("drafter.deepest"))

    @property
    def traits(self) -> Traits:
        """As for a look-up in front; its trees grow as those of the other one."""
        other = self.drafter.traits
        return replace(super().traits, grows=other.grows, per_depth=other.per_depth)

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the other drafter's tree, or that tree with the retrieved chain, of no more nodes."""
        longest = min(int(MOST * shape.budget), shape.max_depth)
        retrieved = self.lookup.propose(chain(longest), draws)
        enough = [length >= self.enough for length in self.lookup.matched()]
        self.drafts = [grafted(draft, other.token_list[1:]) if use else draft
                       for draft, other, use in zip(self.drafter.propose(shape, draws), retrieved, enough)]
        return self.drafts


def grafted(draft: Draft, tokens: list[int]) -> Draft:
    """The draft with a chain of tokens after its root, at most MOST of its nodes, in the place of its weakest nodes.

    Tokens on a path of the tree need no room. A grown tree loses its nodes of smallest reach; a static one those of the
    worst ranks, the deepest of equals first. The chain's own nodes rank last.
    """
    tokens = tokens[: int(MOST * draft.tree.budget)]
    shared = draft.along(tokens)
    room = draft.tree.budget - (len(tokens) - len(shared))
    best = [*shared, *(node for node in by_worth(draft) if node not in shared)][:room]
    nodes = [ROOT, *sorted(best)]
    left = draft.part(part_of(draft.tree, tuple(nodes)), nodes)
    return merge(draft.token_list[ROOT], [*(left.tokens_of(path[1:]) for path in by_rank(left.tree)), tokens])


def by_worth(draft: Draft) -> list[int]:
    """The nodes below the root, the best first and none before its parent."""
    if draft.reach is not None:
        return (1 + np.argsort(-draft.reach[1:], kind="stable")).tolist()
    ranks = [sum(choice) for choice in draft.tree.choices()]  # never smaller than the parent's
    return (1 + np.lexsort([draft.tree.depth[1:], ranks])).tolist()
