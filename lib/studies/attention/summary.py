"""What the attention tables say: ratios of alternatives, the fastest in each cell, free draft nodes, the goals.

`goals` compares a run with what the study set out to reach, and says what prevents the goals that are missed.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from lib.lab import provenance, tables
from lib.studies.attention.baselines import AUTO, CHAIN, COMPILED, NO_RIVALS, OURS, SEQUENTIAL

SETTING = ["dtype", "batch", "prefix", "draft"]  # two rows of one run with equal values are comparable
BASE = "folded"
NEAR = 1.1  # times the fastest time counts as equally fast
TOLERANCE = 0.25  # a draft is free while its call takes at most 1 + TOLERANCE times as long as one token's

# The goals: ratios of times, shares of the roofline, and bounds.
LONG = 4096  # tokens of prefix; the goals for the roofline and the cache hold from there on
FOLDED_OVER = {"dense mask": {"float32": 5.0, "bfloat16": 6.0}, "best sequential": {"float32": 4.3, "bfloat16": 6.5}}
# By draft; the largest stands for longer ones too.
OF_ROOFLINE = {64: {"float32": 0.85, "bfloat16": 0.60}, 8: {"float32": 0.60, "bfloat16": 0.45}}
OF_ROOFLINE_ALONE = {64: {"float32": 0.75, "bfloat16": 0.45}}  # where no query heads share a key head
PREFIX_COST, BESIDE, AUTO_CELLS, TREE_TAX = 0.2, 0.05, 0.95, 1.05
GPU_BYTES, GPU_ROWS = 256e6, 128  # a GPU's goals hold for at least so many bytes and at most so many rows
READS, SIXTEEN, OVER_OTHERS = 0.8, 1.1, {COMPILED: 1.3, "dense mask": 5.0}


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a time, renumbered."""
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
    return groups.agg(mean=lambda ratio: float(np.exp(np.log(ratio).mean())), smallest="min", largest="max",
                      cells="size").reset_index()


def with_best(rows: pd.DataFrame, names: Iterable[str], label: str) -> pd.DataFrame:
    """The rows, and for each cell a further one named `label`: the fastest timed alternative of `names`."""
    own = timed(rows)
    own = own[own["alternative"].isin(list(names))]
    best = own.loc[own.groupby(SETTING)["median_ms"].idxmin()].assign(alternative=label)
    return pd.concat([rows, best], ignore_index=True)


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest alternative of each cell, and `lead`: the second's time over the fastest's (NaN without a second)."""
    own = timed(rows)
    ordered = own[~own["alternative"].isin(NO_RIVALS)].sort_values([*SETTING, "median_ms"], ignore_index=True)
    groups = ordered.groupby(SETTING, sort=False)
    best = groups.head(1).set_index(SETTING)
    second = groups["median_ms"].nth(1)
    second.index = pd.MultiIndex.from_frame(ordered.loc[second.index, SETTING])
    return best.assign(lead=second / best["median_ms"]).reset_index()


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


def free_until(rows: pd.DataFrame, tolerance: float = TOLERANCE, alternative: str = BASE) -> pd.DataFrame:
    """By dtype, batch and prefix: `free`, the draft up to which a call takes at most 1 + tolerance times one token.

    Interpolated between measured drafts, linearly in the logarithms of length and time. If no measured draft takes
    longer, the longest one, and `beyond` is true.
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
    after = over[0]  # at least 1, since the shortest draft has growth 1
    share = (np.log(limit) - times[after - 1]) / (times[after] - times[after - 1])
    return {"free": float(np.exp(draft[after - 1] + share * (draft[after] - draft[after - 1]))), "beyond": False}


def skipped(rows: pd.DataFrame) -> pd.DataFrame:
    """The number of skipped cells of each alternative, by the kind of reason (its first word)."""
    left_out = rows[rows["repeats"] == 0]
    kinds = left_out["skipped"].str.split(":").str[0].rename("reason")
    return left_out.groupby(["alternative", kinds]).size().rename("cells").reset_index()


def regret(rows: pd.DataFrame, name: str = AUTO) -> pd.DataFrame:
    """By cell: `ratio`, the median of `name` over the fastest alternative's; `within`: whether it is at most NEAR.

    Cells in which no other alternative was timed are left out.
    """
    best = winners(rows).set_index(SETTING)["median_ms"].rename("best_ms")
    own = timed(rows)
    own = own[own["alternative"] == name].join(best, on=SETTING, how="inner")
    ratio = own["median_ms"] / own["best_ms"]
    return own.assign(ratio=ratio, within=ratio <= NEAR).reset_index(drop=True)


def tree_tax(rows: pd.DataFrame) -> pd.DataFrame:
    """By cell with two or more nodes: `ratio`, the time of the tree over that of a chain of as many nodes."""
    own = ratios(rows[rows["draft"] > 1], CHAIN)
    return own[own["alternative"] == AUTO].reset_index(drop=True)


def shares(rows: pd.DataFrame, roofline: pd.DataFrame, column: str = "warm_ms") -> pd.DataFrame:
    """The timed rows with `least_ms` from the table "attention_roofline", `share` = least_ms / median_ms, and the
    cell's `intensity` (operations per byte) and `rate` (operations per second of the measured time).
    """
    cell = [*SETTING, "query_heads", "kv_heads", "head_dim", "shape"]
    least = roofline.rename(columns={column: "least_ms", "bytes": "least_bytes", "operations": "least_operations"})
    own = timed(rows).merge(least[[*cell, "least_ms", "least_bytes", "least_operations"]], on=cell)
    return own.assign(share=own["least_ms"] / own["median_ms"], intensity=own["least_operations"] / own["least_bytes"],
                      rate=own["least_operations"] / (own["median_ms"] / 1e3))


def prefix_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """From table "attention_forward", by dtype: the milliseconds that a prefix adds to a forward pass, for tree and
    transformers, and `ratio`, the first over the second; NaN where one could not be timed.
    """
    own = rows[rows["what"].str.startswith("forward")]
    wide = own.pivot(index=["dtype", "what"], columns="prefix", values="median_ms")
    above = (wide[wide.columns.max()] - wide[wide.columns.min()]).unstack("what")
    above.columns = [name.removeprefix("forward, ") for name in above.columns]
    return above.assign(ratio=above["tree"] / above["transformers"]).reset_index()


def beside_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """From the same table, by dtype and prefix: milliseconds of one layer's attention, append, keep and concatenate,
    and `share`, append + keep over attention.
    """
    own = rows[~rows["what"].str.startswith("forward")]
    wide = own.pivot(index=["dtype", "prefix", "draft"], columns="what", values="median_ms")
    return wide.assign(share=(wide["append"] + wide["keep"]) / wide["attention"]).reset_index()


def goals(timings: pd.DataFrame, flushed: pd.DataFrame, others: pd.DataFrame, roofline: pd.DataFrame,
          forward: pd.DataFrame, peaks: pd.DataFrame) -> pd.DataFrame:
    """One row per goal that the run can judge: goal, asked, reached, met, and `why` where it was missed.

    timings, flushed, others, roofline, forward, peaks: the tables "attention", "attention_cold", "attention_heads",
        "attention_roofline", "attention_forward" and "peaks" of one run.

    Folded attention is judged where several query heads share a key head; a GPU has goals of its own.
    """
    products = peaks.set_index("what")["value"].filter(like="products ").rename(lambda name: name.split()[-1])
    rows = _auto(timings)
    if peaks["device"].iloc[0] == "cuda":
        rows += _gpu(timings, roofline)
    else:
        rows += [*_folded(timings), *_roofline(flushed, roofline, OF_ROOFLINE, products),
                 *_roofline(others, roofline, OF_ROOFLINE_ALONE, products)]
    rows += _forward(forward)
    judged = pd.DataFrame(rows, columns=["goal", "asked", "reached", "met", "why"]).astype({"met": bool})
    return judged.assign(why=judged["why"].where(~judged["met"], ""))


def goals_of(run_dir: str | Path) -> pd.DataFrame:
    """The goals of a run, from its tables. FileNotFoundError where one is missing."""
    names = ("attention", "attention_cold", "attention_heads", "attention_roofline", "attention_forward", "peaks")
    return goals(*(tables.read(run_dir, name) for name in names))


def goals_by_machine(run_dirs: Iterable[str | Path]) -> pd.DataFrame:
    """One row per goal, one column per run with its machine: what it reached, marked where that misses the goal."""
    columns = []
    for run_dir in run_dirs:
        run, judged = provenance.read(run_dir), goals_of(run_dir).set_index(["goal", "asked"])
        machine = provenance.machine_of(run, "03_attention_timing")
        units = "" if machine["matrix_units"] == "none" else f", {machine['matrix_units']}"
        reached = judged["reached"].where(judged["met"], judged["reached"] + " (missed)")
        columns.append(reached.rename(f"{run['run']}: {machine.get('gpu', machine['processor'])}{units}"))
    return pd.concat(columns, axis=1, sort=False).fillna("")


def noise(timings: pd.DataFrame) -> tuple[float, int]:
    """The share of cells in which two timings of one kernel differ by more than a tenth, and the number of cells.

    These are the cells in which `auto` was so much faster than folded attention that it must be the one-pass kernel.
    """
    wide = timed(timings).pivot_table(index=SETTING, columns="alternative", values="median_ms")
    if not {AUTO, BASE, "onepass"} <= set(wide):
        return float("nan"), 0
    same = wide[wide[BASE] > 1.25 * wide[AUTO]].dropna(subset=["onepass"])
    apart = np.exp(np.abs(np.log(same[AUTO] / same["onepass"])))
    return float((apart > NEAR).mean()), len(same)


def _auto(timings: pd.DataFrame) -> list[tuple]:
    judged, (apart, cells) = regret(timings), noise(timings)
    if judged.empty:
        return []
    within = float(judged["within"].mean())
    why = f"two timings of the same kernel differ by more in {apart:.0%} of {cells} cells" if cells else ""
    return [("auto within a tenth of the fastest", f"{AUTO_CELLS:.0%} of cells", f"{within:.0%} of {len(judged)}",
             within >= AUTO_CELLS, why)]


def _gpu(timings: pd.DataFrame, roofline: pd.DataFrame) -> list[tuple]:
    """The goals of a GPU: to read many keys for few rows at its bandwidth, and to be faster than the alternatives."""
    best = with_best(timings, [name for name in OURS if name != COMPILED], "best")
    own = shares(best[best["alternative"] == "best"], roofline)
    few = own["query_heads"] / own["kv_heads"] * own["draft"] <= GPU_ROWS
    reading = own[few & (own["least_bytes"] >= GPU_BYTES)]
    times = reading.pivot_table(index=["dtype", "batch", "prefix"], columns="draft", values="median_ms")
    grown = (times[16] / times[1]).dropna() if {1, 16} <= set(times) else pd.Series(dtype=float)
    tax = tree_tax(timings).merge(reading[[*SETTING]])["ratio"]
    leads = ratios(best, "best").set_index("alternative")["ratio"]
    rows = []
    if len(reading):
        share = reading["share"]
        rows.append((f"many keys for at most {GPU_ROWS} rows a key head", f"{READS:.0%} of the bandwidth",
                     f"{share.median():.0%} ({_spread(share, '.0%')})", share.median() >= READS,
                     "each call makes its mask, while the layers of a model share one"))
    for goal, asked, ratio in (("a tree over a chain of as many nodes, there", TREE_TAX, tax),
                               ("16 nodes over one, there", SIXTEEN, grown)):
        if len(ratio):
            rows.append((goal, f"at most {asked:g} times", f"{_mean(ratio):.2f} times ({_spread(ratio, '.2f')})",
                         _mean(ratio) <= asked, "more rows need more arithmetic and more masks for the same keys"))
    for other, asked in OVER_OTHERS.items():
        if other in leads.index:
            lead = leads[[other]]
            rows.append((f"the best form over {other}", f"{asked:g} times",
                         f"{_mean(lead):.1f} times ({_spread(lead, '.1f')})", _mean(lead) >= asked,
                         "short prefixes count too, and their calls fill no GPU"))
    return rows


def _mean(values: pd.Series) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(values).mean()))


def _spread(values: pd.Series, form: str) -> str:
    if len(values) == 1:
        return "1 cell"
    return f"{len(values)} cells, {values.min():{form}} to {values.max():{form}}"


def _folded(timings: pd.DataFrame) -> list[tuple]:
    grouped = with_best(timings[timings["query_heads"] > timings["kv_heads"]], SEQUENTIAL, "best sequential")
    means = geometric_means(grouped).set_index(["alternative", "dtype"])
    rows = []
    for other, asked in FOLDED_OVER.items():
        for dtype in (name for name in asked if (other, name) in means.index):
            mean = means.loc[(other, dtype), "mean"]
            rows.append((f"folded over {other}, {dtype}", f"{asked[dtype]:g} times", f"{mean:.1f} times",
                         mean >= asked[dtype], _by_draft(grouped, other, dtype)))
    return rows


def _by_draft(rows: pd.DataFrame, other: str, dtype: str) -> str:
    """The mean ratio for each draft length."""
    own = ratios(rows[(rows["dtype"] == dtype) & rows["alternative"].isin([other, BASE])])
    own = own[own["alternative"] == other]
    means = np.exp(np.log(own["ratio"]).groupby(own["draft"]).mean())
    return "by draft length " + ", ".join(f"{draft}: {mean:.1f}" for draft, mean in means.items())


def _roofline(flushed: pd.DataFrame, roofline: pd.DataFrame, asked: dict, products: pd.Series) -> list[tuple]:
    best = with_best(flushed, OURS, "best")
    long = shares(best[best["alternative"] == "best"], roofline, "cold_ms")
    long, rows = long[long["prefix"] >= LONG], []
    for draft, by_dtype in asked.items():
        last = draft == max(asked)
        own = long[long["draft"] >= draft] if last else long[long["draft"] == draft]
        for dtype in (name for name in by_dtype if name in set(own["dtype"])):
            cells = own[own["dtype"] == dtype]
            heads = "{query_heads}/{kv_heads} heads of {head_dim}".format_map(cells.iloc[0])
            of_products = (cells["rate"] / products[dtype]).median()
            reason = ("the roof includes neither the exponentials nor the moving of numbers to the units" if last else
                      "a core waits for memory line by line, and for few lines at once")
            rows.append((f"{heads}, draft {draft}{' and more' if last else ''}, {dtype}",
                         f"{by_dtype[dtype]:.0%} of the roofline",
                         f"{cells['share'].median():.0%} ({_spread(cells['share'], '.0%')})",
                         cells["share"].median() >= by_dtype[dtype],
                         f"{of_products:.0%} of the rate of the fastest product of matrices; {reason}"))
    return rows


def _forward(forward: pd.DataFrame) -> list[tuple]:
    above, beside = prefix_cost(forward).dropna(subset=["ratio"]), beside_attention(forward)
    rows = [(f"a whole forward's prefix, {row.dtype}", f"{PREFIX_COST:g} of transformers' own path",
             f"{row.ratio:.3f}", row.ratio <= PREFIX_COST,
             f"{row.tree:.0f} ms above a forward pass without one, against {row.transformers:.0f} ms")
            for row in above.itertuples()]
    long = beside[beside["prefix"] >= LONG]
    return rows + [(f"append and keep, {row.dtype}", f"{BESIDE:.0%} of a layer's attention", f"{row.share:.1%}",
                    row.share <= BESIDE, "attention has become so fast that two small copies weigh more beside it")
                   for row in long.itertuples()]
