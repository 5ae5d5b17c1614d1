"""Self-speculation: the target with weights of fewer bits as its own drafter."""

import copy

from torch import nn

from lib.attention.switch import hosting_trees
from lib.models.int8_linear import Int8Linear


def refusal(target) -> str:
    """Why a target cannot be rounded; empty where it can."""
    return "" if _layers(target) else f"{type(target).__name__} has no linear layers but its output layer"


def rounded(target):
    """A copy of a model whose linear layers hold int8 weights; embeddings, norms and output layer are shared with it.

    See `lib.models.int8_linear`. ValueError where no layer is linear.
    """
    if refusal(target):
        raise ValueError(f"{refusal(target)}, so that nothing can be rounded; take a drafter model, or look-up")
    layers = _layers(target)
    kept = {id(layer): Int8Linear(layer) for layer in layers}
    own = {id(weight) for layer in layers for weight in (layer.weight, layer.bias)}
    kept |= {id(weight): weight for weight in target.parameters() if id(weight) not in own}
    return hosting_trees(copy.deepcopy(target, kept).eval())


def _layers(target) -> list[nn.Linear]:
    output = target.get_output_embeddings()
    return [layer for layer in target.modules() if isinstance(layer, nn.Linear) and layer is not output]
