"""The trace: what a target wrote, with each drafter's rank of every token; its file; which texts loop."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np

from lib.lab import atomic_file

BY_ROW = ("tokens", "lengths", "ended", "target_probs")
BY_DRAFTER = ("ranks", "probs", "chances")
PADDING = {"tokens": -1, "ranks": -1}  # values after a row's end; 0 elsewhere
INTEGERS = {"tokens": np.int32, "lengths": np.int64, "ended": bool, "ranks": np.int32}
NAMES = ("labels", "prompts", "kinds")  # kept as JSON
GRAM, LOOKED_AT, LOOPING_SHARE = 8, 64, 0.25  # of texts that loop


@dataclass(frozen=True, eq=False)
class Trace:
    """N continuations c_0 .. c_L of N prompts; transition i of a row is c_i -> c_{i+1}, the first step of a round that
    starts at i.

    tokens: int32[N, L + 1], -1 after a row's end. lengths: int64[N], the transitions before the length limit, at which
    rounds may start; the text goes on past it, so that it decides the last rounds to their ends. ended: bool[N],
    whether EOS ended the text.
    By transition, float[N, L], at the trace's temperature, and at temperature 1 for a greedy trace: `target_probs` of
    c_{i+1}; by drafter `ranks` (int32; -1 after the end) and `probs`.
    Where a proposal depends on where the round started, `ranks` and `probs` are [N, L, D]: entry [n, i, d] is of
    c_{i+d+1} among the candidates d + 1 tokens ahead in a round that starts at i.
    `chances`: float[N, L, K] by "drafter|rule|k", the input of `expectation`. `prompts` and `kinds` name the rows;
    `labels` has temperature and target, and "chains", whether the target takes chains alone.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    ended: np.ndarray
    target_probs: np.ndarray
    ranks: Mapping[str, np.ndarray]
    probs: Mapping[str, np.ndarray]
    prompts: tuple[str, ...]
    kinds: tuple[str, ...]
    labels: Mapping[str, object] = field(default_factory=dict)
    chances: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def ends(self) -> np.ndarray:
        """int64[N]: all transitions of each row, past the limit too."""
        return (self.tokens >= 0).sum(1) - 1

    def starts(self, depth: int) -> np.ndarray:
        """int64[N]: how many of each row's transitions start a round of a tree of this depth that counts: those before
        the limit, and unless EOS ended the text with start + depth + 1 <= end. Leaving out only the rounds that the end
        cuts would be biased, because long rounds are cut more often.
        """
        return np.where(self.ended, self.lengths, np.minimum(self.lengths, np.maximum(self.ends - depth, 0)))

    @property
    def before_limit(self) -> np.ndarray:
        """bool[N, L]: the transitions of each row before its limit."""
        return np.arange(self.tokens.shape[1] - 1)[None] < self.lengths[:, None]

    @cached_property
    def looping(self) -> np.ndarray:
        """bool[N]: the rows whose text loops (see `loops`)."""
        return np.array([loops(row[row >= 0].tolist()) for row in self.tokens], dtype=bool)

    def next_ranks(self, drafter: str) -> np.ndarray:
        """int32[N, L]: the rank of the next token at each transition."""
        ranks = self.ranks[drafter]
        return ranks if ranks.ndim == 2 else ranks[:, :, 0]

    def select(self, rows: np.ndarray) -> "Trace":
        """The trace of some rows, bool[N] or int64."""
        rows = np.arange(len(self.prompts))[rows]
        return replace(
            self, prompts=tuple(self.prompts[row] for row in rows), kinds=tuple(self.kinds[row] for row in rows),
            **{name: getattr(self, name)[rows] for name in BY_ROW},
            **{name: {key: array[rows] for key, array in getattr(self, name).items()} for name in BY_DRAFTER})


def join(parts: Sequence[Trace]) -> Trace:
    """The rows of several traces of the same drafters, padded to the longest row; `labels` is the first trace's."""
    def stacked(name: str, arrays: list[np.ndarray]) -> np.ndarray:
        if arrays[0].ndim == 1:
            return np.concatenate(arrays)
        width = max(array.shape[1] for array in arrays)
        return np.concatenate([
            np.pad(array, [(0, 0), (0, width - array.shape[1]), *[(0, 0)] * (array.ndim - 2)],
                   constant_values=PADDING.get(name, 0)) for array in arrays])

    return replace(
        parts[0], prompts=sum((part.prompts for part in parts), ()), kinds=sum((part.kinds for part in parts), ()),
        **{name: stacked(name, [getattr(part, name) for part in parts]) for name in BY_ROW},
        **{name: {key: stacked(name, [getattr(part, name)[key] for part in parts]) for key in getattr(parts[0], name)}
           for name in BY_DRAFTER})


def save(trace: Trace, path: str | Path, more: Mapping[str, np.ndarray] | None = None) -> None:
    """Writes a trace, and further arrays, to one compressed .npz file: small integers and half precision."""
    arrays = {name: getattr(trace, name) for name in BY_ROW} | dict(more or {})
    arrays |= {f"{kind}.{name}": array for kind in BY_DRAFTER for name, array in getattr(trace, kind).items()}
    small = {name: array.astype(_smallest_type(array)) for name, array in arrays.items()}
    stream = BytesIO()
    np.savez_compressed(stream, **small, **{name: np.array(json.dumps(getattr(trace, name))) for name in NAMES})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(Path(path), stream.getvalue())


def _smallest_type(array: np.ndarray) -> np.dtype:
    """The smallest dtype that holds an array's integers; half precision for other numbers."""
    if array.dtype.kind in "bf":
        return np.dtype(bool if array.dtype == bool else np.float16)
    return np.min_scalar_type(min(int(array.min(initial=0)), -1 - int(array.max(initial=0))))


def load(path: str | Path) -> Trace:
    """Reads a trace that `save` wrote; probabilities are rounded to half precision. FileNotFoundError if there is no
    file; ValueError if it is damaged or holds something else.
    """
    try:
        with np.load(path) as file:
            names = {name: json.loads(str(file[name])) for name in NAMES}
            read = {name: file[name].astype(INTEGERS.get(name, np.float32)) for name in BY_ROW}
            for kind in BY_DRAFTER:
                read[kind] = {name.removeprefix(f"{kind}."): file[name].astype(INTEGERS.get(kind, np.float32))
                              for name in file if name.startswith(f"{kind}.")}
        return Trace(**read, labels=names["labels"], prompts=tuple(names["prompts"]), kinds=tuple(names["kinds"]))
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged archive raises
        raise ValueError(f"{path} is no trace, damaged, or of an older version ({type(error).__name__}: {error}); "
                         "delete it, and record the trace again") from None


def loops(tokens: Sequence[int]) -> bool:
    """Whether a text loops, which makes every drafter's acceptance too high: more than a quarter of the 8-grams of its
    first 64 tokens stand earlier among these.
    """
    grams = [tuple(tokens[first : first + GRAM]) for first in range(min(len(tokens), LOOKED_AT) - GRAM + 1)]
    return len(grams) - len(set(grams)) > LOOPING_SHARE * len(grams)
