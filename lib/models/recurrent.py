"""Targets with recurrent or convolutional layers (gated delta nets, Mamba, short convolutions) take chains alone.

Such a layer holds one state per text, which a rejected token cannot leave. Within a check these layers therefore read
token after token, as in plain decoding, and the cache keeps the state after each, of which a commit takes one.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import cache, wraps

import torch
from torch import Tensor, nn
from transformers.cache_utils import LinearAttentionLayer

WRITERS = "update_conv_state", "update_recurrent_state"  # what such a layer calls of a cache
MOST_STATES = 8  # of a kind, in one layer
_CHANGING = threading.Lock()


class States(LinearAttentionLayer):
    """A layer's states in a `TreeCache`; steps: before the tokens that are not committed, and after each of them."""

    def __init__(self):
        super().__init__(MOST_STATES)
        self.steps: list[list[Tensor]] = []

    def tensors(self) -> list[Tensor]:
        """The present states, each [B, ...]."""
        return [state for states in (self.conv_states, self.recurrent_states) for state in states.values()
                if state is not None]

    def keep(self) -> None:
        """Keeps the present states as those after the next token."""
        self.steps.append([state.clone() for state in self.tensors()])

    def accept(self, counts: Tensor) -> None:
        """Goes back to the states after so many tokens of each row, int64[B], since the last commit."""
        if self.steps:
            rows = torch.arange(len(counts), device=counts.device)
            for state, *after in zip(self.tensors(), *self.steps):
                state.copy_(torch.stack(after)[counts, rows])
            self.steps = []

    def join(self, others: Sequence["States"]) -> None:
        """Appends the rows of other states of the same layer."""
        for kind in ("conv_states", "recurrent_states"):
            first, *rest = (getattr(states, kind) for states in (self, *others))
            first.update({index: torch.cat([state, *(states[index] for states in rest)])
                          for index, state in first.items() if state is not None})


def read_in_steps(model: nn.Module) -> None:
    """Makes a model's layers with states read token after token once a `TreeCache` has states of them."""
    with _CHANGING:
        for module in model.modules():
            has_states = hasattr(module, "layer_idx") and _writes_states(type(module))
            if has_states and not hasattr(module.forward, "in_steps"):
                module.forward = _in_steps(module, module.forward)


@cache  # reading a class's source takes milliseconds, and each decoding asks
def _writes_states(kind: type) -> bool:
    return any(name in inspect.getsource(kind) for name in WRITERS)


def _in_steps(module: nn.Module, forward: Callable) -> Callable:
    """The forward pass of a module with states; in_steps marks it."""
    from lib.models.cache import TreeCache

    @wraps(forward)
    def step_by_step(hidden_states: Tensor, *args, **kwargs):
        tree_cache = next((value for value in (*args, *kwargs.values()) if isinstance(value, TreeCache)), None)
        if tree_cache is not None and "attention_mask" in kwargs:
            kwargs["attention_mask"] = None  # no row is padded
        if tree_cache is None or module.layer_idx not in tree_cache.states:  # the prompt is read at once
            return forward(hidden_states, *args, **kwargs)
        states, outputs = tree_cache.states[module.layer_idx], []
        if not states.steps:
            states.keep()
        for token in hidden_states.split(1, dim=1):
            outputs.append(forward(token, *args, **kwargs))
            states.keep()
        return torch.cat(outputs, dim=1)

    step_by_step.in_steps = True
    return step_by_step
