"""Losses of several depths backward one after the other, so that the logits of one depth alone are ever alive.

The logits of a depth are [rows, length, V], far more than the hidden states that they come of. Where every depth's loss
is backward before the next one's logits are made, their gradients meet in the hidden states, and the trunk below goes
backward once (Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction", figure 2).
"""

from typing import Callable, Sequence

import torch
from torch import Tensor

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
