"""Look-up where it has a long match, a model or a head elsewhere (Hu et al. 2024, SAM-Decoding, section 3.4)."""

from dataclasses import replace

from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper
from lib.drafters.registry import LIVE, Traits, make
from lib.drafters.text_drafters import SuffixAutomatonDrafter
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class CombinedDrafter(Wrapper):
    """Each row of a batch gets the look-up's draft where its match has `enough` tokens or more, else the other's; where
    all rows have a match the other is not asked.
    """

    def __init__(self, lookup: SuffixAutomatonDrafter, drafter: Drafter, enough: int = 4):
        super().__init__(lookup, drafter)
        self.lookup, self.enough = lookup, enough

    @classmethod
    def of(cls, pair, *, enough: int = 4, behind: str = "model",
           vocabulary: int | Tensor | None = None) -> "CombinedDrafter":
        """Look-up, and a drafter of the kind `behind`; vocabulary: that of a draft model."""
        options = {} if vocabulary is None else {"vocabulary": vocabulary}
        return cls(SuffixAutomatonDrafter(), make(behind, pair, options), enough)

    @property
    def traits(self) -> Traits:
        """Those of its kind, with the other drafter's `one_pass`; LIVE where the other drafter is."""
        other, traits = self.drafter.traits, super().traits
        return replace(traits, one_pass=other.one_pass, replay=LIVE if other.replay == LIVE else traits.replay)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        matches = self.lookup.propose(shape, draws)
        long = [text.matched() >= self.enough and draft.tree.budget > 0
                for text, draft in zip(self.lookup.texts, matches)]
        calls = self.drafter.calls
        others = matches if all(long) else self.drafter.propose(shape, draws)
        levels = self.drafter.levels or [self.drafter.calls - calls] * len(long)
        self.levels = [self.drafter.idle_passes if is_long else count for is_long, count in zip(long, levels)]
        self.drafts = [match if is_long else other for is_long, match, other in zip(long, matches, others)]
        return self.drafts
