"""Self-speculation: a target's first layers, or the target with int8 weights, as its own drafter."""

import copy

import torch
from torch import Tensor, nn

from lib.attention.registration import hosting_trees, takes_chains
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.vocabulary import drafting
from lib.forward.quantize import int8

SHARED = ("embed_tokens", "norm", "rotary_emb")
EXITS = 5  # early exit takes one layer in so many


class EarlyExitDrafter(LanguageModelDrafter):
    """A language-model drafter of the target's first layers: no weights of its own, a cache of its own.

    As LayerSkip (Elhoushi et al. 2024, section 4.3), but for targets that were not trained for it, and without sharing
    the cache, so that it can be compared with drafters of other models.
    """

    @classmethod
    def of(cls, pair, *, layers: int | None = None,
           vocabulary: int | Tensor | None = None) -> "EarlyExitDrafter":
        """The first layers of the pair's target, one in EXITS if no number is given."""
        if layers is None and not cls.refusal(pair.target):
            layers = max(1, len(pair.target.model.layers) // EXITS)
        return cls(drafting(first_layers(pair.target, layers), pair, vocabulary))

    @classmethod
    def refusal(cls, target) -> str:
        """Why a target's first layers cannot draft alone; empty where they can."""
        if takes_chains(target.config):
            return f"{type(target).__name__} has layers whose states a copy would share"
        decoder = getattr(target, "model", None)
        missing = [f"model.{name}" for name in ("layers", *SHARED) if not hasattr(decoder, name)]
        missing += ["lm_head"] if not hasattr(target, "lm_head") else []
        if missing:
            return (f"{type(target).__name__} has no {' or '.join(missing)}: early exit needs a decoder built as "
                    "Llama's is")
        return f"{type(target).__name__} has one layer alone" if len(decoder.layers) < 2 else ""


def first_layers(target, layers: int):
    """A causal language model of the target's first layers, its embedding, final norm and head: views, no copies.

    For a model whose decoder is `model.model.layers` (as in Llama and Qwen3). ValueError for others, and for a number
    of layers that is not from 1 to one less than the model has.
    """
    if refused := EarlyExitDrafter.refusal(target):
        raise ValueError(f"{refused}; take a drafter model, or look-up")
    decoder = target.model
    if not 1 <= layers < len(decoder.layers):
        raise ValueError(f"layers is {layers}; give 1 to {len(decoder.layers) - 1} of the {len(decoder.layers)} layers "
                         f"that {type(target).__name__} has")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):  # a frame without storage, into which the target's own modules go
        model = type(target)._from_config(config, attn_implementation=config._attn_implementation)
    model.model.layers = nn.ModuleList(list(decoder.layers)[:layers])
    for name in SHARED:
        setattr(model.model, name, getattr(decoder, name))
    model.lm_head = target.lm_head
    if unfilled := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise ValueError(f"{type(target).__name__} holds weights outside its layers ({', '.join(unfilled[:3])}), which "
                         "early exit cannot take over; take a drafter model, or look-up")
    return hosting_trees(model.eval())  # its layers are the target's, whose attention they take over


class Int8SelfDrafter(LanguageModelDrafter):
    """A language-model drafter of the target itself, with its linear layers rounded to int8."""

    @classmethod
    def of(cls, pair, *, vocabulary: int | Tensor | None = None) -> "Int8SelfDrafter":
        """The pair's target in int8; vocabulary: as for `LanguageModelDrafter.of`."""
        return cls(drafting(int8_self(pair.target), pair, vocabulary))

    @classmethod
    def refusal(cls, target) -> str:
        """Why a target cannot be rounded to int8; empty where it can."""
        return "" if _rounded(target) else f"{type(target).__name__} has no linear layers but its output layer"


def int8_self(target):
    """A copy of a model whose linear layers hold int8 weights; embeddings, norms and output layer are shared with it.

    See `lib.forward.quantize`. ValueError where no layer is linear.
    """
    if refused := Int8SelfDrafter.refusal(target):
        raise ValueError(f"{refused}, so there is nothing to round; take a drafter model, or look-up")
    layers = _rounded(target)
    copies = {id(layer): int8(layer) for layer in layers}  # what the copy has in the place of parts of the target
    rounded = {id(weight) for layer in layers for weight in (layer.weight, layer.bias)}
    copies |= {id(weight): weight for weight in target.parameters() if id(weight) not in rounded}
    return hosting_trees(copy.deepcopy(target, copies).eval())


def _rounded(target) -> list[nn.Linear]:
    """The layers whose weights are rounded."""
    output = target.get_output_embeddings()
    return [layer for layer in target.modules() if isinstance(layer, nn.Linear) and layer is not output]
