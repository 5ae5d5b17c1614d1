"""Self-speculation: the target with int8 weights as its own drafter."""

import copy

from torch import Tensor, nn

from lib.attention.registration import hosting_trees
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.vocabulary import drafting
from lib.models.quantize import Int8Linear


def refusal(target) -> str:
    """Why a target cannot be rounded to int8; empty where it can."""
    return "" if _layers(target) else f"{type(target).__name__} has no linear layers but its output layer"


def int8_self(target):
    """A copy of a model whose linear layers hold int8 weights; embeddings, norms and output layer are shared with it.

    See `lib.models.quantize`. ValueError where no layer is linear.
    """
    if refusal(target):
        raise ValueError(f"{refusal(target)}, so there is nothing to round; take a drafter model, or look-up")
    layers = _layers(target)
    kept = {id(layer): Int8Linear(layer) for layer in layers}
    own = {id(weight) for layer in layers for weight in (layer.weight, layer.bias)}
    kept |= {id(weight): weight for weight in target.parameters() if id(weight) not in own}
    return hosting_trees(copy.deepcopy(target, kept).eval())


def _layers(target) -> list[nn.Linear]:
    output = target.get_output_embeddings()
    return [layer for layer in target.modules() if isinstance(layer, nn.Linear) and layer is not output]


class Int8SelfDrafter(LanguageModelDrafter):
    """A language-model drafter of the target itself, with its linear layers rounded to int8."""

    option = ""
    refusal = staticmethod(refusal)

    @classmethod
    def of(cls, pair, *, vocabulary: int | Tensor | None = None, keep_probs: bool = False) -> "Int8SelfDrafter":
        return cls(drafting(int8_self(pair.target), pair, vocabulary), keep_probs=keep_probs)
