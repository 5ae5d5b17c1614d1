"""Estimates with intervals from resampling prompts: rounds of one prompt hang together, so prompts are what is drawn.

Everything is a ratio of sums over prompts, sum_p w_p x_p / sum_p w_p y_p, with w_p how often the bootstrap drew prompt
p (Efron 1979, with prompts as clusters): accepted over rounds, accepted over drafted, x over 1 for a mean of prompts.
One draw of the weights serves all settings of a call, which is what pairs them.

Intervals are percentiles, "expanded" for few prompts: the normal quantile z gives way to t_{n-1} sqrt(n / (n - 1)),
since resampling n values understates their spread by the root, and their tails (Hesterberg 2015, section 5.3).
"""

import warnings
from dataclasses import dataclass
from statistics import NormalDist
from typing import Sequence

import numpy as np
import pandas as pd

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1000  # settings resampled at once: 2000 x 1000 float64 are 16 MB


@dataclass(frozen=True)
class Estimate:
    """A value with its interval and what stands behind it; arrays of one shape where there are several settings.

    The interval is NaN where one prompt alone was there.
    """

    value: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    n_prompts: int | np.ndarray
    n_rounds: int | np.ndarray

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return f"{self:.3g} (n = {self.n_prompts} prompts, {self.n_rounds} rounds)"

    def frame(self) -> pd.DataFrame:
        """One row a setting, one column a field."""
        return pd.DataFrame({name: np.atleast_1d(values) for name, values in vars(self).items()})


def ratio(numerator, denominator, generator: np.random.Generator, *, rounds=None, resamples: int = RESAMPLES,
          level: float = LEVEL) -> Estimate:
    """sum numerator / sum denominator over prompts; both [..., P], last axis prompts. NaN where it divides by 0.

    rounds: [..., P], what n_rounds counts; the denominator if not given.
    """
    top, bottom = _paired(numerator, denominator)
    drawn, value = _resampled(top, bottom, generator, resamples), _quotient(top.sum(-1), bottom.sum(-1))
    return _estimate(value, drawn, top.shape[-1], bottom if rounds is None else rounds, level)


def mean(values, generator: np.random.Generator, *, rounds=None, resamples: int = RESAMPLES,
         level: float = LEVEL) -> Estimate:
    """The mean over prompts of values [..., P], each prompt counting once however many rounds it had."""
    values = np.asarray(values, dtype=float)
    return ratio(values, np.ones_like(values), generator, rounds=rounds, resamples=resamples, level=level)


def difference(numerator, denominator, base_numerator, base_denominator, generator: np.random.Generator, *,
               relative: bool = False, rounds=None, resamples: int = RESAMPLES, level: float = LEVEL) -> Estimate:
    """The paired difference of two ratios on the same prompts; with `relative`, their quotient (1.1: 10 % more).

    All [..., P]; a base of shape [P] serves all settings. n_rounds counts the rounds of the setting, not of its base.
    """
    top, bottom, base_top, base_bottom = _paired(numerator, denominator, base_numerator, base_denominator)
    combine = _quotient if relative else np.subtract
    pair = (np.stack([top, base_top]), np.stack([bottom, base_bottom]))
    drawn = combine(*_resampled(*pair, generator, resamples))
    value = combine(*_quotient(pair[0].sum(-1), pair[1].sum(-1)))
    return _estimate(value, drawn, top.shape[-1], bottom if rounds is None else rounds, level)


# -------------------------------------------------------------------------------------------------------------- tables


def summarise(rows: pd.DataFrame, by: Sequence[str], numerator: str, denominator: str,
              generator: np.random.Generator, *, prompt: str = "prompt", rounds: str = "rounds",
              resamples: int = RESAMPLES, level: float = LEVEL) -> pd.DataFrame:
    """`ratio` of two columns for each setting (combination of the columns `by`); rows of one prompt are added up first.

    Returns `by`, value, low, high, n_prompts, n_rounds, in order of first appearance.
    """
    sums = _sums(rows, by, prompt, top=numerator, bottom=denominator, rounds=rounds)
    found = [(settings, ratio(top, bottom, generator, rounds=counts, resamples=resamples, level=level))
             for settings, (top, bottom, counts) in _same_prompts(sums, prompt)]
    return _in_order(found, rows, by)


def compare(rows: pd.DataFrame, by: Sequence[str], between: str, base: object, numerator: str, denominator: str,
            generator: np.random.Generator, *, relative: bool = False, prompt: str = "prompt", rounds: str = "rounds",
            resamples: int = RESAMPLES, level: float = LEVEL) -> pd.DataFrame:
    """`difference` of each value of the column `between` from its value `base`, all of `by` equal, on the prompts that
    both have. Returns `by`, `between`, value, low, high, n_prompts, n_rounds; what has no such base is left out.

    ValueError where no row has the base.
    """
    if base not in set(rows[between]):
        raise ValueError(f"no row has {between} = {base!r} to compare with; there are {list(rows[between].unique())}")
    is_base = rows[between] == base
    base_sums = _sums(rows[is_base], by, prompt, base_top=numerator, base_bottom=denominator).reset_index()
    sums = _sums(rows[~is_base], [*by, between], prompt, top=numerator, bottom=denominator, rounds=rounds).reset_index()
    both = sums.merge(base_sums, on=[*by, prompt]).set_index([*by, between, prompt])
    both = both[["top", "bottom", "base_top", "base_bottom", "rounds"]]
    how = {"relative": relative, "resamples": resamples, "level": level}
    found = [(settings, difference(*sides, generator, rounds=counts, **how))
             for settings, (*sides, counts) in _same_prompts(both, prompt)]
    return _in_order(found, rows, [*by, between])


def _sums(rows: pd.DataFrame, by: Sequence[str], prompt: str, **columns: str) -> pd.DataFrame:
    """The named columns, added up by setting and prompt, under their new names."""
    values = pd.DataFrame({new: rows[old].to_numpy() for new, old in columns.items()})
    keys = [rows[name].rename(name).reset_index(drop=True) for name in [*by, prompt]]
    return values.groupby(keys, sort=False, observed=True).sum()


def _same_prompts(sums: pd.DataFrame, prompt: str):
    """Settings that were run on the same prompts, together, CHUNK at most: frame of settings, [columns, S, P]."""
    if not len(sums):
        return
    wide = [sums[name].unstack(prompt) for name in sums]
    settings, table = wide[0].index.to_frame(index=False), np.stack([column.to_numpy(float) for column in wide])
    patterns, group = np.unique(~np.isnan(table[0]), axis=0, return_inverse=True)
    for index, there in enumerate(patterns):
        members = np.flatnonzero(group.reshape(-1) == index)
        for start in range(0, len(members), CHUNK):
            part = members[start : start + CHUNK]
            yield settings.iloc[part].reset_index(drop=True), table[:, part][:, :, there]


def _in_order(found: list[tuple[pd.DataFrame, Estimate]], rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    order = rows[list(by)].drop_duplicates()
    if not found:
        return order.iloc[:0].assign(**{name: [] for name in Estimate.__dataclass_fields__})
    made = pd.concat([settings.join(estimate.frame()) for settings, estimate in found], ignore_index=True)
    return order.merge(made, on=list(by)).reset_index(drop=True)


# ---------------------------------------------------------------------------------------------------------- arithmetic


def _paired(*sides) -> list[np.ndarray]:
    """The arrays in one shape; ValueError where they do not fit, or where there is no prompt."""
    arrays = np.broadcast_arrays(*(np.asarray(side, dtype=float) for side in sides))
    if arrays[0].ndim == 0 or arrays[0].shape[-1] == 0:
        raise ValueError(f"an estimate needs at least one prompt on its last axis, got shape {arrays[0].shape}")
    return arrays


def _resampled(top: np.ndarray, bottom: np.ndarray, generator: np.random.Generator, resamples: int) -> np.ndarray:
    """[..., P] twice -> [..., resamples]: the ratio of sums under each draw of prompts."""
    prompts = top.shape[-1]
    times = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)  # [resamples, P]
    weights = times.T.astype(float)
    return _quotient(top @ weights, bottom @ weights)


def _quotient(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(np.broadcast_shapes(top.shape, bottom.shape), np.nan), where=bottom != 0)


def _estimate(value: np.ndarray, drawn: np.ndarray, prompts: int, rounds, level: float) -> Estimate:
    tail = _tail(level, prompts)
    if prompts < 2:
        bounds = np.full((2, *np.shape(value)), np.nan)
    elif np.isnan(drawn).any():  # draws of prompts without anything to divide by are left out
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # where no draw is left, NaN says so
            bounds = np.nanquantile(drawn, [tail, 1 - tail], axis=-1)
    else:
        bounds = np.quantile(drawn, [tail, 1 - tail], axis=-1)
    counts = np.broadcast_to(np.asarray(rounds).sum(-1), np.shape(value)).astype(np.int64)
    fields = (np.asarray(value), *bounds, np.full(np.shape(value), prompts), counts)
    return Estimate(*(field.item() if np.ndim(field) == 0 else field for field in fields))


def _tail(level: float, prompts: int) -> float:
    """The probability to cut off at either end: Phi(-t sqrt(n / (n - 1))), t the quantile of Student's law with n - 1
    degrees of freedom (by Abramowitz and Stegun 26.7.5).
    """
    if prompts < 2:
        return float("nan")
    z, v = NormalDist().inv_cdf((1 + level) / 2), prompts - 1
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return NormalDist().cdf(-t * (prompts / v) ** 0.5)


def in_words(found: pd.DataFrame, decimals: int = 2) -> list[str]:
    """Each estimate as `worded` has it."""
    return [worded(row, f".{decimals}f") for row in found.itertuples()]


def worded(found, spec: str = ".2f") -> str:
    """An estimate (with value, low and high) and its interval in brackets, where there is one: "1.40 [0.99, 1.84]"."""
    return f"{found.value:{spec}}" + ("" if np.isnan(found.low) else f" [{found.low:{spec}}, {found.high:{spec}}]")
