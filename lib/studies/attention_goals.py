"""What the attention study set out to reach, beside what a run reached, and what stands in the way where it did not."""

import numpy as np
import pandas as pd

from lib.studies import attention_summary as summary
from lib.studies.baselines import OURS, SEQUENTIAL

LONG = 4096  # tokens of a prefix from which the goals for the roofline and the cache hold
FOLDED_OVER = {"dense mask": {"float32": 5.0, "bfloat16": 6.0}, "best sequential": {"float32": 4.3, "bfloat16": 6.5}}
OF_ROOFLINE = {64: {"float32": 0.85, "bfloat16": 0.60}, 8: {"float32": 0.60, "bfloat16": 0.45}}  # drafts, from 64 on
OF_ROOFLINE_ALONE = {64: {"float32": 0.75, "bfloat16": 0.45}}  # where no query heads share a key head
PREFIX_COST, BESIDE, AUTO_CELLS = 0.2, 0.05, 0.95


def goals(
    timings: pd.DataFrame, flushed: pd.DataFrame, others: pd.DataFrame, roofline: pd.DataFrame, forward: pd.DataFrame,
    peaks: pd.DataFrame,
) -> pd.DataFrame:
    """A row a goal that the run can judge: goal, asked, reached, met, and `why` where it was missed.

    timings, flushed, others, roofline, forward, peaks: the tables "attention", "attention_cold", "attention_heads",
    "attention_roofline", "attention_forward" and "peaks" of one run. Folded attention is judged where several query
    heads share a key head.
    """
    products = peaks.set_index("what")["value"].filter(like="products ").rename(lambda name: name.split()[-1])
    rows = [*_auto(timings), *_folded(timings), *_roofline(flushed, roofline, OF_ROOFLINE, products),
            *_roofline(others, roofline, OF_ROOFLINE_ALONE, products), *_forward(forward)]
    found = pd.DataFrame(rows, columns=["goal", "asked", "reached", "met", "why"]).astype({"met": bool})
    return found.assign(why=found["why"].where(~found["met"], ""))


def twice(timings: pd.DataFrame) -> tuple[float, int]:
    """In which share of cells two timings of one kernel lie more than a tenth apart, and of how many cells.

    They are those in which `auto` was so much faster than folded attention that it was the one-pass kernel.
    """
    wide = summary.timed(timings).pivot_table(index=summary.SETTING, columns="alternative", values="median_ms")
    if not {summary.AUTO, summary.BASE, "onepass"} <= set(wide):
        return float("nan"), 0
    same = wide[wide[summary.BASE] > 1.25 * wide[summary.AUTO]].dropna(subset=["onepass"])
    apart = np.exp(np.abs(np.log(same[summary.AUTO] / same["onepass"])))
    return float((apart > summary.NEAR).mean()), len(same)


def _auto(timings: pd.DataFrame) -> list[tuple]:
    judged, (noise, cells) = summary.regret(timings), twice(timings)
    if judged.empty:
        return []
    within = float(judged["within"].mean())
    why = f"two timings of one and the same kernel lie further apart in {noise:.0%} of {cells} cells" if cells else ""
    return [("auto within a tenth of the fastest", f"{AUTO_CELLS:.0%} of cells", f"{within:.0%} of {len(judged)}",
             within >= AUTO_CELLS, why)]


def _folded(timings: pd.DataFrame) -> list[tuple]:
    timings = timings[timings["query_heads"] > timings["kv_heads"]]
    with_best = summary.with_best(timings, SEQUENTIAL, "best sequential")
    means = summary.geometric_means(with_best).set_index(["alternative", "dtype"])
    rows = []
    for other, asked in FOLDED_OVER.items():
        for dtype in (name for name in asked if (other, name) in means.index):
            mean = means.loc[(other, dtype), "mean"]
            rows.append((f"folded over {other}, {dtype}", f"{asked[dtype]:g} times", f"{mean:.1f} times",
                         mean >= asked[dtype], _by_draft(with_best, other, dtype)))
    return rows


def _by_draft(rows: pd.DataFrame, other: str, dtype: str) -> str:
    """Where the mean of the ratios comes from."""
    own = summary.ratios(rows[(rows["dtype"] == dtype) & rows["alternative"].isin([other, summary.BASE])])
    own = own[own["alternative"] == other]
    means = np.exp(np.log(own["ratio"]).groupby(own["draft"]).mean())
    return "by draft length " + ", ".join(f"{draft}: {mean:.1f}" for draft, mean in means.items())


def _roofline(flushed: pd.DataFrame, roofline: pd.DataFrame, goals: dict, products: pd.Series) -> list[tuple]:
    best = summary.with_best(flushed, OURS, "best")
    shares = summary.shares(best[best["alternative"] == "best"], roofline, "cold_ms")
    shares, rows = shares[shares["prefix"] >= LONG], []
    for draft, asked in goals.items():
        own = shares[shares["draft"] >= draft] if draft == max(goals) else shares[shares["draft"] == draft]
        for dtype in (name for name in asked if name in set(own["dtype"])):
            these = own[own["dtype"] == dtype]
            heads = "{query_heads}/{kv_heads} heads of {head_dim}".format_map(these.iloc[0])
            of_products = (these["rate"] / products[dtype]).median()
            rows.append((f"{heads}, draft {draft}{' and more' if draft == max(goals) else ''}, {dtype}",
                         f"{asked[dtype]:.0%} of the roofline",
                         f"{these['share'].median():.0%} (median of {len(these)})",
                         these["share"].median() >= asked[dtype],
                         f"{of_products:.0%} of the rate of the fastest product of matrices; the roof counts neither "
                         "the exponentials nor what brings numbers to the units"))
    return rows


def _forward(forward: pd.DataFrame) -> list[tuple]:
    above, beside = summary.prefix_cost(forward).dropna(subset=["ratio"]), summary.beside_attention(forward)
    rows = [(f"a whole forward's prefix, {row.dtype}", f"{PREFIX_COST:g} of transformers' own path",
             f"{row.ratio:.2f}", row.ratio <= PREFIX_COST, "") for row in above.itertuples()]
    long = beside[beside["prefix"] >= LONG]
    return rows + [(f"append and keep, {row.dtype}", f"{BESIDE:.0%} of a layer's attention", f"{row.share:.1%}",
                    row.share <= BESIDE, "attention has become so fast that two small copies weigh more beside it")
                   for row in long.itertuples()]
