"""A tree's mask and the forms of it that backends need, each made once per forward pass."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """The keys that a layer lets a token see, by position: the last `window` ones, its own included, or those of its
    own chunk of `chunk` positions; all where neither is given.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def least(self) -> int | None:
        """Texts of at most so many tokens are seen whole; None for texts of any length."""
        return min(filter(None, (self.window, self.chunk)), default=None)

    def first(self, position):
        """The first position that a token at this one sees; numbers, or tensors of them. May be negative."""
        return position + 1 - self.window if self.window else position // self.chunk * self.chunk


class SharedMask:
    """A tree's mask and its other forms, each made for the first layer of a forward pass that needs it.

    visible bool [mq, mk] or [B, mq, mk]. One object serves one forward pass; the mask must not be written to meanwhile.
    """

    def __init__(self, visible: Tensor):
        self.visible = visible
        self._made: dict[tuple, Tensor | None] = {}

    def bias(self, query: Tensor, prefix: int, group: int) -> Tensor | None:
        """`folded_bias` for such queries; None for plain decoding, where one node sees one key."""
        kind = query.dtype, query.device, prefix, group
        if kind not in self._made:
            visible = self.visible.to(query.device)
            # On a GPU this test would cost a synchronisation.
            plain = visible.shape[-1] == 1 and not visible.is_cuda and bool(visible.all())
            self._made[kind] = None if plain else folded_bias(query, visible, prefix, group)
        return self._made[kind]

    def words(self, device: torch.device) -> Tensor:
        """`packed_bits` of the mask, on this device."""
        if ("words", device) not in self._made:
            self._made["words", device] = packed_bits(self.visible.to(device))
        return self._made["words", device]

    def lengths(self, prefix: list[int], device: torch.device) -> Tensor:
        """Prefix lengths int32[B] on this device: one copy per forward pass, since each copy waits for the device."""
        kind = "lengths", device, *prefix
        if kind not in self._made:
            self._made[kind] = torch.tensor(prefix, dtype=torch.int32, device=device)
        return self._made[kind]

    def within(self, prefix: list[int], span: Span) -> tuple[int, "SharedMask", list[int]]:
        """The same attention under a span, without one: the first key to read, the mask, and the prefixes from there.

        A node's position is its row's prefix plus the number of tree keys before it that it sees: its ancestors.
        """
        kind = "within", span, *prefix
        if kind not in self._made:
            self._made[kind] = self._within(prefix, span)
        return self._made[kind]

    def _within(self, prefix: list[int], span: Span) -> tuple[int, "SharedMask", list[int]]:
        keys = self.visible.shape[-1]
        if span.least is None or max(prefix) + keys <= span.least:
            return 0, self, prefix
        start = max(0, span.first(min(prefix)))
        if self.visible.shape[-2:] == (1, 1) and len(set(prefix)) == 1:  # plain decoding sees all that is left
            return start, self, [length - start for length in prefix]
        device = self.visible.device
        lengths = torch.tensor(prefix if len(set(prefix)) > 1 else prefix[:1], device=device)[:, None, None]
        place = torch.arange(start, max(prefix) + keys, device=device) - lengths  # [B or 1, 1, S], of keys in the tree
        rows = max(len(lengths), *self.visible.shape[:-2], 1)
        inside, visible = (0 <= place) & (place < keys), self.visible.expand(rows, -1, -1)
        at = place.clamp(0, keys - 1).expand(rows, visible.shape[-2], -1)
        own = visible.cumsum(-1)
        first = span.first(lengths + own[..., -1:] - 1) - lengths  # of each node, from its row's prefix on
        seen = torch.where(inside, visible.gather(-1, at), place < 0)
        seen &= torch.where(inside, own.gather(-1, at) - 1, place) >= first
        return start, SharedMask(seen if rows > 1 else seen[0]), [0] * len(prefix)

    @cached_property
    def blind(self) -> Tensor:
        """The nodes that see no tree key, bool [B or 1, 1, mq]."""
        return ~self.visible.any(-1).view(-1, 1, self.visible.shape[-2])


def causal(nodes: int, pending: int, device=None) -> Tensor:
    """The mask bool[m, pending + m] of a chain of m = nodes tokens after `pending` uncommitted ones."""
    seen = torch.arange(pending + nodes, device=device)
    return seen[pending:, None] >= seen  # `tril` would wake all of PyTorch's threads, which then occupy the cores


def folded_bias(query: Tensor, tree_mask: Tensor, prefix: int, group: int) -> Tensor:
    """The additive mask of folded queries, [B or 1, 1, G * mq, prefix + mk]: 0 where a node sees, else -inf."""
    *_, nodes, mk = tree_mask.shape
    bias = query.new_zeros(tree_mask.shape[0] if tree_mask.dim() == 3 else 1, 1, nodes, prefix + mk)
    bias[..., prefix:].masked_fill_(~tree_mask.view(-1, 1, nodes, mk), float("-inf"))
    return bias.repeat(1, 1, group, 1)


def packed_bits(visible: Tensor) -> Tensor:
    """bool[..., mq, mk] as int32[..., mq, ceil(mk / 32)]: bit j % 32 of word j // 32 is key j."""
    padded = torch.nn.functional.pad(visible, (0, -visible.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (padded.long() << torch.arange(32, device=visible.device)).sum(-1).to(torch.int32).contiguous()
