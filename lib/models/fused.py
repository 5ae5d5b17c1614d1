"""Faster stand-ins for Llama-like models over few tokens, which is where a round of a small pair spends its time.

`fused` gives a stand-in whose small blocks run in one call of C++ (`native_blocks`), over joined and packed copies of
the weights with PyTorch's operators (`joined_blocks`), or as compiled graphs (`compiled`). All else (long prompts,
gradients, float64) is the model's own. The results agree within rounding.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lib.attention.backends.mask import SharedMask, causal
from lib.kernels import products
from lib.models.reduced import ReducedOutput

KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is for oracles: transformers' own code
ROTATIONS = ("default", "linear", "llama3", "yarn")  # their angles do not depend on the text's length
NATIVE, JOINED, COMPILED = "native", "joined", "compiled"


@dataclass(frozen=True)
class Kernels:
    """A model's blocks (NativeBlocks, JoinedBlocks or None), its output layer, and the state of their weights."""

    blocks: object | None
    output: object
    made_of: tuple


@dataclass(frozen=True)
class BlockOutput:
    """The result of a block: logits [B, m or fewer, V]; hidden states in transformers' order, where asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


_MADE: WeakKeyDictionary[torch.nn.Module, dict[str | None, Kernels]] = WeakKeyDictionary()


def fused(model, how: str | None = None, **options):
    """A stand-in for the model with faster small blocks, kept as long as the weights are the same.

    how: "native", "joined" or "compiled"; None takes native blocks where the machine and the model allow it, else
        joined ones where a second copy of the weights fits into the memory, else the model itself.
    options: of `CompiledBlocks`.
    ValueError where the model cannot run in the given way, or `how` is another word.
    """
    if how == COMPILED:
        from lib.models.compiled import CompiledBlocks

        return CompiledBlocks(model, **options)
    if how not in (None, NATIVE, JOINED):
        raise ValueError(f"how is {how!r}; choose one of {NATIVE!r}, {JOINED!r}, {COMPILED!r}, or None for the fastest")
    reason = refusal(model) or (native_refusal(model) if how == NATIVE else None)
    if reason and how is not None:
        raise ValueError(f"{type(model).__name__} cannot run as {how!r}: {reason}; leave `how` out")
    blocks = None if reason else _kernels_of(model, how).blocks
    return model if blocks is None else FusedBlocks(model, blocks)


def release(model) -> None:
    """Frees a model's weights, and the copies of them that were made here; its configuration stays."""
    _MADE.pop(model, None)
    model.to("meta")


def output_layer(model):
    """The model's output layer for few rows, [..., H] -> [..., V], without gradients where the model can be fused."""
    return model.get_output_embeddings() if refusal(model) else _kernels_of(model).output


def copied_bytes(model) -> int:
    """Bytes of weights that a fused model holds a second time."""
    blocks = None if refusal(model) else _kernels_of(model).blocks
    return 0 if blocks is None else blocks.copied_bytes


def refusal(model) -> str | None:
    """Why a model's blocks cannot be fused; None if they can."""
    if type(model).__name__ not in KINDS:
        return f"{type(model).__name__} is none of {', '.join(KINDS)}"
    if model.dtype not in DTYPES:
        return f"its weights are {model.dtype}"
    if isinstance(model.lm_head, ReducedOutput):
        return "its output layer is reduced; take what `reduced.narrow` gives"
    if model.config.hidden_act != "silu":
        return f"its activation is {model.config.hidden_act}, not silu"
    return rotation_refusal(model.model.rotary_emb)


def rotation_refusal(rotary: torch.nn.Module) -> str | None:
    """Why the angles of a rotary embedding cannot be tabulated by position; None if they can."""
    rotation = getattr(rotary, "rope_type", "default")
    return None if rotation in ROTATIONS else f"its rotation {rotation!r} depends on the text's length"


def native_refusal(model) -> str | None:
    """Why the blocks of a model that can be fused do not run in C++ here; None if they do."""
    decoder, head = model.model, model.lm_head
    if isinstance(head, torch.nn.Linear) and (reason := products.weights_refusal([head.weight])):
        return reason
    from lib.models import native_blocks

    return native_blocks.refusal(decoder.layers, decoder.rotary_emb, head, decoder.embed_tokens)


class FusedBlocks:
    """A model whose small blocks run fused; all other attributes (`config`, `generate`, ...) are the model's."""

    def __init__(self, model, blocks):
        self.model, self.blocks, self.device = model, blocks, model.device

    def __getattr__(self, name: str):
        return getattr(self.__dict__["model"], name)

    def __call__(self, *args, **kwargs):
        """As the model's."""
        return self.model(*args, **kwargs)

    def tree_block(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, *, logits_to_keep=0,
                   output_hidden_states: bool = False, **kwargs) -> BlockOutput | None:
        """As `tree_forward`; None for what is left to the model: long prompts, gradients, other keywords."""
        if kwargs or torch.is_grad_enabled() or not (cache.layers or tokens.numel() <= self.blocks.most_rows):
            return None
        mask = SharedMask(causal(tokens.shape[1], cache.pending, self.device) if tree_mask is None else tree_mask)
        logits, states = self.blocks(tokens, depth, cache, mask, logits_to_keep, output_hidden_states)
        return BlockOutput(logits, None if states is None else tuple(states))

    @property
    def fills(self) -> bool:
        """Whether one call can fill a static tree."""
        return self.blocks.fills

    def fill(self, tokens: Tensor, depth: Tensor, tree_mask: Tensor, cache, levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """A static tree's tokens int64[B, size] after the last of tokens int64[B, m], chosen as by `NativeBlocks.fill`.

        For a model that `fills`, and a cache that is not empty.
        """
        return self.blocks.fill(tokens, depth, cache, SharedMask(tree_mask), levels, choices, names)


def _kernels_of(model, how: str | None = None) -> Kernels:
    """The model's kernels, made again when its weights change."""
    made = _MADE.setdefault(model, {})
    if how not in made or made[how].made_of != weights_of(model):
        made[how] = _kernels(model, how)
    return made[how]


def _kernels(model, how: str | None) -> Kernels:
    """Without blocks where the weights would have to be held twice and are too large for that."""
    decoder, head = model.model, model.lm_head
    if how == NATIVE or how is None and native_refusal(model) is None:
        from lib.models.native_blocks import NativeBlocks

        blocks = NativeBlocks(decoder.layers, decoder.rotary_emb, decoder.norm, head, decoder.embed_tokens)
        weight = head.weight if isinstance(head, torch.nn.Linear) else None
        output = products.linear(weight, head.bias, blocks.panels.get(head), blocks.like.dtype)
        return Kernels(blocks, output, weights_of(model))
    if how is None and products.fills_the_memory(model.parameters()):
        return Kernels(None, head, weights_of(model))
    from lib.models.joined_blocks import JoinedBlocks
    from lib.models.packed import joined

    output = joined([head])
    return Kernels(JoinedBlocks(model, output), output, weights_of(model))


def weights_of(model) -> tuple:
    """The state of all weights: where each lies, its dtype, and how often it was written to."""
    return tuple((weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
                 for weight in (*model.parameters(), *model.buffers()))
