"""Llama-like models with fewer and better kernels for small blocks: what a round of a small pair spends its time on.

`fused` gives a stand-in for a model: small blocks run in one call of C++ (`lib.kernels`) where the machine has what
that needs, over copies of the model's weights in pairs if they are bfloat16 numbers, else the weights; else, behind a
prefix, over joined and packed copies of them (`lib.models.joined_blocks`); all else (long prompts, gradients, float64) is the
model's own. It says the same within rounding.
"""

from dataclasses import dataclass
from typing import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lib.attention.backends.mask import SharedMask
from lib.attention.operator import causal
from lib.kernels import products
from lib.models import joined_blocks
from lib.models import native_blocks as native
from lib.models.joined_blocks import JoinedBlocks
from lib.models.native_blocks import Levels, NativeBlocks
from lib.models.packed import Linear, joined

KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is for oracles: transformers' own code


@dataclass(frozen=True)
class Kernels:
    """What a model's blocks run on, None where they run as they are; its output layer; of which weights it was made."""

    blocks: NativeBlocks | JoinedBlocks | None
    output: Linear
    made_of: tuple


@dataclass(frozen=True)
class BlockOutput:
    """What a block gives: logits [B, m or fewer, V]; hidden states as transformers orders them, where asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


_KNOWN: WeakKeyDictionary[torch.nn.Module, Kernels] = WeakKeyDictionary()


def fused(model):
    """A stand-in for the model, which is kept as long as its weights are the same; itself where there is none."""
    blocks = None if refusal(model) else _kernels_of(model).blocks
    return model if blocks is None else FusedBlocks(model, blocks)


def output_layer(model) -> Linear:
    """The model's output layer for few rows, [..., H] -> [..., V], without gradients where the model can be fused."""
    return model.get_output_embeddings() if refusal(model) else _kernels_of(model).output


def pairs_of(model) -> Mapping[torch.nn.Linear, Tensor | None]:
    """Linear layers of a model that runs natively, with the paired copies that it has; none of others."""
    blocks = None if refusal(model) else _kernels_of(model).blocks
    return blocks.pairs if isinstance(blocks, NativeBlocks) else {}


def copied_bytes(model) -> int:
    """Bytes of weights that a fused model holds a second time."""
    if refusal(model) or (blocks := _kernels_of(model).blocks) is None:
        return 0
    if isinstance(blocks, NativeBlocks):
        return blocks.copied_bytes
    return joined_blocks.copied_bytes(model)


def runs_natively(model) -> bool:
    """Whether the blocks of a model that can be fused run in C++ here."""
    decoder = model.model
    return native.refusal(decoder.layers, decoder.rotary_emb, model.lm_head, decoder.embed_tokens) is None


def refusal(model) -> str | None:
    """Why a model runs as transformers wrote it; None where its blocks can be fused."""
    if type(model).__name__ not in KINDS:
        return f"{type(model).__name__} is none of {', '.join(KINDS)}"
    config = model.config
    if model.dtype not in DTYPES:
        return f"its weights are {model.dtype}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    return native.rotation_refusal(model.model.rotary_emb)


class FusedBlocks:
    """A model whose small blocks run fused; otherwise it is the model (`config`, `generate`, ...)."""

    def __init__(self, model, blocks: NativeBlocks | JoinedBlocks):
        self.model, self.blocks, self.device = model, blocks, model.device

    def __getattr__(self, name: str):
        return getattr(self.__dict__["model"], name)

    def __call__(self, *args, **kwargs):
        """As the model's."""
        return self.model(*args, **kwargs)

    def tree_block(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, *, logits_to_keep=0,
                   output_hidden_states: bool = False, **kwargs) -> BlockOutput | None:
        """As `attention.tree_forward`; None for what is left to the model: long prompts, gradients, other keywords.
        """
        if kwargs or torch.is_grad_enabled() or not (cache.layers or self._takes_prompts(tokens)):
            return None
        mask = SharedMask(causal(tokens.shape[1], cache.pending, self.device) if tree_mask is None else tree_mask)
        logits, states = self.blocks(tokens, depth, cache, mask, logits_to_keep, output_hidden_states)
        return BlockOutput(logits, None if states is None else tuple(states))

    @property
    def fills(self) -> bool:
        """Whether one call can fill a static tree."""
        return isinstance(self.blocks, NativeBlocks)

    def fill(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor, cache, levels: Levels,
             choices: int) -> Tensor:
        """A static tree's tokens int64[B, size] behind the last of tokens int64[B, m], as `NativeBlocks.fill` chooses
        them; for a model that `fills`, and a cache that was begun.
        """
        return self.blocks.fill(tokens, depth, cache, SharedMask(tree_mask), levels, choices)

    def _takes_prompts(self, tokens: Tensor) -> bool:
        """Whether prompts int64[B, T] are few enough rows."""
        return self.fills and tokens.numel() <= self.blocks.most_rows


def _kernels_of(model) -> Kernels:
    """The model's kernels, as long as its weights are the same."""
    known = _KNOWN.get(model)
    if known is None or known.made_of != weights_of(model):
        known = _KNOWN[model] = _kernels(model)
    return known


def _kernels(model) -> Kernels:
    """Without blocks where the weights would have to be held twice and are too large for that."""
    decoder, head = model.model, model.lm_head
    if runs_natively(model):
        blocks = NativeBlocks(decoder.layers, decoder.rotary_emb, decoder.norm, head, decoder.embed_tokens)
        return Kernels(blocks, products.linear(head.weight, head.bias, blocks.pairs[head]), weights_of(model))
    if products.fills_the_memory(model.parameters()):
        return Kernels(None, head, weights_of(model))
    output = joined([head])
    return Kernels(JoinedBlocks(model, output), output, weights_of(model))


def weights_of(model) -> tuple:
    """What kernels are made of: where every weight lies, its dtype, and how often it was written to."""
    return tuple((weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
                 for weight in (*model.parameters(), *model.buffers()))
