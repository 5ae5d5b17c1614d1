"""What the attention tables show, as findings, and an appendix of the report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.lab import provenance
from lib.lab.findings import Finding, Part, Results
from lib.studies.attention import figures, summary
from lib.studies.attention.baselines import AUTO, OURS

if TYPE_CHECKING:
    from lib.studies.report import Ask

SHOWN = ("onepass", summary.BASE, "dense mask")  # in the figure of the roofline
LONG, MANY = 2048, 16  # tokens of prefix, draft nodes: shares of the roofline are quoted from there, or the longest, on

INTRODUCTION = """## Attention over a tree

Verifying a tree adds two costs to a forward pass of one token: more rows in each matrix product, and attention of each
node over the whole prefix. The first is the same for any text of that length; the second is measured here. Queries that
share a key head become rows of one call. *folded* makes this call with a mask over prefix and tree; *onepass* is a
kernel that reads each key and value once and masks only the tree's own pairs; *auto* takes the one that earlier
measurements favour. They are compared with the dense mask that transformers builds, with a batch of all paths, and with
one path after another."""
ROOFLINE = """How near is that to the limit of the machine? The roofline of a cell is the longer of its bytes over the
measured bandwidth and its operations over the rate of the fastest products of matrices. The caches were flushed before
each call."""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Nothing: attention is a part of what "Cost and speed" measures whole."""
    return iter(())


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """What attention over a tree costs; nothing in it is resampled."""
    timings, machine = run["attention"], provenance.machine_of(run.record, "03_attention_timing")
    yield INTRODUCTION
    yield times(timings, timings["dtype"].iloc[0], f"{machine['processor']} with {machine['threads']} threads")
    yield free_nodes(timings)
    yield alternatives(timings)
    yield ROOFLINE
    yield roofline(run["attention_cold"], run["attention_roofline"], run["peaks"])


def times(timings: pd.DataFrame, dtype: str, machine: str) -> Finding:
    """The time of a call over draft length in one number format. machine: in words."""
    share = _fastest(timings)
    suffix = "" if dtype == timings["dtype"].iloc[0] else f"_{dtype}"  # the first number format's figure has none
    return Finding(
        f"*{share.index[0]}* is fastest in {share.iloc[0]:.0%} of {len(summary.winners(timings))} settings.",
        f"Time per call over batch, prefix and draft length, {dtype}, on {machine}; medians and quartiles of "
        f"interleaved repeats, {len(summary.timed(timings)):,} times in all. Where a line ends, longer drafts would "
        "have taken too much time or memory.",
        figure=figures.time_over_draft(timings, dtype), name=f"attention_time{suffix}")


def free_nodes(timings: pd.DataFrame) -> Finding:
    """How many nodes take hardly longer than one, by batch and prefix."""
    free = summary.free_until(timings, alternative=_main(timings))
    return Finding(
        f"In at most {summary.TOLERANCE:.0%} more time than one token takes, attention serves {free.free.min():.1f} to "
        f"{free.free.max():.1f} nodes.",
        f"The median over all cells is {free.free.median():.1f}.",
        table=free.pivot_table(index=["dtype", "batch"], columns="prefix", values="free").round(1))


def alternatives(timings: pd.DataFrame) -> Finding:
    """The alternatives' times over that of folded attention, and how often each is the fastest."""
    means = summary.geometric_means(timings)
    share = "; ".join(f"*{name}* {part:.0%}" for name, part in _fastest(timings).items())
    return Finding(
        "Times as long as folded attention (geometric means over cells in which both were timed).",
        f"Share of the cells in which each is fastest: {share}." + (
            f" The dense mask takes {means.loc['dense mask'].mean():.1f} times as long as folded."
            if "dense mask" in means.index else ""),
        table=means.drop(index=[summary.BASE, AUTO], errors="ignore").round(1))


def auto(timings: pd.DataFrame) -> Finding:
    """How well `auto` chooses."""
    best, chosen = summary.winners(timings), summary.regret(timings)
    return Finding(
        f"One of the project's own backends is fastest in {best['alternative'].isin(OURS).mean():.0%} of {len(best)} "
        "cells.",
        f"In the {len(chosen)} cells with a time of `auto`, it is within {summary.NEAR - 1:.0%} of the fastest in "
        f"{chosen['within'].mean():.0%}, at worst {chosen['ratio'].max():.2f} times as long.")


def skipped(timings: pd.DataFrame) -> Finding:
    """How many times were measured, how far they scatter, and which were skipped."""
    timed, skipped = summary.timed(timings), timings[timings["repeats"] == 0]
    kinds = skipped["skipped"].str.split(":").str[0]
    reasons = "; ".join(f"{name}: {count} for {kind}"
                        for (name, kind), count in skipped.groupby(["alternative", kinds]).size().items())
    spread = ((timed["upper_ms"] - timed["lower_ms"]) / timed["median_ms"]).median()
    busy = " They are far apart: other programs were running, and single cells mean little." if spread > 0.2 else ""
    formats = timings.loc[timings["skipped"].str.contains("no units for", regex=False), "dtype"].unique()
    lacking = f" The processor has no units for {' and '.join(formats)}, which was not timed." if len(formats) else ""
    return Finding(
        f"{len(timed):,} times",
        f"are medians of {timed['repeats'].min()} to {timed['repeats'].max()} calls; the quartiles are typically "
        f"{spread:.0%} of the median apart.{busy}{lacking} Skipped: {reasons or 'none'}.")


def roofline(flushed: pd.DataFrame, least: pd.DataFrame, peaks: pd.DataFrame) -> Finding:
    """Operations per second beside the machine's roofs, with flushed caches."""
    shares = summary.shares(flushed, least)
    prefix, draft = min(LONG, shares["prefix"].max()), min(MANY, shares["draft"].max())
    long = shares[(shares["prefix"] >= prefix) & (shares["draft"] >= draft)]
    reached = long.groupby(["dtype", "alternative"])["share"].median().unstack()
    text = "; ".join(f"{dtype}: " + ", ".join(f"{name} {row[name]:.0%}" for name in SHOWN[:2] if name in row)
                     for dtype, row in reached.iterrows())
    return Finding(
        "Operations per second over operations per byte, with the machine's roof.",
        f"Share of the roofline, median over prefixes of at least {prefix:,} and drafts of at least {draft}: "
        f"{text or 'none was timed'}.",
        figure=figures.roofline(shares, peaks.set_index("what")["value"].to_dict(), SHOWN), name="attention_roofline")


def _main(timings: pd.DataFrame) -> str:
    """The alternative whose growth counts: `auto` where it was timed."""
    return AUTO if AUTO in set(timings["alternative"]) else summary.BASE


def _fastest(timings: pd.DataFrame) -> pd.Series:
    """The share of cells in which each alternative is fastest, by name."""
    return summary.winners(timings)["alternative"].value_counts(normalize=True)
