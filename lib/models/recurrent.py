"""Targets with recurrent or convolutional layers (gated delta nets, Mamba, short convolutions) take chains alone.

Such a layer holds one state per text, which a rejected token cannot leave. Within a check these layers therefore read
token after token, as in plain decoding, and the cache keeps the state after each: a commit takes that of the last
accepted one. A check costs their weights once per token, mostly from the processor's caches, and draft + 2 states.
"""

import inspect
import threading
from functools import cache

import torch
from torch import Tensor, nn
from transformers.cache_utils import LinearAttentionLayer

STATES = "update_conv_state", "update_recurrent_state"  # what such a layer asks of a cache


MOST_STATES = 8  # of a kind, in one layer
_CHANGING = threading.Lock()


class States(LinearAttentionLayer):
    """A layer's states in a `TreeCache`; steps: before the tokens that are not committed, and after each of them."""

    def __init__(self):
        super().__init__(MOST_STATES)
        self.steps: list[list[Tensor]] = []

    def tensors(self) -> list[Tensor]:
        """The present states, each [B, ...]."""
        return [state for kept in (self.conv_states, self.recurrent_states) for state in kept.values()
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

    def replace(self, made) -> None:
        """Puts made(kind, index) in the place of each state, such as ("conv_states", 0)."""
        for kind in ("conv_states", "recurrent_states"):
            kept = getattr(self, kind)
            kept |= {index: made(kind, index) for index, state in kept.items() if state is not None}

    @property
    def bytes(self) -> int:
        """Bytes of the present states and of those that are kept."""
        return sum(state.nbytes for states in (self.tensors(), *self.steps) for state in states)


def mixers(model: nn.Module) -> list[nn.Module]:
    """The modules that read and write states in a cache."""
    return [module for module in model.modules() if hasattr(module, "layer_idx") and _writes_states(type(module))]


@cache  # reading a class's source takes milliseconds, and each decoding asks
def _writes_states(kind: type) -> bool:
    return any(name in inspect.getsource(function) for name in STATES
               for function in vars(kind).values() if inspect.isfunction(function))


def read_in_steps(model: nn.Module) -> None:
    """Makes the mixers of a model read token after token behind a `TreeCache` that is not empty; other caches are
    served as before. A second call changes nothing.
    """
    with _CHANGING:
        for mixer in mixers(model):
            if not getattr(mixer.forward, "in_steps", False):
                mixer.forward = _in_steps(mixer, mixer.forward)


def _in_steps(mixer: nn.Module, forward):
    from lib.models.cache import TreeCache

    def step_by_step(hidden_states: Tensor, *args, **kwargs):
        cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, TreeCache)), None)
        if cache is not None and "attention_mask" in kwargs:
            kwargs["attention_mask"] = None  # no row is padded
        if cache is None or mixer.layer_idx not in cache.states:  # the prompt is read at once
            return forward(hidden_states, *args, **kwargs)
        states, outputs = cache.states[mixer.layer_idx], []
        if not states.steps:
            states.keep()
        for token in hidden_states.split(1, dim=1):
            outputs.append(forward(token, *args, **kwargs))
            states.keep()
        return torch.cat(outputs, dim=1)

    step_by_step.in_steps = True
    return step_by_step
