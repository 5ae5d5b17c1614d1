"""Calibration: a few rounds of the loop itself for a handful of shapes, interleaved, so that costs hold for whatever
the loop does."""

import math
import time
from typing import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib import decoding
from lib.decoding.plain import NoDrafter
from lib.decoding.records import Generation
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.timing import LEAST_REPEATS, interleaved
from lib.trees.shapes import parse

PLAIN = "chain:0"  # nothing drafted
COLD = 3  # rounds behind a prefill, which has put the weights out of the caches: slower than all that follow
SHORT, LONG = 6, 24  # tokens of a call: where calls are dear, and where the cold rounds can be left out
# Chains say what a level costs, w chains side by side what it costs for w nodes; together they span n = 0 .. 64.
SHAPES = (PLAIN, "chain:1", "chain:4", "chain:8", "independent:2x4", "independent:4x4", "independent:8x4",
          "independent:16x4")


def calibrate(
    pair,
    prompts: Sequence[Tensor],
    *,
    batches: Sequence[int] = (1,),
    prefixes: Sequence[int] = (128,),
    shapes: Sequence[str] = SHAPES,
    new_tokens: int | None = None,
    repeats: int = 30,
    seconds: float = 5.0,
    generator: torch.Generator,
    drafter=None,
    generate: Callable[..., Generation] = decoding.generate,
) -> pd.DataFrame:
    """Times rounds of a pair (`models.Pair`) on prompts int64[T]: a row for each batch, prefix and shape, in the
    columns of the table "costs".

    A row of text is cut from the prompts so that `prefix` tokens are committed in the middle of its `new_tokens`: by
    default LONG where so many and a few repeats fit, else SHORT. All calls of a cell (batch, prefix) share `seconds`,
    but each shape has LEAST_REPEATS calls however long they take: costs that lack one would lie. drafter: in the place
    of the pair's own.
    ValueError where plain decoding is not among the shapes, or a prefix is too short.
    """
    if PLAIN not in shapes:
        raise ValueError(f"shapes are {list(shapes)}: add {PLAIN!r}, plain decoding, to which all others compare")
    least = new_tokens or SHORT
    if min(prefixes) <= least // 2:
        raise ValueError(f"prefix {min(prefixes)} is too short for {least} new tokens: give more than {least // 2}")
    drafter = drafter or LanguageModelDrafter(pair.draft_model)

    def ready(batch: int, prefix: int, tokens: int) -> tuple[dict[str, _Calls], float]:
        """A cell's calls, each made once to warm up, and the seconds that this took."""
        texts, start = rows_of_text(prompts, batch, prefix - tokens // 2), time.perf_counter()
        calls = {shape: _Calls(generate, pair.target, NoDrafter() if shape == PLAIN else drafter, texts, shape, tokens)
                 for shape in shapes}
        for call in calls.values():
            call()
        return calls, time.perf_counter() - start

    rows = []
    for batch in batches:
        for prefix in prefixes:
            calls, spent = ready(batch, prefix, least)
            if new_tokens is None and spent * LONG / SHORT * 2 * LEAST_REPEATS <= seconds and prefix > LONG // 2:
                calls, spent = ready(batch, prefix, LONG)
            calls_each = max(LEAST_REPEATS, int(seconds / spent))  # `interleaved` makes one more, before its turns
            interleaved(calls, repeats=min(repeats, calls_each - 1), seconds=math.inf, generator=generator,
                        device=pair.target.device)
            rows += [dict(target=pair.target_name, drafter=pair.drafter_name, batch=batch, prefix=prefix, **call.row())
                     for call in calls.values()]
    return pd.DataFrame(rows)


def rows_of_text(prompts: Sequence[Tensor], rows: int, length: int) -> Tensor:
    """int64[rows, length] cut one after another from the prompts, from the start again where they end."""
    stream = torch.cat(list(prompts))
    return stream.repeat(-(-rows * length // len(stream)))[: rows * length].view(rows, length)


class _Calls:
    """One shape as a call that can be timed; it keeps what the loop says of its rounds, call by call."""

    def __init__(self, generate, target, drafter, texts: Tensor, shape: str, new_tokens: int):
        self.generate, self.target, self.drafter = generate, target, drafter
        self.texts, self.shape, self.new_tokens = texts, shape, new_tokens
        self.found: list[np.ndarray] = []  # float[rounds, 3] a call

    def __call__(self) -> None:
        running: list[int] = []
        done = self.generate(self.target, self.drafter, self.texts, shape=self.shape, max_new_tokens=self.new_tokens,
                             observe=lambda alive, drafts, decided: running.append(len(alive)))
        self.found.append(full_rounds(done, running, len(self.texts)))

    def row(self) -> dict:
        """Medians in milliseconds over all rounds; the first call warms up and does not count."""
        spent = 1000 * np.concatenate(self.found[1:])
        lower, middle, upper = np.quantile(spent.sum(1), [0.25, 0.5, 0.75])
        draft, verify, commit = np.median(spent, axis=0)
        return dict(shape=self.shape, nodes=parse(self.shape).budget, rounds=len(spent), draft_ms=draft,
                    verify_ms=verify, commit_ms=commit, round_ms=middle, lower_ms=lower, upper_ms=upper)


def full_rounds(done: Generation, running: Sequence[int], batch: int) -> np.ndarray:
    """float[rounds, 3]: seconds of draft, verification and commit of the rounds in which all rows ran.

    running: how many rows ran in each round. The first COLD rounds are left out where there are others; else the first,
    which makes buffers, where there is another.
    """
    firsts = np.concatenate([[0], np.cumsum(running)[:-1]]).astype(int)
    whole = [done.rounds[first] for first, rows in zip(firsts, running) if rows == batch]
    warm = whole[COLD:] or whole[1:] or whole
    return np.array([(found.draft_seconds, found.verify_seconds, found.commit_seconds) for found in warm])
