"""Estimates with intervals from resampling prompts; prompts are resampled because rounds of one prompt are correlated.

Each estimate is a ratio of sums over prompts, sum_p w_p x_p / sum_p w_p y_p, where w_p is how often the bootstrap drew
prompt p (Efron 1979, with prompts as clusters): accepted over rounds, accepted over drafted, x over 1 for a mean over
prompts. One draw of the weights serves all settings of a call, so their differences are paired.

The turns of a conversation re-read those before them, so the conversation is drawn as one; see `unit`.

Intervals are percentiles, "expanded" for few prompts: t_{n-1} sqrt(n / (n - 1)) replaces the normal quantile z, because
resampling n values underestimates their spread by the root, and their tails (Hesterberg 2015, section 5.3). Fewer
than FEWEST prompts have no interval.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, stdtrit

RESAMPLES = 2000
LEVEL = 0.95
FEWEST = 8  # prompts, or other independent units: with fewer the percentiles mean little
CHUNK = 1000  # settings resampled together: 2000 x 1000 float64 are 16 MB
TURN = " turn "  # between the name of a conversation and the number of its turn


def unit(name: str) -> str:
    """What the bootstrap draws of a prompt's name: the conversation of a turn, "NAME turn 2"; else the prompt."""
    return re.sub(rf"{TURN}\d+$", "", name)


@dataclass(frozen=True)
class Estimate:
    """A value with its interval and the numbers of prompts and rounds; arrays of one shape for several settings.

    The interval is NaN where there are fewer than FEWEST prompts.
    """

    value: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    n_prompts: int | np.ndarray
    n_rounds: int | np.ndarray

    def frame(self) -> pd.DataFrame:
        """One row per setting, one column per field."""
        return pd.DataFrame({name: np.atleast_1d(values) for name, values in vars(self).items()})


def ratio(numerator, denominator, generator: np.random.Generator, *, rounds=None,
          resamples: int = RESAMPLES) -> Estimate:
    """sum numerator / sum denominator over prompts; both [..., P], prompts on the last axis. NaN if it divides by 0.

    rounds: [..., P], summed to n_rounds; the denominator if not given.
    """
    top, bottom = _paired(numerator, denominator)
    drawn, value = _resampled(top, bottom, generator, resamples), _quotient(top.sum(-1), bottom.sum(-1))
    return _estimate(value, drawn, top.shape[-1], bottom if rounds is None else rounds)


def difference(numerator, denominator, base_numerator, base_denominator, generator: np.random.Generator, *,
               relative: bool = False, rounds=None, resamples: int = RESAMPLES) -> Estimate:
    """The paired difference of two ratios on the same prompts; with `relative`, their quotient (1.1 is 10 % more).

    All [..., P]; a base of shape [P] serves all settings. n_rounds counts the rounds of the setting, not of the base.
    """
    top, bottom, base_top, base_bottom = _paired(numerator, denominator, base_numerator, base_denominator)
    combine = _quotient if relative else np.subtract
    pair = (np.stack([top, base_top]), np.stack([bottom, base_bottom]))
    drawn = combine(*_resampled(*pair, generator, resamples))
    value = combine(*_quotient(pair[0].sum(-1), pair[1].sum(-1)))
    return _estimate(value, drawn, top.shape[-1], bottom if rounds is None else rounds)


def of_repeats(samples: Sequence[Sequence[float]], generator: np.random.Generator, *,
               resamples: int = RESAMPLES) -> Estimate:
    """The mean over prompts of each prompt's mean over repeated measurements, samples[p][r]; n_rounds counts these.

    A hierarchical bootstrap (Davison & Hinkley 1997, section 3.8) draws prompts, then repeats within each of them, so
    that the interval covers the noise of measuring too. ValueError for a prompt without a measurement.
    """
    counts = np.array([len(own) for own in samples])
    if not len(counts) or not counts.all():
        raise ValueError(f"prompts with {counts.tolist()} measurements; give at least one prompt and one of each")
    padded = np.zeros((len(counts), counts.max()))
    for row, own in zip(padded, samples):
        row[: len(own)] = own
    prompts = generator.integers(len(counts), size=(resamples, len(counts)))
    own = counts[prompts][..., None]
    repeats = (generator.random((*prompts.shape, counts.max())) * own).astype(int)  # the first `own` of them count
    drawn = padded[prompts[..., None], repeats] * (np.arange(counts.max()) < own)
    means = (drawn.sum(-1) / own[..., 0]).mean(-1)
    return _estimate(np.mean([np.mean(own) for own in samples]), means, len(counts), counts)


# -------------------------------------------------------------------------------------------------------------- tables


def summarise(rows: pd.DataFrame, by: Sequence[str], numerator: str, denominator: str,
              generator: np.random.Generator, *, prompt: str = "prompt", rounds: str = "rounds",
              resamples: int = RESAMPLES) -> pd.DataFrame:
    """`ratio` of two columns for each setting (combination of the columns `by`); rows of one `unit` are summed first.

    Returns `by`, value, low, high, n_prompts, n_rounds, in order of first appearance.
    """
    sums = _sums(rows, by, prompt, top=numerator, bottom=denominator, rounds=rounds)
    estimates = [(settings, ratio(top, bottom, generator, rounds=counts, resamples=resamples))
                 for settings, (top, bottom, counts) in _same_prompts(sums, prompt)]
    return _in_order(estimates, rows, by)


def compare(rows: pd.DataFrame, by: Sequence[str], between: str, base: object, numerator: str, denominator: str,
            generator: np.random.Generator, *, relative: bool = False, prompt: str = "prompt",
            rounds: str = "rounds") -> pd.DataFrame:
    """`difference` of each value of the column `between` from its value `base`, with equal `by`, on common prompts.

    Returns `by`, `between`, value, low, high, n_prompts, n_rounds; settings without a base are left out. ValueError if
    no row has the base.
    """
    if base not in set(rows[between]):
        raise ValueError(f"no row has {between} = {base!r} to compare with; there are {list(rows[between].unique())}")
    is_base = rows[between] == base
    base_sums = _sums(rows[is_base], by, prompt, base_top=numerator, base_bottom=denominator).reset_index()
    sums = _sums(rows[~is_base], [*by, between], prompt, top=numerator, bottom=denominator, rounds=rounds).reset_index()
    both = sums.merge(base_sums, on=[*by, prompt]).set_index([*by, between, prompt])
    both = both[["top", "bottom", "base_top", "base_bottom", "rounds"]]
    estimates = [(settings, difference(*sides, generator, relative=relative, rounds=counts))
                 for settings, (*sides, counts) in _same_prompts(both, prompt)]
    return _in_order(estimates, rows, [*by, between])


def _sums(rows: pd.DataFrame, by: Sequence[str], prompt: str, **columns: str) -> pd.DataFrame:
    """The named columns, summed by setting and prompt, under their new names."""
    values = pd.DataFrame({new: rows[old].to_numpy() for new, old in columns.items()})
    units = rows[prompt].map({name: unit(str(name)) for name in rows[prompt].unique()})
    keys = [column.rename(name).reset_index(drop=True)
            for name, column in [*((name, rows[name]) for name in by), (prompt, units)]]
    return values.groupby(keys, sort=False, observed=True).sum()


def _same_prompts(sums: pd.DataFrame, prompt: str):
    """Groups of at most CHUNK settings with the same prompts: a frame of the settings, and [columns, S, P]."""
    if not len(sums):
        return
    wide = [sums[name].unstack(prompt) for name in sums]
    settings, table = wide[0].index.to_frame(index=False), np.stack([column.to_numpy(float) for column in wide])
    patterns, group = np.unique(~np.isnan(table[0]), axis=0, return_inverse=True)
    for index, present in enumerate(patterns):
        members = np.flatnonzero(group.reshape(-1) == index)
        for start in range(0, len(members), CHUNK):
            part = members[start : start + CHUNK]
            yield settings.iloc[part].reset_index(drop=True), table[:, part][:, :, present]


def _in_order(estimates: list[tuple[pd.DataFrame, Estimate]], rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    order = rows[list(by)].drop_duplicates()
    if not estimates:
        return order.iloc[:0].assign(**{name: [] for name in Estimate.__dataclass_fields__})
    merged = pd.concat([settings.join(estimate.frame()) for settings, estimate in estimates], ignore_index=True)
    return order.merge(merged, on=list(by)).reset_index(drop=True)


# ---------------------------------------------------------------------------------------------------------- arithmetic


def _paired(*sides) -> list[np.ndarray]:
    """The arrays in one shape; ValueError if they do not fit, or if there is no prompt."""
    arrays = np.broadcast_arrays(*(np.asarray(side, dtype=float) for side in sides))
    if arrays[0].ndim == 0 or arrays[0].shape[-1] == 0:
        raise ValueError(f"an estimate needs at least one prompt on its last axis, got shape {arrays[0].shape}")
    return arrays


def _resampled(top: np.ndarray, bottom: np.ndarray, generator: np.random.Generator, resamples: int) -> np.ndarray:
    """[..., P] twice -> [..., resamples]: the ratio of sums for each draw of prompts."""
    prompts = top.shape[-1]
    times = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)  # [resamples, P]
    weights = times.T.astype(float)
    return _quotient(top @ weights, bottom @ weights)


def _quotient(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(np.broadcast_shapes(top.shape, bottom.shape), np.nan), where=bottom != 0)


def _estimate(value: np.ndarray, drawn: np.ndarray, prompts: int, rounds) -> Estimate:
    tail = _tail(prompts) if prompts >= FEWEST else float("nan")
    if prompts < FEWEST:
        bounds = np.full((2, *np.shape(value)), np.nan)
    elif np.isnan(drawn).any():  # draws whose denominator is 0 are left out
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # NaN if no draw is left
            bounds = np.nanquantile(drawn, [tail, 1 - tail], axis=-1)
    else:
        bounds = np.quantile(drawn, [tail, 1 - tail], axis=-1)
    counts = np.broadcast_to(np.asarray(rounds).sum(-1), np.shape(value)).astype(np.int64)
    fields = (np.asarray(value), *bounds, np.full(np.shape(value), prompts), counts)
    return Estimate(*(field.item() if np.ndim(field) == 0 else field for field in fields))


def _tail(prompts: int) -> float:
    """The share to cut off at each end: Phi(-t sqrt(n / (n - 1))), t Student's quantile for n - 1 degrees."""
    return float(ndtr(-stdtrit(prompts - 1, (1 + LEVEL) / 2) * (prompts / (prompts - 1)) ** 0.5))


def format_estimates(estimates: pd.DataFrame, decimals: int = 2) -> list[str]:
    """Each row of a table of estimates in the form of `format_estimate`."""
    return [format_estimate(row, f".{decimals}f") for row in estimates.itertuples()]


def format_estimate(row, spec: str = ".2f") -> str:
    """An estimate (with value, low and high) with its interval in brackets, if it has one: "1.40 [0.99, 1.84]"."""
    return f"{row.value:{spec}}" + ("" if np.isnan(row.low) else f" [{row.low:{spec}}, {row.high:{spec}}]")


# --------------------------------------------------------------------------------------------------------------- speeds

UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"), 0, 0)


def two_phase(measured: np.ndarray, predicted: np.ndarray, others: np.ndarray, generator: np.random.Generator) -> Estimate:
    """A geometric mean over units of which a random part was measured: in logs the mean of the predictions of all units,
    and the mean of (measured - predicted) over the measured ones (Cochran 1977, section 7.4, with slope 1).

    measured, predicted: float[n], logs of the measured units; zeros as predictions leave these out. others: float[m],
    predicted logs of the other units. n_rounds counts all units, n_prompts those that were measured.
    """
    count, rest = len(measured), len(others)
    share = rest / (count + rest)
    parts = [measured - share * predicted] + ([share * others] if rest else [])
    return of_logs(parts, generator)


def of_logs(parts: Sequence[np.ndarray], generator: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """exp of the sum of the means of independent samples of logs, float[n_i] each, with an interval by bootstrap t
    (Efron & Tibshirani 1993, section 12.5); NaN where the first sample has fewer than FEWEST members.
    """
    parts = [np.asarray(part, dtype=float) for part in parts]
    value = float(sum(part.mean() for part in parts))
    low = high = float("nan")
    if len(parts[0]) >= FEWEST and all(len(part) > 1 for part in parts):
        drawn = [part[generator.integers(len(part), size=(resamples, len(part)))] for part in parts]
        errors = (sum(part.mean(-1) for part in drawn) - value) / np.maximum(_standard_error(drawn), 1e-12)
        tail = (1 - LEVEL) / 2
        low, high = np.exp(value - np.quantile(errors, [1 - tail, tail]) * _standard_error(parts)).tolist()
    return Estimate(float(np.exp(value)), low, high, len(parts[0]), sum(map(len, parts)))


def _standard_error(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Of the sum of the means of independent samples [..., n_i]."""
    return np.sqrt(sum(part.var(-1, ddof=1) / part.shape[-1] for part in parts))
