"""Before anything is recorded: what a check costs on this machine, and how often drafts must be right to pay for it."""

from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import brentq

from lib.engines.methods import FORCED, PLAIN, forced
from lib.engines.own import Own
from lib.forward.load import load_pair
from lib.lab import processor
from lib.lab.chapter import Store
from lib.models import prompts
from lib.models.prompts import PromptSet
from lib.study import costs
from lib.study.bench import CHOOSING, Bench
from lib.study.predict import expected_tokens
from lib.study.settings import Speed

BATCHES = 1, 16
LENGTHS = 1, 2, 4, 8  # draft tokens of a chain; its check has a row more
DRAFTING = 0.0, 0.05, 0.2  # of a plain step, for a draft token
HOPELESS = 0.95  # no drafter is right so often


def report(settings: Speed) -> Iterator[str]:
    """Lines: for each batch size the cost of checks, the break-even of chains, and one verdict."""
    pair = load_pair(settings.pairs[0], settings.dtype, settings.device)
    loaded = prompts.load(settings.prompts, pair.tokenizer)
    backend, machine = Own(pair, loaded.ids), processor.machine(pair.target.device.type)
    shortest = sorted(range(len(loaded.ids)), key=lambda row: len(loaded.ids[row]))  # whose prefill takes least
    texts = loaded.select(shortest[: max(BATCHES)])
    yield f"{pair.target_name}, {backend.name}, on {machine['processor']} with {machine['threads']} threads"
    for batch in BATCHES:
        plain, *checks = step_times(backend, texts, batch)
        costs_of = {length: ms / plain for length, ms in zip(LENGTHS, checks)}
        yield f"\nbatch {batch}: a plain step takes {plain:.3g} ms"
        yield _line("draft tokens", [f"{length}" for length in LENGTHS])
        yield _line("a check, in plain steps", [f"{cost:.2f}" for cost in costs_of.values()])
        needed = {drafting: [break_even(cost, length, drafting) for length, cost in costs_of.items()]
                  for drafting in DRAFTING}
        for drafting, chances in needed.items():
            price = f"at {drafting:.0%} of a step each" if drafting else "that cost nothing"
            yield _line(f"right drafts {price}", ["never" if isnan(chance) else f"{chance:.0%}" for chance in chances])
        yield verdict(batch, *(np.nanmin([*chances, np.inf]) for chances in list(needed.values())[:2]))


def _line(name: str, values: list[str]) -> str:
    return f"  {name:<36}" + "".join(f"{value:>7}" for value in values)


def step_times(backend: Own, texts: PromptSet, batch: int) -> list[float]:
    """Median milliseconds of a plain step, and of steps that check each of LENGTHS draft tokens per row."""
    with TemporaryDirectory() as folder:
        bench = Bench(backend, Store(Path(folder), "05", "check"), backend.pair.target_name, texts,
                      [CHOOSING] * len(texts.ids), 0, {batch: 0}, max(LENGTHS), ())
        points = [(batch, PLAIN, 0), *((batch, FORCED, length) for length in LENGTHS)]
        costs.time_checks(bench, points, forced(max(LENGTHS)), costs.REPEATS)
        return bench.rows_of("costs").sort_values("nodes")["ms"].tolist()


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
