"""What every alternative of the attention study is given, and the names of two that are no rivals of the others."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

AUTO = "auto"  # one of the project's own forms under another name
CHAIN = "as a chain"  # `auto` on a chain of as many nodes
NO_RIVALS = AUTO, CHAIN

@dataclass(frozen=True)
class Problem:
    """One call of tree attention: the same tree and prefix length in every row."""

    query: Tensor  # [B, Hq, m, d]
    key: Tensor  # [B, Hkv, prefix + m, d]
    value: Tensor  # [B, Hkv, prefix + m, d]
    tree_mask: Tensor  # bool [m, m], nodes in topological order
    prefix: int

    @property
    def group(self) -> int:
        """Query heads to a key head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def scratch(self) -> tuple[Tensor, Tensor]:
        """A sequential decoder's cache: keys and values whose slots behind the prefix are overwritten path by path."""
        return self.key.clone(), self.value.clone()

    @property
    def paths(self) -> list[Tensor]:
        """Node indices root .. leaf, one int64 tensor a leaf."""
        seen_by = self.tree_mask.sum(0)  # a leaf is seen by itself alone
        return [self.tree_mask[leaf].nonzero().flatten() for leaf in (seen_by == 1).nonzero().flatten()]
