"""A tree's mask and the forms of it that backends need, each made once per forward pass."""

from collections.abc import Callable

import torch
from torch import Tensor


class SharedMask:
    """A tree's mask, bool [mq, mk] or [B, mq, mk], and its other forms, each made once in a forward pass."""

    def __init__(self, visible: Tensor):
        self.visible = visible
        self._forms: dict[tuple, object] = {}

    def _once(self, key: tuple, make: Callable, *arguments):
        if key not in self._forms:
            self._forms[key] = make(*arguments)
        return self._forms[key]

    def bias(self, query: Tensor, prefix: int, group: int) -> Tensor | None:
        """The additive mask of folded queries, [B or 1, 1, G * mq, prefix + mk]: 0 where a node sees, else -inf.

        None on a processor where all nodes see the only tree key, as in plain decoding.
        """
        return self._once((query.dtype, query.device, prefix, group), self._bias, query, prefix, group)

    def words(self, device: torch.device) -> Tensor:
        """`packed_bits` of the mask, on this device."""
        return self._once(("words", device), lambda: packed_bits(self.visible.to(device)))

    def lengths(self, prefix: list[int], device: torch.device) -> Tensor:
        """Prefix lengths int32[B] on this device: one copy per forward pass, since each copy waits for the device."""
        return self._once(("lengths", device, *prefix), lambda: torch.tensor(prefix, dtype=torch.int32, device=device))

    def within(self, prefix: list[int], window: int | None) -> tuple[int, "SharedMask", list[int]]:
        """The first key to read, and the mask and prefixes from there, so that attention needs no window any more.

        A node's position is its row's prefix plus the number of tree keys before it that it sees: its ancestors.
        """
        if window is None or max(prefix) + self.visible.shape[-1] <= window:
            return 0, self, prefix
        return self._once(("within", window, *prefix), self._within, prefix, window)

    def _bias(self, query: Tensor, prefix: int, group: int) -> Tensor | None:
        visible = self.visible.to(query.device)
        *rows, nodes, tree_keys = visible.shape
        if tree_keys == 1 and not visible.is_cuda and bool(visible.all()):  # on a GPU the test would synchronise
            return None
        bias = query.new_zeros(rows[0] if rows else 1, 1, nodes, prefix + tree_keys)
        bias[..., prefix:].masked_fill_(~visible.view(-1, 1, nodes, tree_keys), float("-inf"))
        return bias.repeat(1, 1, group, 1)

    def _within(self, prefix: list[int], window: int) -> tuple[int, "SharedMask", list[int]]:
        tree_keys = self.visible.shape[-1]
        start, equal = max(0, min(prefix) + 1 - window), len(set(prefix)) == 1
        if self.visible.shape[-2:] == (1, 1) and equal:  # plain decoding sees all keys from there on
            return start, self, [length - start for length in prefix]
        device = self.visible.device
        lengths = torch.tensor(prefix[:1] if equal else prefix, device=device)[:, None, None]
        slots = torch.arange(start, max(prefix) + tree_keys, device=device) - lengths  # [B or 1, 1, S], from the root
        rows = max(len(lengths), *self.visible.shape[:-2], 1)
        visible = self.visible.expand(rows, -1, -1)
        key = slots.clamp(0, tree_keys - 1).expand(rows, visible.shape[-2], -1)
        count = visible.cumsum(-1)  # of the keys that a node sees, up to each key
        in_tree = (0 <= slots) & (slots < tree_keys)
        position = torch.where(in_tree, count.gather(-1, key) - 1, slots)  # from the end of the row's prefix
        sees = torch.where(in_tree, visible.gather(-1, key), slots < 0) & (position > count[..., -1:] - 1 - window)
        return start, SharedMask(sees if rows > 1 else sees[0]), [0] * len(prefix)


def causal(nodes: int, pending: int, device=None) -> Tensor:
    """The mask bool[m, pending + m] of a chain of m = nodes tokens after `pending` uncommitted ones."""
    slots = torch.arange(pending + nodes, device=device)
    return slots[pending:, None] >= slots  # `tril` would wake all of PyTorch's threads, which then occupy the cores


def packed_bits(visible: Tensor) -> Tensor:
    """bool[..., mq, mk] as int32[..., mq, ceil(mk / 32)]: bit j % 32 of word j // 32 is key j."""
    padded = torch.nn.functional.pad(visible, (0, -visible.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (padded.long() << torch.arange(32, device=visible.device)).sum(-1).to(torch.int32).contiguous()
