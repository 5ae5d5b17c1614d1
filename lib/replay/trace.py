"""The trace itself: arrays by row and transition, what can be taken from them, and traces joined row under row."""

from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence

import numpy as np

BY_ROW = ("tokens", "lengths", "loops", "target_probs", "target_entropy")
BY_DRAFTER = ("ranks", "probs", "entropy", "alpha", "chances")
EMPTY = {"tokens": -1, "ranks": -1}  # what stands behind a row's end; 0 elsewhere


@dataclass(frozen=True, eq=False)
class Trace:
    """N continuations c_0 .. c_L of N prompts; transition i of a row is c_i -> c_{i+1}, what a round starting at i
    meets first.

    tokens int32[N, L + 1], -1 behind a row's end; lengths int64[N]: transitions of each row (EOS or the limit ended
    it). By transition, [N, L], at the trace's temperature, at 1 where that is greedy: `target_probs` of c_{i+1} and
    `target_entropy` (nats), and by drafter `ranks` (int32; -1 behind the end), `probs` and `entropy`; and by drafter
    `alpha` = sum min(p, q) of the warped distributions, one-hot where greedy (Leviathan et al. 2023, corollary 3.6).
    Where a proposal depends on where the round started, `ranks` and `probs` are [N, L, D]: entry [n, i, d] is of
    c_{i+d+1} among the candidates d + 1 ahead in a round that starts at i; no entropy, no alpha (see `ReadsAhead`).
    `chances` float[N, L, K] by "drafter|rule|k": what `expectation` needs of sampled children.
    `loops` int64[N]: the transition at which a row begins to repeat itself for good, or its length.
    `prompts` and `kinds` name the rows; `about` says protocol, temperature, models and versions.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    loops: np.ndarray
    target_probs: np.ndarray
    target_entropy: np.ndarray
    ranks: Mapping[str, np.ndarray]
    probs: Mapping[str, np.ndarray]
    alpha: Mapping[str, np.ndarray]
    prompts: tuple[str, ...]
    kinds: tuple[str, ...]
    about: Mapping[str, object] = field(default_factory=dict)
    chances: Mapping[str, np.ndarray] = field(default_factory=dict)
    entropy: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Transitions in all."""
        return int(self.lengths.sum())

    def drafter_ranks(self, drafter: str | None = None) -> np.ndarray:
        """The ranks of a drafter, [N, L] or [N, L, D]; the name may be left out where there is one."""
        if drafter is None and len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        if drafter not in self.ranks:
            said = "has several drafters or none: name one" if drafter is None else f"has no drafter {drafter!r}"
            raise ValueError(f"the trace {said}; it has {', '.join(self.ranks) or 'none'}")
        return self.ranks[drafter]

    def next_ranks(self, drafter: str | None = None) -> np.ndarray:
        """int32[N, L]: the rank of the next token at each transition, whatever comes behind it."""
        ranks = self.drafter_ranks(drafter)
        return ranks if ranks.ndim == 2 else ranks[:, :, 0]

    def select(self, rows: np.ndarray) -> "Trace":
        """The trace of some rows, bool[N] or int64."""
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in BY_ROW},
            **{name: {key: a[rows] for key, a in getattr(self, name).items()} for name in BY_DRAFTER},
            prompts=tuple(self.prompts[row] for row in rows),
            kinds=tuple(self.kinds[row] for row in rows),
        )


def join(parts: Sequence[Trace]) -> Trace:
    """Traces of the same drafters row under row, widened to the longest row; `about` is the first one's.

    ValueError where there is none, or where they keep different things.
    """
    if not parts:
        raise ValueError("there is no trace to join: give at least one")
    kept = [{f"{name} of {key}" for name in BY_DRAFTER for key in getattr(part, name)} for part in parts]
    for own in kept[1:]:
        if own != kept[0]:
            raise ValueError(f"one trace keeps {', '.join(sorted(own ^ kept[0]))} and another does not: join traces of "
                             "the same drafters, recorded alike")

    def stacked(name: str, arrays: list[np.ndarray]) -> np.ndarray:
        width = max(array.shape[1] for array in arrays) if arrays[0].ndim > 1 else 0
        return np.concatenate([_widened(array, width, EMPTY.get(name, 0)) for array in arrays])

    return replace(
        parts[0],
        **{name: stacked(name, [getattr(part, name) for part in parts]) for name in BY_ROW},
        **{
            name: {key: stacked(name, [getattr(part, name)[key] for part in parts]) for key in getattr(parts[0], name)}
            for name in BY_DRAFTER
        },
        prompts=tuple(name for part in parts for name in part.prompts),
        kinds=tuple(kind for part in parts for kind in part.kinds),
    )


def _widened(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    if array.ndim == 1 or array.shape[1] == width:
        return array
    wide = np.full((len(array), width, *array.shape[2:]), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
