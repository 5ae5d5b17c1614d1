"""What the attention study set out to reach, beside what a run reached, and what stands in the way where it did not."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from lib.lab import provenance, tables
from lib.studies.attention import summary as summary
from lib.studies.attention.baselines import COMPILED, OURS, SEQUENTIAL

LONG = 4096  # tokens of a prefix from which the goals for the roofline and the cache hold
FOLDED_OVER = {"dense mask": {"float32": 5.0, "bfloat16": 6.0}, "best sequential": {"float32": 4.3, "bfloat16": 6.5}}
OF_ROOFLINE = {64: {"float32": 0.85, "bfloat16": 0.60}, 8: {"float32": 0.60, "bfloat16": 0.45}}  # drafts, from 64 on
OF_ROOFLINE_ALONE = {64: {"float32": 0.75, "bfloat16": 0.45}}  # where no query heads share a key head
PREFIX_COST, BESIDE, AUTO_CELLS, TREE_TAX = 0.2, 0.05, 0.95, 1.05
GPU_BYTES, GPU_ROWS = 256e6, 128  # keys and values of at least so many bytes, read for at most so many rows
READS, SIXTEEN, OVER_OTHERS = 0.8, 1.1, {COMPILED: 1.3, "dense mask": 5.0}


def goals(
    timings: pd.DataFrame, flushed: pd.DataFrame, others: pd.DataFrame, roofline: pd.DataFrame, forward: pd.DataFrame,
    peaks: pd.DataFrame,
) -> pd.DataFrame:
    """A row a goal that the run can judge: goal, asked, reached, met, and `why` where it was missed.

    timings, flushed, others, roofline, forward, peaks: the tables "attention", "attention_cold", "attention_heads",
    "attention_roofline", "attention_forward" and "peaks" of one run. Folded attention is judged where several query
    heads share a key head; a GPU by goals of its own.
    """
    products = peaks.set_index("what")["value"].filter(like="products ").rename(lambda name: name.split()[-1])
    rows = _auto(timings)
    if peaks["device"].iloc[0] == "cuda":
        rows += _gpu(timings, roofline)
    else:
        rows += [*_folded(timings), *_roofline(flushed, roofline, OF_ROOFLINE, products),
                 *_roofline(others, roofline, OF_ROOFLINE_ALONE, products)]
    rows += _forward(forward)
    found = pd.DataFrame(rows, columns=["goal", "asked", "reached", "met", "why"]).astype({"met": bool})
    return found.assign(why=found["why"].where(~found["met"], ""))


def of_run(run_dir: str | Path) -> pd.DataFrame:
    """The goals of a run by its tables. FileNotFoundError where one is missing."""
    names = ("attention", "attention_cold", "attention_heads", "attention_roofline", "attention_forward", "peaks")
    return goals(*(tables.read(run_dir, name) for name in names))


def by_machine(run_dirs: Iterable[str | Path]) -> pd.DataFrame:
    """A row a goal, a column a run, named by it and its machine: what it reached, marked where that was too little."""
    columns = []
    for run_dir in run_dirs:
        run, found = provenance.read(run_dir), of_run(run_dir).set_index(["goal", "asked"])
        machine = provenance.machine_of(run, "03_attention_timing")
        units = "" if machine["matrix_units"] == "none" else f", {machine['matrix_units']}"
        told = found["reached"].where(found["met"], found["reached"] + " (missed)")
        columns.append(told.rename(f"{run['run']}: {machine.get('gpu', machine['processor'])}{units}"))
    return pd.concat(columns, axis=1, sort=False).fillna("")


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


def _gpu(timings: pd.DataFrame, roofline: pd.DataFrame) -> list[tuple]:
    """What a GPU is asked for: to read many keys for few rows as fast as it can, and leads over the other forms."""
    best = summary.with_best(timings, [name for name in OURS if name != COMPILED], "best")
    shares = summary.shares(best[best["alternative"] == "best"], roofline)
    few = shares["query_heads"] / shares["kv_heads"] * shares["draft"] <= GPU_ROWS
    reading = shares[few & (shares["least_bytes"] >= GPU_BYTES)]
    times = reading.pivot_table(index=["dtype", "batch", "prefix"], columns="draft", values="median_ms")
    grown = (times[16] / times[1]).dropna() if {1, 16} <= set(times) else pd.Series(dtype=float)
    tax = summary.tree_tax(timings).merge(reading[[*summary.SETTING]])["ratio"]
    leads = summary.ratios(best, "best").set_index("alternative")["ratio"]
    rows = []
    if len(reading):
        share = reading["share"]
        rows.append((f"many keys for at most {GPU_ROWS} rows a key head", f"{READS:.0%} of the bandwidth",
                     f"{share.median():.0%} ({_spread(share, '.0%')})", share.median() >= READS,
                     "masks are made in every call, of which a model's layers need one"))
    for goal, asked, found in (("a tree over a chain of as many nodes, there", TREE_TAX, tax),
                               ("16 nodes over one, there", SIXTEEN, grown)):
        if len(found):
            rows.append((goal, f"at most {asked:g} times", f"{_mean(found):.2f} times ({_spread(found, '.2f')})",
                         _mean(found) <= asked, "more rows are more arithmetic and more masks beside the same keys"))
    for other, asked in OVER_OTHERS.items():
        if other in leads.index:
            lead = leads[[other]]
            rows.append((f"the best form over {other}", f"{asked:g} times",
                         f"{_mean(lead):.1f} times ({_spread(lead, '.1f')})", _mean(lead) >= asked,
                         "short prefixes count too, whose calls fill no GPU"))
    return rows


def _mean(ratios: pd.Series) -> float:
    """Geometric."""
    return float(np.exp(np.log(ratios).mean()))


def _spread(values: pd.Series, form: str) -> str:
    if len(values) == 1:
        return "1 cell"
    return f"{len(values)} cells, {values.min():{form}} to {values.max():{form}}"


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
                         f"{these['share'].median():.0%} ({_spread(these['share'], '.0%')})",
                         these["share"].median() >= asked[dtype],
                         f"{of_products:.0%} of the rate of the fastest product of matrices; " + (
                             "the roof counts neither the exponentials nor what brings numbers to the units"
                             if draft == max(goals) else
                             "a core waits for memory line by line, and can wait for few lines at once")))
    return rows


def _forward(forward: pd.DataFrame) -> list[tuple]:
    above, beside = summary.prefix_cost(forward).dropna(subset=["ratio"]), summary.beside_attention(forward)
    rows = [(f"a whole forward's prefix, {row.dtype}", f"{PREFIX_COST:g} of transformers' own path",
             f"{row.ratio:.3f}", row.ratio <= PREFIX_COST,
             f"{row.tree:.0f} ms above a forward without one, against {row.transformers:.0f} ms")
            for row in above.itertuples()]
    long = beside[beside["prefix"] >= LONG]
    return rows + [(f"append and keep, {row.dtype}", f"{BESIDE:.0%} of a layer's attention", f"{row.share:.1%}",
                    row.share <= BESIDE, "attention has become so fast that two small copies weigh more beside it")
                   for row in long.itertuples()]
