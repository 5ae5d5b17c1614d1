"""Several language models' drafts merged into one token tree (SpecInfer, section 3)."""

from dataclasses import dataclass
from typing import Sequence

from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.token_trie import merge
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.several import merge_samples


@dataclass(frozen=True)
class Sharing:
    """Drafted nodes, over all rounds so far, in three ways of verifying the same drafts.

    sequences: every root-to-leaf sequence of every drafter apart; trees: every drafter's tree apart; merged: one tree.
    """

    rounds: int = 0
    sequences: int = 0
    trees: int = 0
    merged: int = 0

    def and_round(self, own: Sequence[Draft], merged: Draft) -> "Sharing":
        """With one more row's round."""
        sequences = sum(len(path) - 1 for draft in own for path in draft.tree.paths())
        trees = sum(draft.tree.budget for draft in own)
        return Sharing(self.rounds + 1, self.sequences + sequences, self.trees + trees,
                       self.merged + merged.tree.budget)


class MergedDrafter:
    """Lets every drafter fill the shape and merges the results: paths that they share are verified once.

    The merged tree has up to as many times the shape's nodes as there are drafters; `sharing` counts what it spares.
    Drafters that sample do so independently ("iid"), and the merged draft keeps each one's proposal apart.
    """

    def __init__(self, drafters: Sequence[LanguageModelDrafter]):
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} drafters to merge; give two or more")
        proposals = {drafter.proposal for drafter in drafters}
        if len(proposals) > 1 or "without_replacement" in proposals:
            raise ValueError(f"proposals of the drafters to merge are {', '.join(sorted(proposals))}; give drafters "
                             "that are all \"top_k\" or all \"iid\"")
        self.drafters = list(drafters)
        self.sharing = Sharing()

    @property
    def calls(self) -> int:
        """Forwards of all drafters."""
        return sum(drafter.calls for drafter in self.drafters)

    @property
    def window(self) -> int | None:
        """Positions that all drafters have; None without a limit."""
        return min((drafter.window for drafter in self.drafters if drafter.window), default=None)

    @property
    def knows(self) -> int:
        """Tokens that some drafter may draft."""
        return max(drafter.knows for drafter in self.drafters)

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
            self.drafts.append(merge_samples(own) if own[0].proposal == "iid" else merge_chosen(own))
            self.sharing = self.sharing.and_round(own, self.drafts[-1])
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Every drafter keeps what it had proposed of the accepted path, and takes the rest as new text."""
        kept = [self.drafts[row].tokens_of(nodes) if nodes else [] for row, nodes in enumerate(accepted)]
        for index, drafter in enumerate(self.drafters):
            own = [self.apart[index][row].along(tokens) if tokens else [] for row, tokens in enumerate(kept)]
            drafter.advance(own, [tokens[len(nodes):] + [token] for tokens, nodes, token in zip(kept, own, bonus)])

    def select(self, rows: list[int]) -> None:
        """Keeps these rows in every drafter."""
        for drafter in self.drafters:
            drafter.select(rows)


def merge_chosen(drafts: Sequence[Draft]) -> Draft:
    """The union of drafts of one root whose children were chosen, not sampled.

    Siblings are ranked as the first drafter ranks them; what it does not know follows, as the next one ranks that.
    """
    paths = [draft.tokens_of(path[1:]) for draft in drafts for path in by_rank(draft.tree)]
    return merge(drafts[0].token_list[ROOT], paths)


def by_rank(tree: Tree) -> list[tuple[int, ...]]:
    """The tree's paths, root to leaf, those through a sibling of better rank first, whatever the order of nodes."""
    return sorted(tree.paths(), key=lambda path: tuple(tree.rank[list(path)]))


def node_bytes(model) -> int:
    """Bytes that one token takes in a model's cache: key and value of every layer."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
