"""Look-up where it has a long match, a model or a head elsewhere (Hu et al. 2024, SAM-Decoding, section 3.4)."""

from typing import Protocol, Sequence

from torch import Tensor

from lib.drafters.protocol import Drafter
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter
from lib.drafters.wrapping import Wrapping
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class StandsAside(Drafter, Protocol):
    """A drafter that bears rounds in which another's drafts are verified."""

    def commit_of(self, drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int],
                  target_outputs=None) -> None:
        """As `commit`, of these drafts, whether or not it made some itself in this round."""


class CombinedDrafter(Wrapping):
    """Each row of a batch gets the look-up's draft where its match has `enough` tokens or more, else the other's.

    A round in which all rows have a match costs a language model no forward; it catches up in the first that it drafts.
    """

    def __init__(self, lookup: SuffixAutomatonDrafter, drafter: StandsAside, enough: int = 4):
        if enough < 1:
            raise ValueError(f"a match of {enough} tokens is enough; give 1 or more")
        self.lookup, self.drafter, self.enough = lookup, drafter, enough
        self.rounds = self.looked_up = 0  # over all rows

    @property
    def cache_bytes(self) -> int:
        """Bytes that both hold."""
        return self.lookup.cache_bytes + super().cache_bytes

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts both on the prompts int64[T]."""
        self.lookup.start(prompts)
        self.drafter.start(prompts)
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """For each row the draft of one of the two."""
        found = self.lookup.propose(shape, draws)
        long = [length >= self.enough and draft.tree.budget > 0 for length, draft in zip(self.lookup.matched(), found)]
        own = found if all(long) else self.drafter.propose(shape, draws)
        self.drafts = [looked_up if use else other for use, looked_up, other in zip(long, found, own)]
        self.rounds += len(long)
        self.looked_up += sum(long)
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Both take what was kept, whoever drafted it."""
        kept = [self.drafts[row].tokens_of(nodes) if nodes else [] for row, nodes in enumerate(accepted)]
        self.lookup.advance([tokens + [token] for tokens, token in zip(kept, bonus)])
        if self.drafts:
            self.drafter.commit_of(self.drafts, accepted, bonus, target_outputs)
        else:
            self.drafter.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows in both."""
        self.lookup.select(rows)
        self.drafter.select(rows)
