"""What the attention tables say: ratios of alternatives, the fastest in each cell, free draft nodes, the roofline."""

import numpy as np
import pandas as pd

from lib.studies.attention.baselines import AUTO

SETTING = ["dtype", "batch", "prefix", "draft"]  # two rows of one run with equal values are comparable
BASE = "folded"
NEAR = 1.1  # times the fastest time counts as equally fast
TOLERANCE = 0.25  # a draft is free while its call takes at most 1 + TOLERANCE times as long as one token's


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a time, renumbered."""
    return rows[rows["repeats"] > 0].reset_index(drop=True)


def geometric_means(rows: pd.DataFrame) -> pd.DataFrame:
    """By alternative and dtype: the geometric mean of its times over those of `BASE` in the same cells."""
    own = timed(rows)
    base = own.loc[own["alternative"] == BASE, [*SETTING, "median_ms"]]
    joined = own.merge(base, on=SETTING, suffixes=("", "_base"))
    joined["log"] = np.log(joined["median_ms"] / joined["median_ms_base"])
    return np.exp(joined.pivot_table(index="alternative", columns="dtype", values="log"))


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest alternative of each cell."""
    own = timed(rows[rows["alternative"] != AUTO])
    return own.loc[own.groupby(SETTING)["median_ms"].idxmin()].reset_index(drop=True)


def growth(rows: pd.DataFrame, alternative: str = BASE) -> pd.DataFrame:
    """Times of one alternative with `growth`: median over that of the run's shortest draft, all else the same.

    Settings in which the shortest draft or all longer ones were skipped are left out, if there are others.
    """
    own, same = timed(rows), ["dtype", "batch", "prefix"]
    own = own[own["alternative"] == alternative].sort_values("draft")
    drafts = own.groupby(same)["draft"]
    whole = drafts.transform("min").eq(rows["draft"].min()) & drafts.transform("size").gt(1)
    own = own[whole] if whole.any() else own
    return own.assign(growth=own["median_ms"] / own.groupby(same)["median_ms"].transform("first"))


def free_until(rows: pd.DataFrame, alternative: str = BASE) -> pd.DataFrame:
    """By dtype, batch and prefix: `free`, the draft up to which a call takes at most 1 + TOLERANCE times one token.

    Interpolated between measured drafts, linearly in the logarithms of length and time. If no measured draft takes
    longer, the longest one.
    """
    return pd.DataFrame(
        {"dtype": dtype, "batch": batch, "prefix": prefix, "free": _crossing(own)}
        for (dtype, batch, prefix), own in growth(rows, alternative).groupby(["dtype", "batch", "prefix"])
    )


def _crossing(own: pd.DataFrame) -> float:
    draft, times = np.log(own["draft"].to_numpy(float)), np.log(own["growth"].to_numpy(float))
    limit = np.log(1 + TOLERANCE)
    over = np.flatnonzero(times > limit)
    if not len(over):
        return float(np.exp(draft[-1]))
    pair = slice(over[0] - 1, over[0] + 1)  # over[0] is at least 1, since the shortest draft has growth 1
    return float(np.exp(np.interp(limit, times[pair], draft[pair])))


def regret(rows: pd.DataFrame) -> pd.DataFrame:
    """By cell: `ratio`, the median of `auto` over the fastest alternative's; `within`: whether it is at most NEAR.

    Cells in which no other alternative was timed are left out.
    """
    best = winners(rows).set_index(SETTING)["median_ms"].rename("best_ms")
    own = timed(rows)
    own = own[own["alternative"] == AUTO].join(best, on=SETTING, how="inner")
    ratio = own["median_ms"] / own["best_ms"]
    return own.assign(ratio=ratio, within=ratio <= NEAR).reset_index(drop=True)


def shares(rows: pd.DataFrame, roofline: pd.DataFrame) -> pd.DataFrame:
    """The timed rows with the cell's `bytes`, `operations` and `least_ms` from the table "attention_roofline", `share`
    = least_ms / median_ms, `intensity` (operations per byte) and `rate` (operations per second of the measured time).
    """
    own = timed(rows).merge(roofline, on=[*SETTING, "query_heads", "kv_heads", "head_dim", "shape"])
    return own.assign(share=own["least_ms"] / own["median_ms"], intensity=own["operations"] / own["bytes"],
                      rate=own["operations"] / (own["median_ms"] / 1e3))
