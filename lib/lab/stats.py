"""Estimates with 95 % intervals from resampling units: prompts, since rounds of one prompt are correlated.

Acceptance is a ratio of sums over units, sum_p w_p x_p / sum_p w_p y_p, where w_p is how often the bootstrap drew unit
p (Efron 1979). Its interval holds percentiles, "expanded" for few units (Hesterberg 2015, section 5.3). Speed is a
geometric mean over units, with an interval by bootstrap t on logs.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, stdtrit

from lib.lab.units import unit

RESAMPLES = 2000
LEVEL = 0.95
FEWEST = 8  # units: fewer have no interval
FIELDS = ["value", "low", "high", "n"]  # of an estimate, as columns of tables
MANY = 13  # raced units: the interval of fewer is called approximate
COVERAGE = 93  # at least, in per cent, of such intervals in simulation: see lib/tests/lab/test_stats.py


class Estimate(NamedTuple):
    """A value, its interval (NaN where there is none) and the number of units; raced: how many of them were timed."""

    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0
    raced: int | None = None


def ratio(numerator, denominator, generator: np.random.Generator) -> Estimate:
    """sum numerator / sum denominator over units, float[n] each, n > 0; NaN where the denominator is 0."""
    sums = np.stack([np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)])
    return _estimate(sums, _quotient, _weights(sums.shape[1], generator))


def summarise(rows: pd.DataFrame, by: Sequence[str], numerator: str, denominator: str,
              generator: np.random.Generator, *, prompt: str = "prompt") -> pd.DataFrame:
    """`ratio` of two columns for each setting (combination of the columns `by`); rows of one `unit` are summed first.

    Returns `by`, value, low, high, n, in order of first appearance.
    """
    return _by_setting(_sums(rows, by, prompt, numerator, denominator), by, _quotient, generator)


def compare(rows: pd.DataFrame, by: Sequence[str], between: str, base: object, numerator: str, denominator: str,
            generator: np.random.Generator, *, relative: bool = False, prompt: str = "prompt") -> pd.DataFrame:
    """The paired difference of each value of the column `between` from its value `base`, with equal `by`, on common
    units; with `relative` their quotient (1.1 is 10 % more).

    Returns `by`, `between`, value, low, high, n; settings without a base are left out. ValueError if all are.
    """
    if base not in set(rows[between]):
        raise ValueError(f"no row has {between} = {base!r} to compare with; there are {list(rows[between].unique())}")

    def combine(top, bottom, base_top, base_bottom):
        return (_quotient if relative else np.subtract)(_quotient(top, bottom), _quotient(base_top, base_bottom))

    is_base, by_and_between = rows[between] == base, [*by, between]
    sums = _sums(rows[~is_base], by_and_between, prompt, numerator, denominator)
    sums = sums.merge(_sums(rows[is_base], by, prompt, numerator, denominator), on=[*by, "unit"])
    return _by_setting(sums, by_and_between, combine, generator)


def _sums(rows: pd.DataFrame, by: Sequence[str], prompt: str, *columns: str) -> pd.DataFrame:
    """The columns, summed by setting and unit."""
    units = rows[prompt].astype(str).map(unit).rename("unit")
    return rows.groupby([*by, units], sort=False, observed=True)[[*columns]].sum().reset_index()


def _by_setting(sums: pd.DataFrame, by: Sequence[str], combine: Callable, generator) -> pd.DataFrame:
    """An estimate for each setting from its units' sums; settings with as many units share the weights."""
    weights, rows = cache(partial(_weights, generator=generator)), []
    for setting, part in sums.groupby([*by], sort=False, observed=True):
        estimate = _estimate(part.drop(columns=[*by, "unit"]).to_numpy(float).T, combine, weights(len(part)))
        rows.append([*setting, *estimate[: len(FIELDS)]])
    return pd.DataFrame(rows, columns=[*by, *FIELDS])


def _weights(count: int, generator: np.random.Generator) -> np.ndarray:
    """float[n, RESAMPLES]: how often each draw of n units has each of them."""
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).T.astype(float)


def _estimate(sums: np.ndarray, combine: Callable, weights: np.ndarray) -> Estimate:
    """`combine` of the sums over units, float[C, n], with percentiles over the draws in which it is a number."""
    count = sums.shape[1]
    value, drawn = float(combine(*sums.sum(1))), combine(*(sums @ weights))
    if count < FEWEST or np.isnan(drawn).all():
        return Estimate(value, n=count)
    share = tail(count)
    return Estimate(value, *np.nanquantile(drawn, [share, 1 - share]).tolist(), count)


def tail(count: int) -> float:
    """The share of the draws of n units that an interval leaves out at each end: Phi(-t sqrt(n / (n - 1))), t Student's
    quantile for n - 1 degrees, because resampling n values underestimates their spread by the root, and their tails.
    """
    return float(ndtr(-stdtrit(count - 1, (1 + LEVEL) / 2) * (count / (count - 1)) ** 0.5))


def _quotient(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """NaN where it divides by 0."""
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom != 0)


def two_phase(measured: np.ndarray, predicted: np.ndarray, others: np.ndarray,
              generator: np.random.Generator) -> Estimate:
    """A geometric mean over units of which a random part was measured: in logs the mean of all predictions, and the
    mean of (measured - predicted) over the measured ones (Cochran 1977, section 7.4, with slope 1).

    measured, predicted: float[n], logs of the measured units. others: float[m], predicted logs of the other units.
    """
    share = len(others) / (len(measured) + len(others))
    return of_logs([measured - share * predicted] + ([share * others] if share else []), generator)


def of_logs(parts: Sequence[np.ndarray], generator: np.random.Generator) -> Estimate:
    """exp of the sum of the means of independent samples of logs, float[n_i] each, with an interval by bootstrap t
    (Efron & Tibshirani 1993, section 12.5); none where the first sample, that was raced, has fewer than FEWEST units.
    """
    parts = [np.asarray(part, dtype=float) for part in parts]
    value, raced, count = sum(part.mean() for part in parts), len(parts[0]), sum(map(len, parts))
    if raced < FEWEST or min(map(len, parts)) < 2:
        return Estimate(float(np.exp(value)), n=count, raced=raced)
    drawn = [part[generator.integers(len(part), size=(RESAMPLES, len(part)))] for part in parts]
    errors = (sum(part.mean(-1) for part in drawn) - value) / np.maximum(_standard_error(drawn), 1e-12)
    tails = np.quantile(errors, [(1 + LEVEL) / 2, (1 - LEVEL) / 2])
    return Estimate(float(np.exp(value)), *np.exp(value - tails * _standard_error(parts)).tolist(), count, raced)


def _standard_error(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Of the sum of the means of independent samples [..., n_i]."""
    return np.sqrt(sum(part.var(-1, ddof=1) / part.shape[-1] for part in parts))


def speed_ratio(timed: pd.DataFrame, *, whole: bool = False) -> pd.DataFrame:
    """Raced calls with `log`, of their speed over plain decoding in their turn, after the prefill or of whole calls."""
    turn, seconds = ["backend", "batch", "part", "call", "turn"], timed["seconds"] - (0 if whole else timed["prefill"])
    pace = np.log(timed["tokens"] / seconds.where(seconds > 0))
    plain = timed[turn].assign(plain=pace)[timed["way"] == "plain"]
    calls = timed.assign(pace=pace).merge(plain, on=turn)
    return calls.assign(log=calls["pace"] - calls["plain"])


def format_estimates(estimates: pd.DataFrame, spec: str = ".2f") -> list[str]:
    """Each row of a table of estimates in the form of `format_estimate`."""
    return [format_estimate(row, spec) for row in estimates.itertuples()]


def format_estimate(row, spec: str = ".2f") -> str:
    """An estimate (with value, low and high) with its interval in brackets, if it has one: "1.40 [0.99, 1.84]"."""
    return f"{row.value:{spec}}" + ("" if np.isnan(row.low) else f" [{row.low:{spec}}, {row.high:{spec}}]")


def format_counts(estimate) -> str:
    """The numbers of raced units (0 or None where none was) and of all units; an interval of few is approximate."""
    words = f"n = {estimate.raced} of {estimate.n}" if estimate.raced else f"n = {estimate.n}"
    approximate = f", an approximate interval: {COVERAGE} % coverage in simulation"
    return words + (approximate if FEWEST <= (estimate.raced or 0) < MANY else "")


def equivalence(speeds) -> str:
    """The interval of a ratio of speeds (with low and high) in words: "between 8 % slower and 6 % faster"."""
    low, high = (f"{100 * abs(bound - 1):.0f} % {'slower' if bound < 1 else 'faster'}"
                 for bound in (speeds.low, speeds.high))
    return f"between {low} and {high}"
