"""Quantised against not, for target, drafter and both: memory, tokens a round, speed, and how far the text agrees."""

import time
from typing import Sequence

import pandas as pd
import torch

from lib.decoding import NoDrafter, generate, in_batches
from lib.models import Pair, load_pair
from lib.shapes import parse
from lib.studies import footprint
from lib.tree import Tree

WAYS = ("none", "none|int8", "int8|none", "int8")  # target|drafter


def compare(
    name: str,
    asked,
    shape: str | Tree,
    *,
    new_tokens: int,
    dtype: str,
    device: str,
    ways: Sequence[str] = WAYS,
    generator: torch.Generator,
) -> list[dict[str, object]]:
    """Rows of the table "quantised": each way with and without speculation on each asked prompt, in shuffled turns.

    The first of `ways` is the yardstick of `agreeing`. asked: `recording.Prompts`. Each way's lossless text is that of
    its own target.
    """
    pairs = {way: load_pair(name, dtype=dtype, device=device, quantize=way) for way in ways}
    settings = [(way, speculates) for way in ways for speculates in (False, True)]
    for way, speculates in settings:  # warm
        _decode(pairs[way], asked.ids[0], shape, speculates, new_tokens)
    rows = []
    for prompt, kind, ids in zip(asked.names, asked.kinds, asked.ids):
        told: dict[tuple[str, bool], dict[str, object]] = {}
        for at in torch.randperm(len(settings), generator=generator).tolist():
            told[settings[at]] = _decode(pairs[settings[at][0]], ids, shape, settings[at][1], new_tokens)
        texts = {setting: told[setting].pop("text") for setting in settings}
        for way, speculates in settings:
            agreeing = _shared(texts[way, speculates], texts[ways[0], speculates])
            setting = dict(pair=name, dtype=dtype, quantised=way, speculates=speculates, prompt=prompt, kind=kind)
            rows.append(setting | told[way, speculates] | {"agreeing": agreeing} | _weights(pairs[way]))
    return rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """By what is quantised and whether it speculates: tokens a second, tokens a round, the share of text that agrees
    with the first way's, and the weights of both models in MiB. rows: the table "quantised".
    """
    ways = rows.groupby(["quantised", "speculates"], sort=False)
    sums = ways[["tokens", "seconds", "rounds", "accepted", "agreeing"]].sum()
    return pd.DataFrame({
        "tokens a second": sums["tokens"] / sums["seconds"],
        "tokens a round": 1 + sums["accepted"] / sums["rounds"].clip(lower=1),
        "text shared with the first row": sums["agreeing"] / sums["tokens"],
        "weights (MiB)": ways[["target_weights", "drafter_weights"]].first().sum(axis=1) / 2**20,
    })


def _decode(pair: Pair, ids: torch.Tensor, shape: str | Tree, speculates: bool, new_tokens: int) -> dict[str, object]:
    tokens, mask = next(in_batches([ids], 1))
    tree = parse(shape) if speculates else Tree([-1])
    drafter = pair.drafter if speculates else NoDrafter()
    start = time.perf_counter()
    done = generate(
        pair.target,
        drafter,
        tokens,
        attention_mask=mask,
        shape=tree,
        max_new_tokens=new_tokens,
        eos_token_id=pair.eos_token_ids,
    )
    whole = [found for found in done.rounds if not found.cut]
    return {
        "text": done.new_tokens[0],
        "tokens": len(done.new_tokens[0]),
        "seconds": time.perf_counter() - start,
        "rounds": len(whole),
        "accepted": sum(found.accepted for found in whole),
    }


def _shared(own: list[int], base: list[int]) -> int:
    """Tokens up to the first that differs."""
    return next((i for i, (ours, theirs) in enumerate(zip(own, base)) if ours != theirs), min(len(own), len(base)))


def _weights(pair: Pair) -> dict[str, int]:
    return {
        "target_weights": footprint.weights(pair.target),
        "drafter_weights": footprint.weights(pair.drafter.model),
    }
