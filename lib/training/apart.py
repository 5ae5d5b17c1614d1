"""Losses of several depths backward one after the other, so that the logits of one depth alone are ever alive.

The logits of a depth are [rows, length, V], far more than the hidden states that they come of. Where every depth's loss
is backward before the next one's logits are made, their gradients meet in the hidden states, and the trunk below goes
backward once (Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction", figure 2).
"""

import weakref
from typing import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

LossOf = Callable[[Tensor, int], Tensor]  # (states [..., H] of a depth, which depth from 0) -> its loss


def backward_together(states: Sequence[Tensor], loss_of: LossOf) -> Tensor:
    """The plain way: all depths' losses summed, then backward. Returns the sum."""
    total = sum(loss_of(state, depth) for depth, state in enumerate(states))
    total.backward()
    return total.detach()


def backward_apart(states: Sequence[Tensor], loss_of: LossOf) -> Tensor:
    """The same gradients, each depth's logits freed before the next ones are made. Returns the sum of the losses."""
    leaves, total = [], states[0].new_zeros((), dtype=torch.float32)
    for depth, state in enumerate(states):
        leaf = state.detach().requires_grad_()
        loss = loss_of(leaf, depth)
        loss.backward()
        total += loss.detach()
        leaves.append(leaf)
    torch.autograd.backward(list(states), [leaf.grad for leaf in leaves])
    return total


class CountedBytes(TorchDispatchMode):
    """Bytes of the tensors made inside `with`, on any device: `live` now, `peak` at most so far.

    Counted by storage, as operations give them out, until the last tensor that uses it is gone; what an operation needs
    within itself is not seen.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if isinstance(each, Tensor):
                self._count(each.untyped_storage(), given)
        return out

    def _count(self, storage, given: set[int]) -> None:
        key = storage._cdata
        if key in given or key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size
