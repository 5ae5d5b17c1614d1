"""Several language models' drafts merged into one token tree (Miao et al. 2024, SpecInfer, section 3)."""

from typing import Sequence

from lib.drafters.drafter import Wrapper, merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.vocabulary import drafting
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws, merge_samples


class MergedDrafter(Wrapper):
    """Lets every drafter fill the shape and merges the results: paths that they share are verified once.

    The merged tree has at most the shape's nodes for each drafter. Drafters that sample do so independently ("iid"),
    and the merged draft keeps each one's proposal apart.
    """

    @classmethod
    def of(cls, pair, *, models: Sequence, proposal: str = "top_k", temperature: float = 1.0) -> "MergedDrafter":
        """Language models, all of them given."""
        return cls(*(LanguageModelDrafter(drafting(model, pair, None), proposal=proposal, temperature=temperature)
                     for model in models))

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        by_row = zip(*(drafter.propose(shape, draws) for drafter in self.drafters))
        self.drafts = [merge_chosen(drafts) if all(draft.proposal == "top_k" for draft in drafts) else
                       merge_samples(drafts) for drafts in by_row]
        return self.drafts


def merge_chosen(drafts: Sequence[Draft]) -> Draft:
    """The union of drafts of one root whose children were chosen, not sampled.

    Siblings are ranked as the first drafter ranks them, then those that only later drafters have, in their order.
    """
    sequences = []
    for draft in drafts:
        best_first = sorted(draft.tree.paths(), key=lambda path: tuple(draft.tree.rank[list(path)]))
        sequences += [draft.tokens_of(path[1:]) for path in best_first]
    return merge(drafts[0].token_list[ROOT], sequences)
