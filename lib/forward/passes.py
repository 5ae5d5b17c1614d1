"""A model's forward pass over few tokens, by name: "layers" or "native" (see `lib.forward`).

"native" serves models of Llama's kind, and of Gemma's 2 and 3; what it does not serve (gradients, float64, GPUs, long
prompts of models whose weights are not packed) runs as "layers". The results agree within rounding.
"""

import math
import threading
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lib.attention.masks import SharedMask, causal
from lib.attention.registration import SLIDING, layer_kinds, takes_chains, tree_forward
from lib.forward.native import Levels, NativeBlocks
from lib.forward.packed import weights_of
from lib.kernels import products
from lib.kernels.build import CannotServe

KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM",
         "Gemma3ForCausalLM")
LAYERS, NATIVE = NAMES = "layers", "native"
AUTO = "auto"  # the faster one that the model and the machine allow
_BLOCKS: WeakKeyDictionary[nn.Module, tuple[tuple, NativeBlocks]] = WeakKeyDictionary()  # with the weights' state
_MAKING = threading.Lock()  # held by the thread that makes blocks


class Output(NamedTuple):
    """The result of a forward pass: logits [B, m or fewer, V], hidden states in transformers' order if asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


class ForwardPass:
    """A model's forward pass over blocks of tree nodes: through `blocks`, or without them through its layers.

    device: where tokens, depths and masks are best. output: the model's output layer for few rows, [..., H] ->
    [..., V], without gradients. Make it anew where weights may have changed.
    """

    def __init__(self, model, blocks: NativeBlocks | None = None):
        self.model, self.device = model, model.device  # which transformers takes its time to find
        self.name, self.blocks = NATIVE if blocks else LAYERS, blocks
        self.output = model.get_output_embeddings()
        if blocks and type(self.output) is nn.Linear:
            self.output = products.linear(self.output.weight, self.output.bias)

    def __call__(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, *,
                 logits_to_keep: int | Tensor = 0, output_hidden_states: bool = False):
        """One forward pass over tokens int64[B, m] that follow each row's committed ones, as by `tree_forward`.

        logits_to_keep, output_hidden_states: as of transformers' models. Returns an `Output`, or transformers' own.
        """
        if self.blocks is None or torch.is_grad_enabled() or not (
                cache.layers or tokens.numel() <= self.blocks.most_rows):
            return tree_forward(self.model, tokens, depth, tree_mask, cache, logits_to_keep=logits_to_keep,
                                output_hidden_states=output_hidden_states)
        mask = SharedMask(causal(tokens.shape[1], cache.pending, self.device) if tree_mask is None else tree_mask)
        logits, states = self.blocks(tokens, depth, cache, mask, logits_to_keep, output_hidden_states)
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        logits = logits if cap is None else cap * (logits / cap).tanh()
        return Output(logits, None if states is None else tuple(states))

    @property
    def reads_blocks(self) -> bool:
        """Whether it is best on a long text block by block: in the kernels, and where layers mask what a token sees."""
        if self.blocks:
            return self.blocks.most_rows == math.inf
        return SLIDING in layer_kinds(self.model.config) and not takes_chains(self.model.config)

    @property
    def fills(self) -> bool:
        """Whether `fill` serves the model."""
        return self.blocks is not None and SLIDING not in layer_kinds(self.model.config)

    def fill(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor, cache, levels: Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """As `NativeBlocks.fill`, with a mask; where `fills`, for a cache that is not empty."""
        return self.blocks.fill(tokens, depth, cache, SharedMask(tree_mask), levels, choices, names)


def forward_pass(model, name: str = AUTO) -> ForwardPass:
    """A model's forward pass by the implementation of this name of `NAMES`; "auto" takes "native" where the machine and
    the model allow it, else "layers". ValueError where the model cannot run so, or for another name.
    """
    if name not in (*NAMES, AUTO):
        raise ValueError(f"forward is {name!r}; choose one of {', '.join(NAMES)}, or {AUTO!r} for the fastest")
    try:
        return ForwardPass(model, None if name == LAYERS else native_blocks(model))
    except CannotServe as reason:
        if name == NATIVE:
            raise ValueError(f"{type(model).__name__} cannot run as {name!r}: {reason}; leave `forward` out") from None
        return ForwardPass(model)


def native_blocks(model) -> NativeBlocks:
    """A model's layers and output layer in C++, made anew when weights change. CannotServe as `NativeBlocks`, and for
    other kinds of models.
    """
    if type(model).__name__ not in KINDS:
        raise CannotServe(f"{type(model).__name__} is none of {', '.join(KINDS)}")
    decoder, made_of = model.model, weights_of(model)
    with _MAKING:
        if model not in _BLOCKS or _BLOCKS[model][0] != made_of:
            _BLOCKS[model] = made_of, NativeBlocks(
                decoder.layers, decoder.rotary_emb, decoder.norm, model.lm_head, decoder.embed_tokens)
        return _BLOCKS[model][1]


def release(model) -> None:
    """Frees a model's weights, and the copies of them that were made here; its configuration stays."""
    _BLOCKS.pop(model, None)
    model.to("meta")
