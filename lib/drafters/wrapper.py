"""Drafters made of other drafters: their base class, and chains of drafts that may be trees."""

from operator import attrgetter
from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter
from lib.trees.growth import Growth
from lib.trees.shapes import chain
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class Wrapper(Drafter):
    """A drafter made of others, all of which read the kept tokens. A kind defines `propose`, which keeps as `drafts`
    those that it gives. `drafter` is the last of `drafters`.
    """

    drafter = property(lambda self: self.drafters[-1])
    target = property(attrgetter("drafter.target"))  # of a head, whose hidden states a replay reads
    calls = property(lambda self: sum(drafter.calls for drafter in self.drafters))
    window = property(lambda self: min((drafter.window for drafter in self.drafters if drafter.window), default=None))
    knows = property(lambda self: max((drafter.knows for drafter in self.drafters if drafter.knows), default=None))
    wants_hidden_states = property(lambda self: any(drafter.wants_hidden_states for drafter in self.drafters))

    def __init__(self, *drafters: Drafter):
        self.drafters = drafters

    def ask_probs(self, needed: bool) -> None:
        """Asks all of them."""
        for drafter in self.drafters:
            drafter.ask_probs(needed)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts all of them on the prompts int64[T]."""
        self.drafts: Sequence[Draft] = ()
        for drafter in self.drafters:
            drafter.start(prompts)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """As `Drafter.commit`, for all of them."""
        for drafter in self.drafters:
            drafter.commit(accepted, bonus, target_outputs, drafts or self.drafts or None)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of all of them."""
        for drafter in self.drafters:
            drafter.select(rows)


class FirstBranch(Wrapper):
    """Another drafter, of whose drafts the path of first children is kept, for what takes chains alone: look-up drafts
    a tree for a chain where less text than the chain is long follows a match.
    """

    traits = property(attrgetter("drafter.traits"))
    levels = property(attrgetter("drafter.levels"))

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One chain per row."""
        self.drafts = []
        for draft in self.drafter.propose(shape, draws):
            nodes = [ROOT]
            while children := draft.tree.children(nodes[-1]):
                nodes.append(children[0])
            self.drafts.append(draft if draft.tree.is_path else draft.part(chain(len(nodes) - 1), nodes))
        return self.drafts
