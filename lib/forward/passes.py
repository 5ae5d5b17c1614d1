"""A model's forward pass over few tokens, by name: "layers" or "native" (see `lib.forward`).

"native" serves models of Llama's kind, and of Gemma's 2 and 3; what it does not serve (long prompts, gradients,
float64, GPUs) runs as "layers". The results agree within rounding.
"""

import math
import threading
from dataclasses import dataclass
from typing import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lib.attention.masks import SharedMask, causal
from lib.attention.registration import least_window, takes_chains, tree_forward
from lib.forward import native
from lib.forward.native import NativeBlocks
from lib.forward.packed import weights_of
from lib.forward.reduced import ReducedOutput
from lib.kernels import products
from lib.lab import timing

KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM",
         "Gemma3ForCausalLM")
LAYERS, NATIVE = NAMES = "layers", "native"
AUTO = "auto"  # the fastest of them that the model and the machine allow


@dataclass(frozen=True)
class Output:
    """The result of a forward pass: logits [B, m or fewer, V], hidden states in transformers' order if asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Kernels:
    """What a forward pass runs instead of the model's layers and output layer, None for "layers"; name: of the
    implementation; made_of: the state of the weights.
    """

    name: str
    blocks: NativeBlocks | None
    output: Callable[[Tensor], Tensor] | None
    made_of: tuple


class ForwardPass:
    """A model's forward pass over blocks of tree nodes, by the implementation `name`.

    device: where tokens, depths and masks are best. Make it anew where weights may have changed.
    """

    def __init__(self, model, kernels: Kernels):
        self.model, self.kernels, self.name, self.blocks = model, kernels, kernels.name, kernels.blocks
        self.device = model.device  # which transformers takes its time to find

    def __call__(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, **asked):
        """One forward pass over tokens int64[B, m] that follow each row's committed ones, as by `tree_forward`.

        asked: `logits_to_keep` and `output_hidden_states`, as of transformers' models. Returns an `Output`, or
        transformers' own.
        """
        if self.blocks is None or torch.is_grad_enabled() or not (
                cache.layers or tokens.numel() <= self.blocks.most_rows):
            return tree_forward(self.model, tokens, depth, tree_mask, cache, **asked)
        with timing.forward():
            mask = SharedMask(causal(tokens.shape[1], cache.pending, self.device) if tree_mask is None else tree_mask)
            logits, states = self.blocks(tokens, depth, cache, mask, asked.get("logits_to_keep", 0),
                                         asked.get("output_hidden_states", False))
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        logits = logits if cap is None else cap * (logits / cap).tanh()
        return Output(logits, None if states is None else tuple(states))

    @property
    def reads_blocks(self) -> bool:
        """Whether it is best on a long text block by block: in the kernels, and where layers mask what a token sees."""
        windows = self.name == LAYERS and least_window(self.model.config) and not takes_chains(self.model.config)
        return bool(windows) or self.name == NATIVE and self.blocks.most_rows == math.inf

    @property
    def fills(self) -> bool:
        """Whether `fill` can fill a static tree."""
        return self.name == NATIVE and least_window(self.model.config) is None

    def fill(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor, cache, levels: native.Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """A static tree's tokens int64[B, size] after the last of tokens int64[B, m], chosen as by `NativeBlocks.fill`,
        in one call; where `fills`, for a cache that is not empty.
        """
        with timing.forward():
            return self.blocks.fill(tokens, depth, cache, SharedMask(tree_mask), levels, choices, names)

    @property
    def output(self):
        """The model's output layer for few rows, [..., H] -> [..., V], without gradients."""
        return self.kernels.output or self.model.get_output_embeddings()

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that are held a second time."""
        return 0 if self.blocks is None else self.blocks.copied_bytes


_KERNELS: WeakKeyDictionary[torch.nn.Module, dict[str, Kernels]] = WeakKeyDictionary()
_MAKING = threading.RLock()  # held by the thread that makes kernels


def forward_pass(model, name: str = AUTO) -> ForwardPass:
    """A model's forward pass by the implementation of this name of `NAMES`; "auto" takes "native" where the machine and
    the model allow it, else "layers".

    What it holds beside the weights is made once, and again when they change. ValueError where the model cannot run so,
    or for another name.
    """
    if name not in (*NAMES, AUTO):
        raise ValueError(f"forward is {name!r}; choose one of {', '.join(NAMES)}, or {AUTO!r} for the fastest")
    made_of = weights_of(model)
    with _MAKING:
        known = _KERNELS.setdefault(model, {})
        if name not in known or known[name].made_of != made_of:
            if name == NATIVE and (reason := native_refusal(model)):
                raise ValueError(f"{type(model).__name__} cannot run as {name!r}: {reason}; leave `forward` out")
            known[name] = (forward_pass(model, choice(model, model.device.type)).kernels if name == AUTO
                           else _kernels(model, name, made_of))
        return ForwardPass(model, known[name])


def _kernels(model, name: str, made_of: tuple) -> Kernels:
    if name == LAYERS:
        return Kernels(LAYERS, None, None, made_of)
    decoder, head = model.model, model.lm_head
    blocks = NativeBlocks(decoder.layers, decoder.rotary_emb, decoder.norm, head, decoder.embed_tokens)
    weight = head.weight if isinstance(head, torch.nn.Linear) else None
    output = products.linear(weight, head.bias, blocks.panels.get(head), blocks.like.dtype)
    return Kernels(NATIVE, blocks, output, made_of)


def native_refusal(model, device: str = "") -> str | None:
    """Why a model does not run as "native" here; None if it does. device: the kind of device on which it will be, for a
    model without storage.
    """
    if type(model).__name__ not in KINDS:
        return f"{type(model).__name__} is none of {', '.join(KINDS)}"
    decoder, head = model.model, model.lm_head
    if isinstance(head, ReducedOutput):
        return "its output layer is reduced; take what `reduced.narrow` gives"
    if isinstance(head, torch.nn.Linear) and (reason := products.weights_refusal([head.weight], device)):
        return reason
    return native.refusal(decoder.layers, decoder.rotary_emb, head, decoder.embed_tokens, device)


def choice(model, device: str) -> str:
    """The name that "auto" takes for a model, which may be without storage, on a device."""
    return LAYERS if native_refusal(model, device.partition(":")[0]) else NATIVE


def copied_bytes(model) -> int:
    """Bytes of weights that a model's fastest forward pass holds a second time."""
    return forward_pass(model).copied_bytes


def release(model) -> None:
    """Frees a model's weights, and the copies of them that were made here; its configuration stays."""
    _KERNELS.pop(model, None)
    model.to("meta")
