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

from lib.cost.round_cost import PLAIN
from lib.decoding import loop
from lib.decoding.records import Generation, Hooks, Round
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.timing import LEAST_REPEATS, interleaved
from lib.models.checks import format_name
from lib.trees.shapes import parse

COLD = 3  # rounds after a prefill, which has evicted the weights from the caches: slower than all that follow
SHORT, LONG = 6, 24  # rounds of a call, the cold ones included: where calls are slow, and elsewhere
# Chains give the cost of a level, w chains side by side that of a level of w nodes; together they span n = 0 .. 64.
SHAPES = (PLAIN, "chain:1", "chain:4", "chain:8", "independent:2x4", "independent:4x4", "independent:8x4",
          "independent:16x4")
LEVELS = (PLAIN, "chain:1", "chain:4", "independent:4x4")  # fewer, where the cost of a level is asked for alone


def calibrate(pair, prompts: Sequence[Tensor], *, batches: Sequence[int] = (1,), prefix: int = 128,
              shapes: Sequence[str] = SHAPES, rounds: int | None = None, repeats: int = 30, seconds: float = 5.0,
              generator: torch.Generator, drafter=None,
              generate: Callable[..., Generation] = loop.generate) -> pd.DataFrame:
    """Times rounds of a pair (`models.Pair`) on prompts int64[T]: a row for each batch and shape, in the columns of the
    table "costs".

    Calls of all shapes have the same number of rounds, so that as many of them are cold: by default LONG where LONG
    rounds and a few repeats fit into the time, else SHORT. A row of text is cut from the prompts so that in the middle
    of a plain call `prefix` tokens are committed. All calls of a batch share `seconds`, but each shape has at least
    LEAST_REPEATS calls, whatever they take: costs without a shape would be wrong. drafter: used in place of the pair's
    own.
    ValueError where plain decoding is not among the shapes, or the prefix is too short.
    """
    if PLAIN not in shapes:
        raise ValueError(f"shapes are {list(shapes)}: add {PLAIN!r}, plain decoding, to which all others compare")
    least = rounds or SHORT
    if prefix <= least // 2:
        raise ValueError(f"prefix {prefix} is too short for {least} rounds: give more than {least // 2}")
    drafter = drafter or LanguageModelDrafter(pair.draft_model)

    def ready(batch: int, length: int) -> tuple[dict[str, _Calls], float]:
        """A batch's calls, each made once to warm up, and the seconds of these first calls."""
        texts, start = rows_of_text(prompts, batch, prefix - length // 2), time.perf_counter()
        calls = {shape: _Calls(generate, pair.target, NoDrafter() if shape == PLAIN else drafter, texts, shape, length)
                 for shape in shapes}
        for call in calls.values():
            call()
        return calls, time.perf_counter() - start

    rows = []
    for batch in batches:
        calls, spent = ready(batch, least)
        if rounds is None and spent * LONG / SHORT * 2 * LEAST_REPEATS <= seconds and prefix > LONG // 2:
            calls, spent = ready(batch, LONG)
        calls_each = max(LEAST_REPEATS, int(seconds / spent))  # `interleaved` makes one more, before its turns
        interleaved(calls, repeats=min(repeats, calls_each - 1), seconds=math.inf, generator=generator,
                    device=pair.target.device)
        rows += [dict(target=pair.target_name, drafter=pair.drafter_name, dtype=dtype_of(pair), batch=batch,
                      prefix=prefix, **call.row()) for call in calls.values()]
    return pd.DataFrame(rows)


def usual_prefix(prompts: Sequence[Tensor], new_tokens: int) -> int:
    """The committed tokens in the middle of continuations of prompts int64[T], on average: the time of a round rises
    evenly with them.
    """
    return int(np.mean([len(prompt) for prompt in prompts])) + new_tokens // 2


def dtype_of(pair) -> str:
    """The number format of a pair, as "float32", or of target and drafter, as "float32|bfloat16"."""
    models = [model for model in (pair.target, pair.draft_model) if model is not None]
    return "|".join(dict.fromkeys(format_name(model) for model in models))


def rows_of_text(prompts: Sequence[Tensor], rows: int, length: int) -> Tensor:
    """int64[rows, length] cut one after another from the prompts, from the start again where they end."""
    stream = torch.cat(list(prompts))
    return stream.repeat(-(-rows * length // len(stream)))[: rows * length].view(rows, length)


class _Calls:
    """Calls of the loop with one shape, which can be timed; keeps the seconds of their rounds, call by call."""

    def __init__(self, generate, target, drafter, texts: Tensor, shape: str, rounds: int):
        self.generate, self.target, self.drafter = generate, target, drafter
        self.texts, self.shape, self.rounds = texts, shape, rounds
        windows = (getattr(target.config.get_text_config(), "max_position_embeddings", None), drafter.window)
        room = min((window for window in windows if window), default=math.inf) - texts.shape[1]
        self.most_tokens = min(rounds * (parse(shape).max_depth + 1) + 1, room)
        self.cold = min(COLD, rounds - 1)
        self.seconds: list[np.ndarray] = []  # float[rounds, 3] per call: of draft, verification and commit

    def __call__(self) -> None:
        before: list[object] = []  # one for each round before the current one, of which the last ends all rows
        done = self.generate(
            self.target, self.drafter, self.texts, shape=self.shape, observe=lambda *_: before.append(None),
            hooks=Hooks(stop=lambda row, written: len(before) == self.rounds - 1 and len(written) > 1),
            max_new_tokens=self.most_tokens)
        self.seconds.append(np.array([
            (record.draft_seconds, record.verify_seconds, record.commit_seconds)
            for record, *_ in full_rounds(done.rounds, len(self.texts))]))

    def row(self) -> dict:
        """Medians in milliseconds over all warm rounds; the first call warms up and does not count."""
        warm = 1000 * np.concatenate([call[self.cold :] for call in self.seconds[1:]])
        lower, middle, upper = np.quantile(warm.sum(1), [0.25, 0.5, 0.75])
        draft, verify, commit = np.median(warm, axis=0)
        return dict(shape=self.shape, nodes=parse(self.shape).budget, rounds=len(warm), draft_ms=draft,
                    verify_ms=verify, commit_ms=commit, round_ms=middle, lower_ms=lower, upper_ms=upper)


def full_rounds(rounds: Sequence[Round], batch: int) -> list[Sequence[Round]]:
    """The records, one per row, of each round of a `Generation` in which every row of the batch ran."""
    parts = (rounds[first : first + batch] for first in range(0, len(rounds), batch))
    return [rows for rows in parts if [record.row for record in rows] == list(range(batch))]
