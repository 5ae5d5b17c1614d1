"""Several language models' drafts merged into one token tree (SpecInfer, section 3)."""

from typing import Sequence

from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.token_trie import merge
from lib.tree import Tree
from lib.verify import Draft, Draws


class MergedDrafter:
    """Lets every drafter fill the shape and merges the results: paths that they share are verified once.

    `nodes_apart` and `nodes_merged` count drafted nodes before and after merging, over all rounds: what sharing saves.
    """

    def __init__(self, drafters: Sequence[LanguageModelDrafter]):
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} drafters to merge; give two or more")
        self.drafters = list(drafters)
        self.nodes_apart = self.nodes_merged = 0

    @property
    def calls(self) -> int:
        """Forwards of all drafters."""
        return sum(drafter.calls for drafter in self.drafters)

    @property
    def cache_bytes(self) -> int:
        """Bytes that all drafters' caches hold."""
        return sum(drafter.cache_bytes for drafter in self.drafters)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts every drafter on the prompts int64[T]."""
        for drafter in self.drafters:
            drafter.start(prompts)
        self.drafts: list[Draft] = []
        self.apart: list[list[Draft]] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The union of the drafters' trees, the first drafter's paths first."""
        self.apart = [drafter.propose(shape, draws) for drafter in self.drafters]
        self.drafts = []
        for own in zip(*self.apart):
            paths = [draft.tokens[list(path)[1:]].tolist() for draft in own for path in draft.tree.paths()]
            self.drafts.append(merge(int(own[0].tokens[0]), paths))
            self.nodes_apart += sum(draft.tree.budget for draft in own)
            self.nodes_merged += self.drafts[-1].tree.budget
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Every drafter keeps what it had proposed of the accepted path, and takes the rest as new text."""
        kept = [self.drafts[row].tokens[nodes].tolist() if nodes else [] for row, nodes in enumerate(accepted)]
        for index, drafter in enumerate(self.drafters):
            own = [_follow(self.apart[index][row], tokens) if self.apart else [] for row, tokens in enumerate(kept)]
            drafter.advance(own, [tokens[len(nodes):] + [token] for tokens, nodes, token in zip(kept, own, bonus)])

    def select(self, rows: list[int]) -> None:
        """Keeps these rows in every drafter."""
        for drafter in self.drafters:
            drafter.select(rows)


def _follow(draft: Draft, tokens: list[int]) -> list[int]:
    """The nodes of a draft along these tokens, as far as it has them."""
    node, path = 0, []
    for token in tokens:
        node = next((child for child in draft.tree.children(node) if int(draft.tokens[child]) == token), None)
        if node is None:
            break
        path.append(node)
    return path
