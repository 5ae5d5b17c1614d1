"""Calibration: a few rounds of the decoding loop itself for a handful of shapes, in interleaved turns, so that costs
include everything that the loop does.
"""

import math
import time
from typing import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.cost.fit import PLAIN
from lib.decoding import loop
from lib.decoding.records import Generation, Hooks, Round
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.timing import LEAST_REPEATS, interleaved
from lib.trees.shapes import parse

COLD = 3  # rounds after a prefill, which has evicted the weights from the caches: slower than all that follow
SHORT, LONG = 6, 24  # tokens of a call: where calls are slow, and where the cold rounds can be left out
# Chains give the cost of a level, w chains side by side that of a level of w nodes; together they span n = 0 .. 64.
SHAPES = (PLAIN, "chain:1", "chain:4", "chain:8", "independent:2x4", "independent:4x4", "independent:8x4",
          "independent:16x4")


def calibrate(pair, prompts: Sequence[Tensor], *, batches: Sequence[int] = (1,), prefixes: Sequence[int] = (128,),
              shapes: Sequence[str] = SHAPES, new_tokens: int | None = None, repeats: int = 30, seconds: float = 5.0,
              generator: torch.Generator, drafter=None,
              generate: Callable[..., Generation] = loop.generate) -> pd.DataFrame:
    """Times rounds of a pair (`models.Pair`) on prompts int64[T]: a row for each batch, prefix and shape, in the
    columns of the table "costs".

    A row of text is cut from the prompts so that `prefix` tokens are committed in the middle of its `new_tokens`: by
    default LONG where LONG tokens and a few repeats fit into the time, else SHORT. All calls of a cell (batch, prefix)
    share `seconds`, but each shape has at least LEAST_REPEATS calls, whatever they take: costs without a shape would be
    wrong. drafter: used in place of the pair's own.
    ValueError where plain decoding is not among the shapes, or a prefix is too short.
    """
    if PLAIN not in shapes:
        raise ValueError(f"shapes are {list(shapes)}: add {PLAIN!r}, plain decoding, to which all others compare")
    least = new_tokens or SHORT
    if min(prefixes) <= least // 2:
        raise ValueError(f"prefix {min(prefixes)} is too short for {least} new tokens: give more than {least // 2}")
    drafter = drafter or LanguageModelDrafter(pair.draft_model)

    def ready(batch: int, prefix: int, tokens: int) -> tuple[dict[str, _Calls], float]:
        """A cell's calls, each made once to warm up, and the seconds of these first calls."""
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
    """Calls of the loop with one shape, which can be timed; keeps the seconds of their rounds, call by call."""

    def __init__(self, generate, target, drafter, texts: Tensor, shape: str, new_tokens: int):
        self.generate, self.target, self.drafter = generate, target, drafter
        self.texts, self.shape, self.new_tokens = texts, shape, new_tokens
        self.hooks = Hooks(stop=lambda row, written: len(written) == new_tokens)
        self.seconds: list[np.ndarray] = []  # float[rounds, 3] per call

    def __call__(self) -> None:
        # Ended by a hook, since a shape that is deeper than the limit of new tokens would not be drafted whole.
        done = self.generate(self.target, self.drafter, self.texts, shape=self.shape, hooks=self.hooks,
                             max_new_tokens=self.new_tokens + parse(self.shape).max_depth)
        self.seconds.append(warm_seconds(done.rounds, len(self.texts)))

    def row(self) -> dict:
        """Medians in milliseconds over all rounds; the first call warms up and does not count."""
        spent = 1000 * np.concatenate(self.seconds[1:])
        lower, middle, upper = np.quantile(spent.sum(1), [0.25, 0.5, 0.75])
        draft, verify, commit = np.median(spent, axis=0)
        return dict(shape=self.shape, nodes=parse(self.shape).budget, rounds=len(spent), draft_ms=draft,
                    verify_ms=verify, commit_ms=commit, round_ms=middle, lower_ms=lower, upper_ms=upper)


def warm_seconds(rounds: Sequence[Round], batch: int) -> np.ndarray:
    """float[R, 3]: seconds of draft, verification and commit of the rounds in which all rows ran.

    The first COLD rounds are left out where there are others; else the first, which allocates buffers, where there is
    another.
    """
    full = [rows[0] for rows in full_rounds(rounds, batch)]
    warm = full[COLD:] or full[1:] or full
    return np.array([(record.draft_seconds, record.verify_seconds, record.commit_seconds) for record in warm])


def full_rounds(rounds: Sequence[Round], batch: int) -> list[Sequence[Round]]:
    """The records, one per row, of each round of a `Generation` in which every row of the batch ran."""
    parts = (rounds[first : first + batch] for first in range(0, len(rounds), batch))
    return [rows for rows in parts if [record.row for record in rows] == list(range(batch))]
