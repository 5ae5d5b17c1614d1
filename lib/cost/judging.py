"""What the measurements of a race decide: which candidate is recommended, from which length of answer on it gains, and
how far predicted speeds are from measured ones. Functions of arrays and tables alone.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.cost.recommendation import ONE, PLAIN, Interval
from lib.cost.ways import together
from lib.lab import stats

NEARLY = 0.98  # of the highest estimate: among candidates this fast, the one with the fewest nodes is recommended
SPLITS = 50  # of the choosing prompts into halves


def choose(speeds: Sequence[float], nodes: Sequence[int]) -> int:
    """The place of the recommended candidate: of those of at least NEARLY the highest speed the one with the fewest
    nodes, of these the fastest. speeds, nodes: [C].
    """
    least = NEARLY * max(speeds)
    return min((at for at, speed in enumerate(speeds) if speed >= least), key=lambda at: (nodes[at], -speeds[at]))


def break_even(prefill: float, per_token: float, base_prefill: float, base_per_token: float) -> float:
    """Tokens of an answer from which on whole calls are as fast as those of a base; infinite where none is long enough.

    A call of n tokens takes prefill, which gives the first one, and n - 1 times the seconds per token. Both calls take
    as long where prefill + (n - 1) per_token = base_prefill + (n - 1) base_per_token, so that
    n = 1 + (prefill - base_prefill) / (base_per_token - per_token), and 1 where both parts are no longer.
    """
    if prefill <= base_prefill and per_token <= base_per_token:
        return 1.0
    if per_token >= base_per_token:
        return float("inf")
    return 1 + (prefill - base_prefill) / (base_per_token - per_token)


def upheld(name: str, predicted: float, speedup: Interval, whole: Interval, winner: tuple[float, float],
           plain: tuple[float, float], tokens: float, n: int) -> tuple[bool, str]:
    """Whether a candidate stays recommended on the prompts that judge, and `ForBatch.reason`.

    speedup, whole: measured over plain decoding on n prompts, without prefill and of whole calls, with answers of so
    many tokens on average; winner, plain: as `call_times` gives them.
    """
    if speedup.is_below(1):
        return False, (f"{name} was predicted to decode {predicted:.2f} times as fast as plain decoding, but decoded "
                       f"{speedup} times as fast on the prompts that judge (n = {n})")
    if whole.is_above(1):
        return True, ""
    length = break_even(*winner, *plain)
    even = f"at answers of {np.ceil(length):.0f} tokens" if np.isfinite(length) else "at no length of answer"
    calls = (f"whole calls of {name}, prefill included, are {whole} times as fast as plain decoding (n = {n}); they "
             f"break even {even} (prefill {1000 * winner[0]:.3g} ms against {1000 * plain[0]:.3g}, then "
             f"{1000 * winner[1]:.3g} ms per token against {1000 * plain[1]:.3g})")
    stays = not whole.is_below(1)
    return stays, f"{f'gain not shown for answers of {tokens:.0f} tokens: ' if stays else ''}{calls}"


def call_times(rows: pd.DataFrame, way: str, batch: int) -> tuple[float, float]:
    """Seconds of a way's prefill, and seconds per further token of the mean answer until the last row ends: means over
    calls. rows: those of `ways.race`.
    """
    calls = rows[rows["way"] == way]
    return calls["prefill"].mean(), (calls["seconds"] - calls["prefill"]).sum() / (calls["tokens"] / batch - 1).sum()


def optimism(tokens: np.ndarray, rates: np.ndarray, kinds: Sequence[str], batch: int,
             generator: np.random.Generator) -> float:
    """The share of a predicted speed that is left on prompts that did not choose: at most 1.

    The prompts are split SPLITS times into random halves. The candidate of the highest predicted speed on one half is
    faster there than on the other half, on average; the share is the geometric mean of its speed on the other half
    over its speed on the half that chose it, each half choosing once. tokens: float[C, P], tokens per round of C
    candidates on P prompts of these kinds, NaN where a prompt has no rounds; rates: float[C], rounds per plain round.
    1 for fewer than two prompts.
    """
    logs, prompts = [], tokens.shape[1]
    for _ in range(SPLITS if prompts > 1 else 0):
        order = generator.permutation(prompts)
        halves = [np.sort(half) for half in (order[: prompts // 2], order[prompts // 2 :])]
        sides = [log_tokens(tokens[:, half], [kinds[at] for at in half], batch) + np.log(rates) for half in halves]
        known = ~np.isnan(sides).any(0)
        for chosen_on, other in (sides, sides[::-1]) if known.any() else ():
            best = np.where(known, chosen_on, -np.inf).argmax()
            logs.append(other[best] - chosen_on[best])
    return float(np.exp(np.mean(logs))) if logs else 1.0


def log_tokens(tokens: np.ndarray, kinds: Sequence[str], batch: int) -> np.ndarray:
    """float[C]: tokens per round and row in batches of these prompts, in logarithms: the mean over the rows of a batch,
    which have the same rounds, and the geometric mean over batches, as speeds are measured. tokens: float[C, P].
    """
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # NaN where no row of a batch is known
        means = np.stack([np.nanmean(tokens[:, rows], axis=1) for _, rows in together(kinds, batch)], axis=1)
        return np.nanmean(np.log(means), axis=1)


def parts(rows: pd.DataFrame, way: str, batch: int) -> tuple[float, float]:
    """Measured tokens per round and sequence of a way, and the time of its rounds in plain rounds of the same turns:
    geometric means over prompts, whose quotient is the measured speedup. rows: of one batch size and part of the table
    "advice_timed".
    """
    turns = rows.pivot(index=["prompt", "repeat"], columns="way", values=["rate", "round_ms"])
    calls, plain = turns.xs(way, axis=1, level="way"), turns.xs(PLAIN, axis=1, level="way")
    logs = pd.DataFrame({"tokens": np.log(calls["rate"] * calls["round_ms"] / (1000 * batch)),
                         "time": np.log(calls["round_ms"] / plain["round_ms"])}).dropna()
    tokens, time = np.exp(logs.groupby(level="prompt").mean().mean())
    return float(tokens), float(time)


def measured(rows: pd.DataFrame, way: str, base: str | None, rng: np.random.Generator, whole: bool = False) -> Interval:
    """The geometric mean over prompts of a way's speed, or of its ratio to another's in the same turns; of decoding
    alone, or of whole calls. rows: of one batch size and part of the table "advice_timed".
    """
    if way == base:
        return ONE
    speed = np.log(rows["tokens"] / rows["seconds"] if whole else rows["rate"])
    turns = rows.assign(speed=speed).pivot(index=["prompt", "repeat"], columns="way", values="speed")
    logs = (turns[way] - turns[base] if base else turns[way]).dropna()
    units = logs.index.get_level_values("prompt").map(stats.unit)
    mean = stats.of_repeats([values.to_numpy() for _, values in logs.groupby(units, sort=False)], rng)
    return Interval(*(float(np.exp(end)) for end in (mean.value, mean.low, mean.high)))
