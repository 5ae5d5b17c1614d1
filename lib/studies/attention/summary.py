"""What the timing table says: ratios between alternatives, who wins where, and how many draft tokens are free."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from lib.studies.attention.problem import AUTO, CHAIN, NO_RIVALS

SETTING = ["dtype", "batch", "prefix", "draft"]  # what makes two rows comparable, with the heads of one run
BASE = "folded"
NEAR = 1.1  # times as long as the fastest is as good
TOLERANCE = 0.25  # a draft is free while its call takes at most 1 + TOLERANCE times that of one token


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a time, numbered afresh."""
    return rows[rows["repeats"] > 0].reset_index(drop=True)


def ratios(rows: pd.DataFrame, base: str = BASE) -> pd.DataFrame:
    """Each timed row with `ratio`: its median over that of `base` in the same cell (2 = twice the time)."""
    own = timed(rows)
    reference = own.loc[own["alternative"] == base, [*SETTING, "median_ms"]]
    joined = own.merge(reference, on=SETTING, suffixes=("", "_base"))
    return joined.assign(ratio=joined["median_ms"] / joined["median_ms_base"])


def geometric_means(rows: pd.DataFrame, base: str = BASE) -> pd.DataFrame:
    """By dtype and alternative: geometric mean, smallest and largest ratio to `base`, and the number of cells."""
    groups = ratios(rows, base).groupby(["dtype", "alternative"])["ratio"]
    return groups.agg(
        mean=lambda ratio: float(np.exp(np.log(ratio).mean())), smallest="min", largest="max", cells="size"
    ).reset_index()


def with_best(rows: pd.DataFrame, names: Iterable[str], label: str) -> pd.DataFrame:
    """The rows, and for each cell one more named `label`: the fastest of the alternatives `names` that were timed."""
    own = timed(rows)
    own = own[own["alternative"].isin(list(names))]
    best = own.loc[own.groupby(SETTING)["median_ms"].idxmin()].assign(alternative=label)
    return pd.concat([rows, best], ignore_index=True)


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest alternative of each cell, and `lead`: how many times longer the second took (NaN without one)."""
    own = timed(rows)
    ordered = own[~own["alternative"].isin(NO_RIVALS)].sort_values([*SETTING, "median_ms"], ignore_index=True)
    groups = ordered.groupby(SETTING, sort=False)
    best = groups.head(1).set_index(SETTING)
    second = groups["median_ms"].nth(1)
    second.index = pd.MultiIndex.from_frame(ordered.loc[second.index, SETTING])
    return best.assign(lead=second / best["median_ms"]).reset_index()


def growth(rows: pd.DataFrame, alternative: str = BASE) -> pd.DataFrame:
    """Times of one alternative with `growth`: median over that of the run's shortest draft, all else the same.

    Where that one or all longer ones were skipped there is nothing to grow from, or to: left out, if others are there.
    """
    own, same = timed(rows), ["dtype", "batch", "prefix"]
    own = own[own["alternative"] == alternative].sort_values("draft")
    drafts = own.groupby(same)["draft"]
    whole = drafts.transform("min").eq(rows["draft"].min()) & drafts.transform("size").gt(1)
    own = own[whole] if whole.any() else own
    return own.assign(growth=own["median_ms"] / own.groupby(same)["median_ms"].transform("first"))


def free_until(rows: pd.DataFrame, tolerance: float = TOLERANCE, alternative: str = BASE) -> pd.DataFrame:
    """By dtype, batch and prefix: `free`, the draft up to which a call takes at most 1 + tolerance times one token.

    Interpolated between measured drafts, linearly in the logarithms of length and time; the longest measured draft if
    none takes longer (`beyond` is then true).
    """
    return pd.DataFrame(
        {"dtype": dtype, "batch": batch, "prefix": prefix, **_crossing(own, 1 + tolerance)}
        for (dtype, batch, prefix), own in growth(rows, alternative).groupby(["dtype", "batch", "prefix"])
    )


def _crossing(own: pd.DataFrame, limit: float) -> dict[str, object]:
    draft, times = np.log(own["draft"].to_numpy(float)), np.log(own["growth"].to_numpy(float))
    over = np.flatnonzero(times > np.log(limit))
    if not len(over):
        return {"free": float(np.exp(draft[-1])), "beyond": True}
    after = over[0]  # at least 1: the shortest draft has growth 1
    share = (np.log(limit) - times[after - 1]) / (times[after] - times[after - 1])
    return {"free": float(np.exp(draft[after - 1] + share * (draft[after] - draft[after - 1]))), "beyond": False}


def skipped(rows: pd.DataFrame) -> pd.DataFrame:
    """How many cells of each alternative were skipped, by the kind of reason (its first word)."""
    left_out = rows[rows["repeats"] == 0]
    kinds = left_out["skipped"].str.split(":").str[0].rename("reason")
    return left_out.groupby(["alternative", kinds]).size().rename("cells").reset_index()


def regret(rows: pd.DataFrame, name: str = AUTO) -> pd.DataFrame:
    """By cell: `ratio`, the median of `name` over the fastest alternative's; `within`: whether it is at most NEAR.

    A cell in which nothing else was timed says nothing.
    """
    best = winners(rows).set_index(SETTING)["median_ms"].rename("best_ms")
    own = timed(rows)
    own = own[own["alternative"] == name].join(best, on=SETTING, how="inner")
    ratio = own["median_ms"] / own["best_ms"]
    return own.assign(ratio=ratio, within=ratio <= NEAR).reset_index(drop=True)


def tree_tax(rows: pd.DataFrame) -> pd.DataFrame:
    """By cell with two nodes or more: `ratio`, the time of the tree over that of a chain of as many nodes."""
    own = ratios(rows[rows["draft"] > 1], CHAIN)
    return own[own["alternative"] == AUTO].reset_index(drop=True)


def shares(rows: pd.DataFrame, roofline: pd.DataFrame, column: str = "warm_ms") -> pd.DataFrame:
    """The timed rows with `least_ms` from the table "attention_roofline", `share` = least_ms / median_ms, and the
    cell's `intensity` (operations a byte) and `rate` (its operations a second, in that time).
    """
    cell = [*SETTING, "query_heads", "kv_heads", "head_dim", "shape"]
    least = roofline.rename(columns={column: "least_ms", "bytes": "least_bytes", "operations": "least_operations"})
    own = timed(rows).merge(least[[*cell, "least_ms", "least_bytes", "least_operations"]], on=cell)
    return own.assign(
        share=own["least_ms"] / own["median_ms"],
        intensity=own["least_operations"] / own["least_bytes"],
        rate=own["least_operations"] / (own["median_ms"] / 1e3),
    )


def prefix_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """From table "attention_forward", by dtype: what a forward behind its prefix costs above one without (ms), tree and
    transformers, and `ratio`, the first over the second; NaN where one could not be timed.
    """
    own = rows[rows["what"].str.startswith("forward")]
    wide = own.pivot(index=["dtype", "what"], columns="prefix", values="median_ms")
    above = (wide[wide.columns.max()] - wide[wide.columns.min()]).unstack("what")
    above.columns = [name.removeprefix("forward, ") for name in above.columns]
    return above.assign(ratio=above["tree"] / above["transformers"]).reset_index()


def beside_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """From the same table, by dtype and prefix: times of one layer's attention, append, keep and concatenate in ms,
    and `share`, append + keep over attention.
    """
    own = rows[~rows["what"].str.startswith("forward")]
    wide = own.pivot(index=["dtype", "prefix", "draft"], columns="what", values="median_ms")
    return wide.assign(share=(wide["append"] + wide["keep"]) / wide["attention"]).reset_index()
