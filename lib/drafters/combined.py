"""Look-up where it has a long match, a language model elsewhere (Hu et al. 2024, SAM-Decoding, section 3.3)."""

from typing import Sequence

from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import follow
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter
from lib.tree import Tree
from lib.verify import Draft, Draws


class CombinedDrafter:
    """Each row of a batch gets the look-up's draft where its match has `enough` tokens or more, else the model's.

    A round in which all rows have a match costs no forward of the model; it catches up in the first one that it drafts.
    """

    def __init__(self, lookup: SuffixAutomatonDrafter, drafter: LanguageModelDrafter, enough: int = 4):
        if enough < 1:
            raise ValueError(f"a match of {enough} tokens is enough; give 1 or more")
        self.lookup, self.drafter, self.enough = lookup, drafter, enough
        self.rounds = self.looked_up = 0  # over all rows

    @property
    def calls(self) -> int:
        """Forwards of the model."""
        return self.drafter.calls

    @property
    def cache_bytes(self) -> int:
        """Bytes that both hold."""
        return self.lookup.cache_bytes + self.drafter.cache_bytes

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts both on the prompts int64[T]."""
        self.lookup.start(prompts)
        self.drafter.start(prompts)
        self.drafts: list[Draft] = []
        self.own: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """For each row the draft of one of the two."""
        found = self.lookup.propose(shape, draws)
        long = [length >= self.enough and draft.tree.budget > 0 for length, draft in zip(self.lookup.matched(), found)]
        self.own = [] if all(long) else self.drafter.propose(shape, draws)
        self.drafts = found if all(long) else [
            looked_up if use else own for use, looked_up, own in zip(long, found, self.own)]
        self.rounds += len(long)
        self.looked_up += sum(long)
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Both take what was kept; the model keeps of its own draft what lies on the accepted path."""
        kept = [self.drafts[row].tokens[nodes].tolist() if nodes else [] for row, nodes in enumerate(accepted)]
        self.lookup.advance([tokens + [token] for tokens, token in zip(kept, bonus)])
        own = [follow(self.own[row], tokens) if self.own and tokens else [] for row, tokens in enumerate(kept)]
        self.drafter.advance(own, [tokens[len(nodes):] + [token] for tokens, nodes, token in zip(kept, own, bonus)])

    def select(self, rows: list[int]) -> None:
        """Keeps these rows in both."""
        self.lookup.select(rows)
        self.drafter.select(rows)
