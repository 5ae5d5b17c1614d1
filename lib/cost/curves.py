"""Curves of seconds through measured points, which never fall: more work takes no less time, whatever noise says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Seconds over an amount of work: linear between the points, flat before them, on behind them as between the last
    two.

    at: float[P], increasing; seconds: float[P], not decreasing.
    """

    at: np.ndarray
    seconds: np.ndarray

    @classmethod
    def through(cls, at: Sequence[float], seconds: Sequence[float]) -> Curve:
        """The curve closest to measured points in the least squares sense; points at one place are averaged.

        ValueError where there is no point, or one that is no finite number.
        """
        at, seconds = np.asarray(at, dtype=float), np.asarray(seconds, dtype=float)
        if at.ndim != 1 or at.shape != seconds.shape or not len(at):
            raise ValueError(f"a curve through {at.shape} places and {seconds.shape} times: give one time a place")
        if not (np.isfinite(at).all() and np.isfinite(seconds).all()):
            raise ValueError("a curve through times of which one is missing: calibrate again with more seconds")
        places, where, counts = np.unique(at, return_inverse=True, return_counts=True)
        means = np.bincount(where, seconds) / counts
        return cls(places, monotone(means, counts))

    def __call__(self, amount) -> np.ndarray | float:
        """Seconds for an amount of work, or for float[...] amounts."""
        amount = np.asarray(amount, dtype=float)
        inside = np.interp(amount, self.at, self.seconds)
        if len(self.at) > 1:
            rise = (self.seconds[-1] - self.seconds[-2]) / (self.at[-1] - self.at[-2])
            inside = inside + rise * np.maximum(amount - self.at[-1], 0.0)
        return float(inside) if inside.ndim == 0 else inside


def monotone(values: Sequence[float], weights: Sequence[float]) -> np.ndarray:
    """The non-decreasing float[P] closest to values in weighted squares (pool adjacent violators; Ayer et al. 1955)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values, weights):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, heavy, few), (right, light, more) = pools[-2:]
            total = heavy + light
            pools[-2:] = [((left * heavy + right * light) / total, total, few + more)]
    return np.concatenate([np.full(members, mean) for mean, _, members in pools])
