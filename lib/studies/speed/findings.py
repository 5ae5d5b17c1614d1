"""What the speed study found: speed beside what users have, the loop's own cost, and number formats."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.cost.llama_cpp import LLAMA
from lib.cost.recommendation import Recommendation
from lib.cost.ways import ASSISTED
from lib.lab import charts, stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.speed import figures, formats, measure, sampled
from lib.studies.speed.alternatives import ADVISED, PLAIN, THEIRS

if TYPE_CHECKING:
    from lib.studies.report import Ask


def quoted(made: Recommendation) -> Finding:
    """What is recommended, as recommendation.json has it."""
    told = "; ".join(f"at batch {own.batch}: {own.sentence}" for own in made.by_batch)
    return Finding(f"Recommended for `{made.target}` in {made.dtype}:", f"{told} (without prefill, on prompts that did "
                   "not choose).")


def side_by_side(rows: pd.DataFrame, factors: pd.DataFrame) -> Finding:
    """Every way of decoding over transformers' `generate`; rows: the table "speed", factors: `measure.factors`."""
    advised = _advised(factors)
    taken = rows[(rows["batch"] == rows["batch"].min()) & (rows["alternative"] == ADVISED)].iloc[0]
    rivals = factors[(factors["batch"] == advised.batch) & factors["alternative"].isin(ASSISTED)]["value"]
    most = f" Assisted generation with the pair's own model reaches at most {rivals.max():.2f}." if len(rivals) else ""
    most += _beside_llama(factors[factors["batch"] == advised.batch].set_index("alternative"))
    return Finding(
        f"`{taken['pair']}` in {taken['dtype']}, batch {advised.batch}: the recommendation (`{taken['drafter']}` with "
        f"`{taken['shape']}`) decodes {stats.format_estimate(advised)} times as fast as `generate`, prefill included",
        f"({advised.n_prompts} prompts): the loop gains {advised.loop:.2f}, speculation {advised.over_plain:.2f}."
        f"{most}", figures.speeds(factors), "speeds")


def _beside_llama(factors: pd.DataFrame) -> str:
    """One sentence on llama.cpp, where it was timed."""
    if LLAMA not in factors.index:
        return ""
    return (f" llama.cpp reads the same file in its own number format: its plain decoding is "
            f"{factors.loc[LLAMA, 'over_plain']:.2f} times as fast as the plain loop, {factors.loc[LLAMA, 'alone']:.2f} "
            "times without prefill.")


def factors_shown(factors: pd.DataFrame) -> pd.DataFrame:
    """By alternative and batch: speed over `generate` with its interval, and over the plain loop, with prefill and
    without.
    """
    shown = factors.assign(**{"over generate": stats.format_estimates(factors),
                              "over the plain loop": factors["over_plain"].round(2),
                              "the same without prefill": factors["alone"].round(2)})
    return shown.pivot(index="alternative", columns="batch",
                       values=["over generate", "over the plain loop", "the same without prefill"]).fillna("")


def same_text(rows: pd.DataFrame, dtype: str) -> Finding:
    """Whether all ways write the same text; rows: the table "speed"."""
    same = rows[rows["alternative"] != LLAMA].groupby("alternative")["same"].agg(["mean", "size"])
    apart = same[same["mean"] < 1]
    which = "; ".join(f"`{name}` in {1 - row['mean']:.0%} of {row['size']:.0f} runs" for name, row in apart.iterrows())
    return Finding("All ways write the same text." if apart.empty else f"Texts that differ: {which}.",
                   f"In {dtype} a difference is a near tie between two tokens, which another order of additions "
                   "decides otherwise; in float64 the tests require all of the loop's texts to be the target's own.")


def overhead(rows: pd.DataFrame) -> Finding:
    """The share of a round in neither model; rows: the table "speed"."""
    spent = measure.outside(rows)
    outside = spent[spent["batch"] == spent["batch"].min()].set_index("alternative")["outside"]
    return Finding("The cost of the loop itself:", f"{outside[ADVISED]:.0%} of a round of the recommendation is in "
                   f"neither model, {outside[PLAIN]:.0%} of a plain one.", figures.where_time_goes(spent),
                   "overhead")


def sampled_speed(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Speed over the plain loop where tokens are sampled; from the table "sampled"."""
    found = sampled.over_plain(rows, rng)
    claim, found = sampled.in_words(found), found[found["alternative"] != PLAIN]
    shown = found.assign(speed=stats.format_estimates(found), tokens=found["tokens"].round(2))
    shown = shown.set_index(["temperature", "alternative"])[["speed", "tokens"]]
    shown.columns = ["over the plain loop", "tokens per round"]
    return Finding(f"Where tokens are sampled, {claim}", "The best one was chosen on the prompts that measure it, so "
                   "its value is biased upwards. One request at a time, without prefill, by the lossless rule "
                   f"`{rows['rule'].iloc[0]}`.", table=shown)


def number_formats(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Speed, text and memory by number format; from the table "formats"."""
    found = formats.by_format(rows, rng)
    gains = pd.Series(stats.format_estimates(found), found.index, name="over the plain loop")
    shown = found.drop(columns=["value", "low", "high", "n_prompts"]).round(2).join(gains)
    own = found.drop(index=LLAMA, level="alternative", errors="ignore")
    first, best = own.iloc[0], own["tokens per second"].idxmax()
    least = own["weights (MiB)"].xs(PLAIN, level="alternative").idxmin()
    over_first = ("" if _format(best) == _format(first.name) else
                  f"{_over(own, best, first)} times plain decoding in {_format(first.name)}, ")
    claim = (f"The fastest number format is {_format(best)} with `{best[2]}`: {over_first}"
             f"{stats.format_estimate(own.loc[best])} times plain decoding in the same format.")
    text = (f"With {_format(least)} the target's weights take the least memory, "
            f"{own.loc[(*least, PLAIN), 'weights (MiB)']:.0f} MiB of {first['weights (MiB)']:.0f} (with the copies that "
            f"kernels hold), and plain decoding is {_over(own, (*least, PLAIN), first)} times as fast as in "
            f"{_format(first.name)} ({rows['prompt'].nunique()} prompts).")
    llama = formats.over_llama(rows, rng)
    if len(llama):
        fast = llama.sort_values("value").iloc[-1]
        text += (f" Without prefill the plain loop in {fast.name} decodes {stats.format_estimate(fast)} times as fast "
                 "as llama.cpp on the same file.")
    return Finding(claim, f"{text} Greedy text in each format is that of the target in this format.", table=shown)


def pass_costs(costs: pd.DataFrame) -> Finding:
    """The time of a forward pass by its nodes, in each number format; from the table "format_costs"."""
    own = formats.labelled(costs)
    times = formats.by_nodes(own)
    figure = charts.lines(own, x="nodes", y="median_ms", by="format", lower="lower_ms", upper="upper_ms", log_x=True,
                          log_y=True, x_label="nodes of a forward pass", y_label="milliseconds")
    most = times.columns[-1]
    one, all_of = times[times.columns[0]], times[most]
    some = 8 if 8 in times.columns else times.columns[-1]
    steps = ", ".join(f"{row[some] / row[times.columns[0]]:.2f} in {label}" for label, row in times.iterrows())
    return Finding(f"A pass over {some} nodes costs, in passes over one node: {steps}.",
                   f"One node takes least in {one.idxmin()} ({one.min():.1f} ms), {most} nodes in {all_of.idxmin()} "
                   f"({all_of.min():.1f} ms). After {costs['prefix'].iloc[0]} tokens; medians and quartiles of at "
                   f"least {costs['repeats'].min()} calls.", figure, "format_costs", table=times.round(1))


def trees_by_format(costs: pd.DataFrame, candidates: pd.DataFrame) -> Finding:
    """Which tree each number format asks for; from the tables "format_costs" and "advice_candidates"."""
    best = formats.best_trees(costs, candidates)
    told = "; ".join(f"`{row['drafter']}` with `{row['tree']}` in {label} ({row['speedup']:.2f})"
                     for label, row in best.iterrows())
    alike = "is the same" if best["tree"].nunique() == 1 else "depends on the number format"
    fast = best["over"].idxmax()
    return Finding(
        f"The best tree {alike}: {told}.", "In brackets the speedup over plain decoding in the same "
        "format, of drafters without a model at batch 1, predicted from replay and these costs. "
        f"{fast.capitalize()} would be fastest, {best.loc[fast, 'over']:.2f} times the plain speed of {best.index[0]}.",
        table=best.round(2).rename(columns={"over": f"over plain {best.index[0]}"}))


def _format(key: tuple) -> str:
    """The name of a number format in a sentence, from (dtype, quantised, ...)."""
    return key[0] if key[1] == "none" else f"{key[1]} weights with {key[0]} activations"


def _over(found: pd.DataFrame, key: tuple, first: pd.Series) -> str:
    return f"{found.loc[key, 'tokens per second'] / first['tokens per second']:.2f}"


def _advised(factors: pd.DataFrame) -> pd.Series:
    """The recommendation's row at the smallest batch."""
    return factors[(factors["batch"] == factors["batch"].min()) & (factors["alternative"] == ADVISED)].iloc[0]


# --------------------------------------------------------------------------------------------------------------- report

SPEED = """
## Wall clock beside transformers

All ways decode the same prompts with the same stopping rule, in turns; prefill is included unless a number says
otherwise, and ratios are geometric means over prompts. Two factors are kept apart: the gain of the **loop** without
speculation over transformers' greedy `generate`, and the gain of **speculation** over the loop's own plain decoding.
The *policy* chooses the length of each round's draft by what its last rounds accepted, or drafts nothing.
"""

FORMATS = """
## Number formats

*quantised*: *int8* in both models, or *stored*, a GGUF target's own blocks; *text shared*: the share of a text before the
first difference.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Wall clock", and what the number format of the weights changes."""
    rows = run["speed"]
    yield SPEED
    yield side_by_side(rows, measure.factors(rows, rng))
    if "sampled" in run:
        yield sampled_speed(run["sampled"], np.random.default_rng(ask.seed))
    if "formats" in run:
        yield replace(number_formats(run["formats"], rng), table=None)
    if "format_costs" in run:
        yield replace(pass_costs(run["format_costs"]), table=None)
        if "advice_candidates" in run:
            yield replace(trees_by_format(run["format_costs"], run["advice_candidates"]), table=None)


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The loop's own cost, and number formats."""
    yield "## The cost of the loop"
    yield overhead(run["speed"])
    if "formats" in run:
        yield FORMATS
        yield number_formats(run["formats"], rng).table
    if "format_costs" in run:
        yield "Milliseconds per forward pass, by its nodes:"
        yield formats.by_nodes(formats.labelled(run["format_costs"])).round(1)
        if "advice_candidates" in run:
            yield trees_by_format(run["format_costs"], run["advice_candidates"]).table
