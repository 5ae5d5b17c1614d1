"""Pairs in every number format: those that models compute in, and weights of fewer bits."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from lib.forward.packed import INT8, KINDS, NONE, STORED, pack, quantize_int8
from lib.forward.passes import KINDS as SERVED
from lib.forward.passes import forward_pass
from lib.forward.prefill import nan_error, prefill
from lib.models import checks, load, registry
from lib.models.checks import AUTO, DTYPES, PairError, first_line, number_format
from lib.models.load import Format, Pair, ServedModel

Formats = tuple[tuple[torch.dtype, str], tuple[torch.dtype, str]]  # of the activations, and the kind of weights


def formats_of(dtype: Format, device: str | torch.device = "cpu") -> Formats:
    """The number format of the activations and the kind of weights (`packed.KINDS`), of target and drafter.

    dtype: a number format, "auto", "int8" (with activations as by "auto") or "stored" (in float32), of both models or
    of each, as "float32|int8". PairError for other words.
    """
    parts, choices = checks.dtype_name(dtype).split("|"), (*DTYPES, AUTO, INT8, STORED)
    if len(parts) > 2 or not {*parts} <= {*choices}:
        raise PairError(f"dtype is {dtype!r}; give one of {', '.join(choices)}, or two as TARGET|DRAFTER")
    activations = {INT8: AUTO, STORED: "float32"}
    return tuple((number_format(activations.get(part, part), device), part if part in KINDS else NONE)
                 for part in (parts[0], parts[-1]))


def load_pair(name: str, dtype: Format = AUTO, device: str = "cpu") -> Pair:
    """As `load_pairs`."""
    return load_pairs([name], dtype, device)[0]


def load_pairs(names: Sequence[str], dtype: Format = AUTO, device: str = "cpu") -> list[Pair]:
    """Pairs as `models.load_pairs` loads them, in any number format; dtype: as for `formats_of`.

    A quantised target's text is lossless against that target. PairError also for "stored" weights of a model that is no
    GGUF file, for random ones in fewer bits, and for models that cannot take a step in their format.
    """
    dtypes, kinds = zip(*formats_of(dtype, device))
    for name in () if isinstance(names, str) else names:
        for source, kind in zip(registry.sources(name), kinds):
            _check_kind(source, kind)
    pairs = load.load_pairs(names, dtypes, device, apart=kinds[0] != kinds[1])
    quantise = cache(_quantise)  # a model that several pairs share is quantised once
    for pair in pairs:
        for model, kind in zip(pair.models, kinds):
            quantise(model, kind)
    for model in dict.fromkeys(model for pair in pairs for model in pair.models):
        _try(model)
    return [replace(pair, made_by=(load_pair, pair.made_by[1], dtype, device)) for pair in pairs]


def load_served(target: str, drafters: Sequence[str], dtype: Format = AUTO, device: str = "cpu") -> ServedModel:
    """A served target, and draft models in any number format; names, and PairError but for the target's architecture
    and weights, as for `load_pairs`.
    """
    (source, *_), *_ = load.check_pairs([f"{target}|{name}" for name in drafters] or [target], is_served=True)
    pairs = load_pairs(drafters, checks.dtype_name(dtype).rpartition("|")[2], device) if drafters else []
    return load.served(source, {name: pair.target for name, pair in zip(drafters, pairs)})


@torch.inference_mode()
def _try(model) -> None:
    """PairError where a model cannot read a text and check a draft token after it, or gives NaN."""
    try:
        run, tokens = forward_pass(model), torch.arange(2)
        checked = run(tokens[None].to(run.device), tokens.to(run.device), None, prefill(run, [tokens]).cache)
        if checked.logits.isnan().any():
            raise nan_error(model, "in its first round")
    except Exception as error:  # whatever an architecture raises in a format that it does not know
        raise PairError(f"{model.name_or_path} cannot be used in {checks.dtype_name(model.dtype)}: "
                        f"{first_line(error)}; take another dtype or model") from error


def _check_kind(source: registry.Source | None, kind: str) -> None:
    """PairError for a model that cannot have weights of this kind."""
    if source and kind == STORED and source.kind != registry.GGUF:
        raise PairError(f"dtype is {kind!r}, but {source} is no GGUF file; take 'auto' or 'int8' for it, as in "
                        "dtype=\"stored|auto\"")


def _quantise(model, kind: str) -> None:
    """Gives a model weights of this kind, after its vocabulary was cut, which only whole weights can be. Plain ones are
    packed for models that run as "native".
    """
    device = model.device
    if kind == INT8:
        quantize_int8(model)
    elif kind == STORED:
        from lib.forward.stored import take_weights  # which loads the package gguf

        take_weights(model, Path(model.gguf_file))
    elif type(model).__name__ in SERVED:
        pack(model)
    model.to(device)
