"""Graft (arXiv 2605.20104): a drafter's tree is pruned, and tokens retrieved from the text take the freed nodes."""

from operator import attrgetter

import numpy as np

from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import LIVE, merge, part_of
from lib.drafters.merged import by_rank
from lib.trees.growth.candidates import Growth
from lib.trees.shapes import chain
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws

MOST = 0.5  # share of a round's nodes that retrieved tokens may take


class GraftDrafter(CombinedDrafter):
    """The other drafter's tree where there is no match; else the tokens after the longest match beside that tree, whose
    weakest nodes leave room for them. All rows of a batch are pruned alike, for the row that retrieved most.

    A grown tree is pruned as its rule does with a smaller budget; of a static shape the nodes of the worst ranks go
    first, the deepest of equals.
    """

    replay = LIVE  # in a batch all rows are pruned alike
    grows = property(attrgetter("drafter.grows"))
    per_depth = property(attrgetter("drafter.per_depth"))
    one_pass = property(attrgetter("drafter.one_pass"))

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the pruned tree and the retrieved chain, as one tree of at most the shape's budget."""
        longest = min(int(MOST * shape.budget), shape.max_depth)
        found = self.lookup.propose(chain(longest), draws)
        enough = [length >= self.enough for length in self.lookup.matched()]
        retrieved = [draft.token_list[1:] if use else [] for use, draft in zip(enough, found)]
        room = max(map(len, retrieved))
        own = self.drafter.propose(pruned(shape, shape.budget - room) if room else shape, draws)
        self.drafts = [_grafted(draft, tokens) if tokens else draft for draft, tokens in zip(own, retrieved)]
        self.rounds += len(enough)
        self.looked_up += sum(map(bool, retrieved))
        return self.drafts


def pruned(shape: Tree | Growth, budget: int) -> Tree | Growth:
    """The shape, or rule, with at most so many nodes."""
    if not isinstance(shape, Tree):
        return shape.with_budget(budget)
    ranks = [sum(choice) for choice in [(), *shape.choices()]]  # never smaller than the parent's
    order = np.lexsort([np.arange(shape.size), shape.depth, ranks])
    return part_of(shape, tuple(sorted(order[: budget + 1].tolist())))


def _grafted(draft: Draft, tokens: list[int]) -> Draft:
    """The draft and a chain of tokens after its root, as one tree: the chain's own nodes rank last."""
    paths = [draft.tokens_of(path[1:]) for path in by_rank(draft.tree)]
    return merge(draft.token_list[ROOT], [*paths, tokens])
