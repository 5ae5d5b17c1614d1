"""Before anything is recorded: what a check costs on this machine, and how often drafts must be right to pay for it."""

import time
from collections.abc import Iterator
from itertools import cycle, islice
from math import isnan, nan
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from lib.engines.methods import forced
from lib.engines.own import Own
from lib.forward.load import load_pair
from lib.lab import processor
from lib.models import prompts
from lib.study.predict import expected_tokens
from lib.study.settings import Speed

BATCHES = 1, 16
LENGTHS = 1, 2, 4, 8  # draft tokens of a chain; its check has a row more
DRAFTING = 0.0, 0.05, 0.2  # of a plain step, for a draft token
TOKENS = 8  # of a timed call
SECONDS, TURNS = 20.0, (3, 15)  # for a batch size; turns after the first, at least and at most
HOPELESS = 0.95  # no drafter is right so often


def report(settings: Speed) -> Iterator[str]:
    """Lines: for each batch size the cost of checks, the break-even of chains, and one verdict."""
    pair = load_pair(settings.pairs[0], settings.dtype, settings.device)
    backend = Own(pair, prompts.load(settings.prompts, pair.tokenizer).ids)
    machine = processor.machine(pair.target.device.type)
    yield f"{pair.target_name}, {backend.name}, on {machine['processor']} with {machine['threads']} threads"
    for batch in BATCHES:
        plain, *checks = step_seconds(backend, batch)
        costs = {length: seconds / plain for length, seconds in zip(LENGTHS, checks)}
        yield f"\nbatch {batch}: a plain step takes {1000 * plain:.3g} ms"
        yield _line("draft tokens", [f"{length}" for length in LENGTHS])
        yield _line("a check, in plain steps", [f"{cost:.2f}" for cost in costs.values()])
        needed = {drafting: [break_even(cost, length, drafting) for length, cost in costs.items()]
                  for drafting in DRAFTING}
        for drafting, chances in needed.items():
            price = f"at {drafting:.0%} of a step each" if drafting else "that cost nothing"
            yield _line(f"right drafts {price}", ["never" if isnan(chance) else f"{chance:.0%}" for chance in chances])
        yield verdict(batch, *(np.nanmin([*chances, np.inf]) for chances in list(needed.values())[:2]))


def _line(name: str, values: list[str]) -> str:
    return f"  {name:<36}" + "".join(f"{value:>7}" for value in values)


def step_seconds(backend: Own, batch: int) -> list[float]:
    """Median seconds of a step that checks 0 (a plain one) and each of LENGTHS draft tokens per row, in shuffled turns.
    Prompts are the shortest, drafts excerpts of prompts, so that a mixture of experts reads text.
    """
    running = backend.start(forced(max(LENGTHS)), window=0, batch=batch, log=Path())
    texts = [ids.tolist() for ids in islice(cycle(sorted(backend.texts, key=len)[:batch]), batch)]
    times: dict[int, list[float]] = {length: [] for length in (0, *LENGTHS)}
    generator, stop = np.random.default_rng(0), time.monotonic() + SECONDS
    for turn in range(1 + TURNS[1]):
        if turn > TURNS[0] and time.monotonic() > stop:
            break
        for length in generator.permutation([*times]).tolist():
            decoded = running.decode(texts, TOKENS, drafted=length)
            times[length].append((decoded.seconds - decoded.prefill - decoded.drafting) / decoded.steps)
    return [float(np.median(seconds[1:])) for seconds in times.values()]


def break_even(cost: float, length: int, drafting: float) -> float:
    """The chance with which each token of a chain must be accepted for a round to be as fast as plain decoding; NaN
    where all of them are too few (Leviathan et al. 2023, equation 1 over the cost of the round).

    cost: of the check; drafting: of a draft token; both in plain steps.
    """
    spent = cost + length * drafting
    if spent >= length + 1:
        return nan
    return brentq(lambda chance: expected_tokens(chance, length) - spent, 0.0, 1.0) if spent > 1 else 0.0


def verdict(batch: int, free: float, priced: float) -> str:
    """One sentence on the least chances at which a chain pays, for drafts of the first two prices."""
    if free > HOPELESS:
        return f"  speculation cannot pay at batch {batch}"
    more = f"; more than {priced:.0%} where a draft token costs {DRAFTING[1]:.0%} of a step" if priced <= HOPELESS else ""
    return f"  speculation can pay at batch {batch} if drafts are right more than {free:.0%} of the time{more}"
