"""Several language models' drafts merged into one token tree (SpecInfer, section 3)."""

from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.vocabulary import drafting
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws, merge_samples


class MergedDrafter(Drafter):
    """Lets every drafter fill the shape and merges the results: paths that they share are verified once.

    The merged tree has at most the shape's nodes for each drafter. Drafters that sample do so independently ("iid"),
    and the merged draft keeps each one's proposal apart.
    """

    calls = property(lambda self: sum(drafter.calls for drafter in self.drafters))
    window = property(lambda self: min((drafter.window for drafter in self.drafters if drafter.window), default=None))
    knows = property(lambda self: max(drafter.knows for drafter in self.drafters))
    cache_bytes = property(lambda self: sum(drafter.cache_bytes for drafter in self.drafters))

    def __init__(self, drafters: Sequence[LanguageModelDrafter]):
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} drafters to merge; give two or more")
        proposals = {drafter.proposal for drafter in drafters}
        if len(proposals) > 1 or "without_replacement" in proposals:
            raise ValueError(f"proposals of the drafters to merge are {', '.join(sorted(proposals))}; give drafters "
                             "that are all \"top_k\" or all \"iid\"")
        self.drafters = list(drafters)

    @classmethod
    def of(cls, pair, *, models: Sequence, proposal: str = "top_k", temperature: float = 1.0,
           vocabulary: int | Tensor | None = None) -> "MergedDrafter":
        """Language models, all of them given; vocabulary: as for `LanguageModelDrafter.of`."""
        return cls([LanguageModelDrafter(drafting(model, pair, vocabulary), proposal=proposal, temperature=temperature)
                    for model in models])

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts every drafter on the prompts int64[T]."""
        for drafter in self.drafters:
            drafter.start(prompts)
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The union of the drafters' trees, the first drafter's paths first."""
        self.drafts = []
        for drafts in zip(*(drafter.propose(shape, draws) for drafter in self.drafters)):
            self.drafts.append(merge_samples(drafts) if drafts[0].proposal == "iid" else merge_chosen(drafts))
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Every drafter keeps the nodes of its own draft along the accepted path, and takes the rest as new text."""
        for drafter in self.drafters:
            drafter.commit_of(self.drafts, accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of every drafter."""
        for drafter in self.drafters:
            drafter.select(rows)


def merge_chosen(drafts: Sequence[Draft]) -> Draft:
    """The union of drafts of one root whose children were chosen, not sampled.

    Siblings are ranked as the first drafter ranks them, then those that only later drafters have, in their order.
    """
    paths = [draft.tokens_of(path[1:]) for draft in drafts for path in by_rank(draft.tree)]
    return merge(drafts[0].token_list[ROOT], paths)


def by_rank(tree: Tree) -> list[tuple[int, ...]]:
    """The tree's paths, root to leaf, those through siblings of better rank first."""
    return sorted(tree.paths(), key=lambda path: tuple(tree.rank[list(path)]))
