"""What the tables of the study of rules say: shares of bounds, gains between rules, and published figures beside."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.studies.rules import measure
from lib.studies.rules.measure import BOUND, OWN, label

KEYS = ["vocabulary", "seed", "language", "agreement", "temperature", "shape"]


def against_bounds(rows: pd.DataFrame, yardstick: str = "without_replacement") -> pd.DataFrame:
    """The rows of rules with the proposal that each was made for, with the bound of that proposal as `best` and the
    bound of the proposal `yardstick`, the same for all, as `yardstick`. What has no bounds is left out."""
    bounds = rows[rows["rule"] == BOUND].set_index([*KEYS, "proposal"])["accepted"]
    own = rows[rows["rule"].map(OWN).eq(rows["proposal"])]
    own = own.join(bounds.rename("best"), on=[*KEYS, "proposal"])
    own = own.join(bounds.xs(yardstick, level="proposal").rename("yardstick"), on=KEYS)
    return own.dropna(subset=["best", "yardstick"])


def gain(
    rows: pd.DataFrame, rule: tuple[str, str], base: tuple[str, str], by: Sequence[str], generator: np.random.Generator
) -> pd.DataFrame:
    """By how many per cent more tokens a round (rule, proposal) yields than the base, bonus token included, in each
    setting `by`, over what both were computed for; value, low, high from resampling languages."""
    both = rows[rows["label"].isin([label(*rule), label(*base)])]
    both = both[both.groupby(KEYS)["label"].transform("nunique") == 2]
    both = both.assign(tokens=1 + both["accepted"], length=_lengths(both))
    found = stats.compare(
        both, by, "label", label(*base), "tokens", "rounds", generator, relative=True, prompt="language"
    )
    found[["value", "low", "high"]] = 100 * (found[["value", "low", "high"]] - 1)
    return found


def by_path(rows: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """`gain` of block verification over the token-wise rule on chains, where both are given independent samples."""
    chains = rows[rows["shape"].str.startswith("chain:")]
    return gain(chains, ("block", "iid"), ("multi_step", "iid"), by, generator)


def lossy_beside(rows: pd.DataFrame, base: str = "traversal", proposal: str = "without_replacement") -> pd.DataFrame:
    """The rows of all lossy rules and of the lossless `base`, on drafts of one proposal."""
    return rows[(rows["proposal"] == proposal) & (~rows["lossless"] | rows["rule"].eq(base))]


def published(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """A row a published finding: what was found there, what here (in per cent more tokens a round), and whether the
    directions agree. rows: of the table "rules_exact", labelled."""
    trees = rows[~rows["shape"].str.startswith("chain:")]
    distinct, independent = ("without_replacement",) * 2, ("multi_step", "iid")
    residual = gain(trees, independent, ("naive", "iid"), ["temperature"], generator)["value"]
    replaced = gain(trees, distinct, independent, ["agreement", "shape", "temperature"], generator)["value"]
    chosen = gain(trees, distinct, ("naive", "top_k"), ["temperature"], generator)["value"]
    length = by_path(rows, ["length"], generator).sort_values("length")
    deepest = rows[_lengths(rows) == length["length"].max()]
    heat = by_path(deepest, ["temperature"], generator).sort_values("temperature")["value"]
    length = length["value"]
    found = [
        ("SpecInfer", "a residual beats naive sampling of the same draws", "26 to 28 %", residual, residual.min() > 0),
        ("Sequoia", "without replacement beats independent samples", "up to 65 % faster", replaced, replaced.min() > 0),
        ("Sequoia", "without replacement beats the best k, however hot", "up to 27 % faster", chosen, chosen.min() > 0),
        ("Sun et al. 2024", "deciding by path beats by token", "8 % at 8 tokens", length[-1:], length.iloc[-1] > 0),
        ("Weng et al. 2025", "by path gains more on longer paths", "1.2 to 3.8 %", length,
         length.is_monotonic_increasing),
        ("Weng et al. 2025", "by path gains more where it is hotter", "1.0 to 2.8 %", heat,
         heat.is_monotonic_increasing),
    ]
    return pd.DataFrame([
        {"from": who, "finding": what, "published": there, "here": _range(here), "agrees": "yes" if agrees else "no"}
        for who, what, there, here, agrees in found
    ])


def in_tokens(rows: pd.DataFrame, by: Sequence[str], generator: np.random.Generator, prompt: str) -> pd.DataFrame:
    """Expected tokens a round, the bonus token included, as text with its interval: a row each of the last of `by`."""
    found = stats.summarise(rows, list(by), "accepted", "rounds", generator, prompt=prompt)
    found["tokens"] = [f"{1 + row.value:.2f} [{1 + row.low:.2f}, {1 + row.high:.2f}]" for row in found.itertuples()]
    return found.pivot(index=by[-1], columns=list(by[:-1]), values="tokens")


def exact_rows(rows: pd.DataFrame, asked: dict) -> pd.DataFrame:
    """The rows of the table "rules_exact" whose seed and vocabulary a run asked for, labelled."""
    mine = rows[(rows["seed"] == asked["seed"]) & (rows["vocabulary"] == asked["vocabulary"])]
    return measure.labelled(mine)


def _lengths(rows: pd.DataFrame) -> pd.Series:
    """Tokens of a chain; 0 for other shapes."""
    return rows["shape"].where(rows["shape"].str.startswith("chain:"), ":0").str.partition(":")[2].astype(int)


def _range(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:+.1f} %" if len(values) == 1 else f"{low:+.1f} to {high:+.1f} %"
