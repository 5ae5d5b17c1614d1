"""Models that know some of their tokens alone: the rows of the output layer are gathered once, all else is shared."""

import copy

import torch
from torch import Tensor, nn

from lib.forward.packed import PackedLinear, packed


class ReducedOutput(nn.Module):
    """An output layer for some of V tokens; the logits of all others are minus infinity.

    rows: the layer [..., H] -> [..., K]. tokens: int64[K], ascending, so that of equal logits the lower token still
    comes first. out_features: V.
    """

    def __init__(self, rows: nn.Module, tokens: Tensor, out_features: int):
        super().__init__()
        self.in_features, self.out_features, self.rows = rows.in_features, out_features, rows
        self.register_buffer("tokens", tokens)

    def forward(self, x: Tensor) -> Tensor:
        return self.spread(self.rows(x), float("-inf"))

    def spread(self, values: Tensor, elsewhere: float = 0.0) -> Tensor:
        """Values [..., K] of the tokens as [..., V], with `elsewhere` for all others."""
        whole = values.new_full((*values.shape[:-1], self.out_features), elsewhere)
        return whole.index_copy_(-1, self.tokens, values)


def reduced(model, tokens: Tensor):
    """A causal language model that knows these tokens int64[K] alone, in any order, and shares all else with `model`.

    Later changes of the model's output layer do not reach it. ValueError for tokens that the model does not have, or
    that occur twice, and for a model whose output layer is not a linear layer of its own.
    """
    output, distinct = _linear(model), tokens.long().unique().to(model.device)
    inside = 0 < len(distinct) and 0 <= distinct[0] and distinct[-1] < output.out_features
    if tokens.dim() != 1 or len(distinct) != len(tokens) or not inside:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)} with {len(distinct)} distinct ones; give one or more "
                         f"of 0 to {output.out_features - 1}, each once")
    whole = ReducedOutput(packed(rows_of(output, distinct)), distinct, output.out_features)
    vars(whole)["narrow"] = _with_output(model, whole.rows)  # no submodule, since it contains the rows
    return _with_output(model, whole)


def first_tokens(model, count: int):
    """A causal language model of the first `count` tokens, without the padding of its vocabulary, with shared weights;
    the model itself where it has no more.
    """
    if model.get_output_embeddings().out_features <= count:
        return model
    output = _linear(model)
    rows = rows_of(output, slice(count))
    return _with_output(model, packed(rows) if isinstance(output, PackedLinear) else rows)


def narrow(model) -> tuple[object, ReducedOutput | None]:
    """A reduced model with logits [..., K] of its tokens alone, always the same object, and its output layer; another
    model itself, and None.
    """
    output = model.get_output_embeddings()
    return (output.narrow, output) if isinstance(output, ReducedOutput) else (model, None)


def rows_of(output: nn.Linear | PackedLinear, tokens: Tensor | slice) -> nn.Linear:
    """A linear layer of these rows, in the activations' number format: a copy; for a slice of a linear layer a view."""
    if isinstance(output, PackedLinear):
        outputs = torch.arange(output.out_features, device=output.numbers.device)[tokens]
        weight = output.panels.rows(outputs).to(output.dtype)
    else:
        weight = output.weight.detach()[tokens]
    rows = nn.Linear(output.in_features, len(weight), bias=output.bias is not None, device="meta")
    rows.weight = nn.Parameter(weight, requires_grad=False)
    if output.bias is not None:
        rows.bias = nn.Parameter(output.bias.detach()[tokens], requires_grad=False)
    return rows


def _linear(model) -> nn.Linear | PackedLinear:
    """A model's output layer. ValueError where it is no linear layer of the model itself."""
    output = model.get_output_embeddings()
    if type(output) not in (nn.Linear, PackedLinear) or output not in model.children():
        raise ValueError(f"the output layer of {type(model).__name__} is a {type(output).__name__}; only a linear "
                         "layer of the model itself can be reduced: leave `vocabulary` out")
    return output


def _with_output(model, layer: nn.Module):
    """The model with another output layer; both share all other modules."""
    output, shared = model.get_output_embeddings(), copy.copy(model)
    shared._modules = {name: layer if part is output else part for name, part in model._modules.items()}
    vars(shared).pop("forward", None)  # a hook's, which is bound to the model itself
    return shared
