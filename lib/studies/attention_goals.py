"""What the attention study set out to reach, beside what a run reached, and what stands in the way where it did not."""

import numpy as np
import pandas as pd

from lib.studies import attention_summary as summary
from lib.studies.baselines import OURS, SEQUENTIAL

LONG = 4096  # tokens of a prefix from which the goals for the roofline and the cache hold
FOLDED_OVER = {"dense mask": {"float32": 5.0, "bfloat16": 6.0}, "best sequential": {"float32": 4.3, "bfloat16": 6.5}}
OF_ROOFLINE = {64: {"float32": 0.85, "bfloat16": 0.60}, 8: {"float32": 0.60, "bfloat16": 0.45}}  # drafts, from 64 on
PREFIX_COST, BESIDE, AUTO_CELLS = 0.2, 0.05, 0.95


def goals(timings: pd.DataFrame, flushed: pd.DataFrame, roofline: pd.DataFrame, forward: pd.DataFrame) -> pd.DataFrame:
    """A row a goal that the run can judge: goal, asked, reached, met, and `why` where it was missed.

    timings, flushed, roofline, forward: the tables "attention", "attention_cold", "attention_roofline" and
    "attention_forward" of one run. Folded attention is judged where several query heads share a key head.
    """
    rows = [*_auto(timings), *_folded(timings), *_roofline(flushed, roofline), *_forward(forward)]
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
            mean, cells = means.loc[(other, dtype), ["mean", "cells"]]
            of = summary.timed(timings[timings["dtype"] == dtype]).drop_duplicates(summary.SETTING)
            rows.append((f"folded over {other}, {dtype}", f"{asked[dtype]:g} times", f"{mean:.1f} times",
                         mean >= asked[dtype], f"{cells:.0f} of {len(of)} cells: where it is slowest, at long prefixes "
                         "and drafts, there was no time or no memory for it"))
    return rows


def _roofline(flushed: pd.DataFrame, roofline: pd.DataFrame) -> list[tuple]:
    best = summary.with_best(flushed, OURS, "best")
    shares = summary.shares(best[best["alternative"] == "best"], roofline, "cold_ms")
    shares, rows = shares[shares["prefix"] >= LONG], []
    for draft, asked in OF_ROOFLINE.items():
        own = shares[shares["draft"] >= draft] if draft == max(OF_ROOFLINE) else shares[shares["draft"] == draft]
        for dtype in (name for name in asked if name in set(own["dtype"])):
            share = own.loc[own["dtype"] == dtype, "share"]
            rows.append((f"best backend, draft {draft}{' and more' if draft == max(OF_ROOFLINE) else ''}, {dtype}",
                         f"{asked[dtype]:.0%} of the roofline", f"{share.median():.0%} (median of {len(share)})",
                         share.median() >= asked[dtype], "the roofline counts the two products alone, not the "
                         "exponentials between them"))
    return rows


def _forward(forward: pd.DataFrame) -> list[tuple]:
    above, beside = summary.prefix_cost(forward).dropna(subset=["ratio"]), summary.beside_attention(forward)
    rows = [(f"a whole forward's prefix, {row.dtype}", f"{PREFIX_COST:g} of transformers' own path",
             f"{row.ratio:.2f}", row.ratio <= PREFIX_COST, "") for row in above.itertuples()]
    long = beside[beside["prefix"] >= LONG]
    return rows + [(f"append and keep, {row.dtype}", f"{BESIDE:.0%} of a layer's attention", f"{row.share:.1%}",
                    row.share <= BESIDE, "attention has become so fast that two small copies weigh more beside it")
                   for row in long.itertuples()]
