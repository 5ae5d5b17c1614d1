"""Self-speculation: the target with weights of fewer bits as its own drafter."""

import copy

from torch import nn


def rounded(target):
    """A copy of a model whose linear layers hold int8 weights; embeddings, norms and output layer are shared with it.

    See `lib.models.quantize`: on a CPU its kernel is fast for bfloat16 alone.
    """
    from lib.models.quantize import quantize_int8  # models know drafters, which must not know models as they load

    linear = {id(layer.weight) for layer in target.modules() if isinstance(layer, nn.Linear)}
    output = target.get_output_embeddings()
    kept = {id(weight): weight for weight in target.parameters() if id(weight) not in linear or weight is output.weight}
    model = copy.deepcopy(target, kept)
    quantize_int8(model)
    return model.eval()
