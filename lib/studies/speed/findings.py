"""What the speed study found: speed beside what users have, on which text, what a round costs, what was predicted, and
memory and number formats.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.cost.recommendation import Recommendation
from lib.cost.ways import ASSISTED
from lib.lab import charts, stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.speed import figures, measure, memory, prediction
from lib.studies.speed.alternatives import ADAPTIVE, ADVISED, PLAIN, THEIRS

if TYPE_CHECKING:
    from lib.studies.report import Ask

MIB = 2**20


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
    return Finding(
        f"`{taken['pair']}` in {taken['dtype']}, batch {advised.batch}: the recommendation (`{taken['drafter']}` with "
        f"`{taken['shape']}`) decodes {stats.format_estimate(advised)} times as fast as `generate`, prefill included",
        f"({advised.n_prompts} prompts): the loop gains {advised.loop:.2f}, speculation {advised.over_plain:.2f}."
        f"{most}", figures.speeds(factors, taken["pair"]), "speeds")


def factors_shown(factors: pd.DataFrame) -> pd.DataFrame:
    """By alternative and batch: speed over `generate` with its interval, and over the plain loop."""
    shown = factors.assign(**{"over generate": stats.format_estimates(factors),
                              "over the plain loop": factors["over_plain"].round(2)})
    return shown.pivot(index="alternative", columns="batch",
                       values=["over generate", "over the plain loop"]).fillna("")


def same_text(rows: pd.DataFrame, dtype: str) -> Finding:
    """Whether all ways write the same text; rows: the table "speed"."""
    same = rows.groupby("alternative")["same"].agg(["mean", "size"])
    apart = same[same["mean"] < 1]
    which = "; ".join(f"`{name}` in {1 - row['mean']:.0%} of {row['size']:.0f} runs" for name, row in apart.iterrows())
    return Finding("All ways write the same text." if apart.empty else f"Texts that differ: {which}.",
                   f"In {dtype} a difference is a near tie between two tokens, which another order of additions "
                   "decides otherwise; in float64 the tests require all of the loop's texts to be the target's own.")


def on_which_text(rows: pd.DataFrame, by_kind: pd.DataFrame) -> Finding:
    """Speed over the plain loop by kind of text; by_kind: `measure.gains` of rows over the plain loop, by kind."""
    shown = by_kind[~by_kind["alternative"].isin([*THEIRS, PLAIN])]
    figure = charts.heat_map(shown.pivot(index="alternative", columns="kind", values="value"), x_label="", y_label="",
                             value_label="speed / plain loop", best_of="column")
    own = by_kind[by_kind["alternative"] == ADVISED].sort_values("value")
    most, least = own.iloc[-1], own.iloc[0]
    return Finding("On which text it pays:", f"over the plain loop the recommendation gains most on {most.kind} "
                   f"({stats.format_estimate(most)} times), least on {least.kind} ({stats.format_estimate(least)}); "
                   f"{most.n_prompts} prompts per kind.", figure, "speed_kinds")


def policy(rows: pd.DataFrame, by_kind: pd.DataFrame, fixed: Sequence[str], rng: np.random.Generator) -> Finding:
    """A policy that may stop drafting beside fixed trees; rows: the table "speed" at one batch, fixed: names of the
    fixed alternatives, by_kind: as for `on_which_text`.
    """
    gains = measure.gains(measure.with_hindsight(rows, [*fixed, PLAIN]), PLAIN, rng)
    gains = gains[gains["alternative"].isin([*fixed, ADAPTIVE, measure.HINDSIGHT])].sort_values("value")
    value = gains.set_index("alternative")["value"]
    worst = by_kind[by_kind["alternative"] == ADAPTIVE].sort_values("value").iloc[0]
    shown = gains.assign(**{"speed over the plain loop": stats.format_estimates(gains)}).set_index("alternative")
    return Finding(
        f"The policy runs at {value[ADAPTIVE]:.2f} times the plain loop, the best fixed tree at "
        f"{value[fixed].max():.2f} (`{value[fixed].idxmax()}`), the best way for each prompt at "
        f"{value[measure.HINDSIGHT]:.2f}.",
        f"On its worst kind, {worst.kind}, it runs at {stats.format_estimate(worst)}.",
        table=shown[["speed over the plain loop"]])


def overhead(rows: pd.DataFrame) -> Finding:
    """The share of a round in neither model; rows: the table "speed"."""
    spent = measure.outside(rows)
    outside = spent[spent["batch"] == spent["batch"].min()].set_index("alternative")["outside"]
    return Finding("The cost of the loop itself:", f"{outside[ADVISED]:.0%} of a round of the recommendation is in "
                   f"neither model, {outside[PLAIN]:.0%} of a plain one.",
                   figures.where_time_goes(spent, rows["pair"].iloc[0]), "overhead")


def predicted(rows: pd.DataFrame) -> Finding:
    """Predicted beside measured speed; from the table "speed_predicted"."""
    middle, high = prediction.errors(rows)
    middle_ratio, high_ratio = prediction.errors(prediction.of_speedups(rows))
    by_batch = ", ".join(f"{error:+.0%} at {batch}" for batch, error in rows.groupby("batch")["error"].median().items())
    return Finding(
        f"Half of {len(rows)} predictions are within {middle:.0%} of the measured speed, nine in ten within "
        f"{high:.0%}.",
        "Speeds over plain decoding, which are corrected for drift of the machine's speed since its calibration, are "
        f"within {middle_ratio:.0%} and {high_ratio:.0%}. By batch, predicted over measured less 1, median: "
        f"{by_batch}.",
        figures.predicted_and_measured(rows), "predicted_speed")


def lockstep(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Rounds of a batch in lockstep over those of a ragged one; from the table "lockstep"."""
    slower = stats.summarise(rows, ["shape", "batch"], "lockstep", "ragged", rng, rounds="ragged")
    figure = charts.lines(slower, x="batch", y="value", by="shape", lower="low", upper="high", log_x=True,
                          x_label="batch (rows)", y_label="rounds in lockstep / ragged")
    largest = slower[slower["batch"] == slower["batch"].max()]
    times = ", ".join(f"{row.value:.2f} times the rounds with `{row.shape}`" for row in largest.itertuples())
    return Finding(f"In lockstep a batch of {slower['batch'].max()} needs {times}", "of the ragged batch that this "
                   "loop decodes. The ragged one ends with its slowest row; lockstep is slower still, since each round "
                   "is as short as its shortest path.", figure, "lockstep")


def memory_needed(needs: pd.DataFrame) -> Finding:
    """The additional memory of speculation; from the table "memory"."""
    more = ", ".join(f"{row.extra:.0%} at batch {row.batch}" for row in needs.itertuples())
    return Finding("Memory beyond the target alone,", f"at {needs['tokens'].iloc[0]} tokens per sequence: {more}.")


def memory_shown(needs: pd.DataFrame) -> pd.DataFrame:
    """The table "memory" in MiB, with the additional memory in per cent."""
    parts = ["target_weights", "drafter_weights", "target_cache", "drafter_cache", "logits", "alone", "peak",
             "peak_alone"]
    shown = (needs.set_index(["batch", "shape"])[parts] / MIB).round(2)
    return shown.assign(extra=(100 * needs["extra"].to_numpy()).round(1))


def number_formats(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Speed, text and memory by number format; from the table "formats"."""
    formats = memory.by_format(rows, rng)
    gains = pd.Series(stats.format_estimates(formats), formats.index, name="over the plain loop")
    shown = formats.drop(columns=["value", "low", "high", "n_prompts"]).round(2).join(gains)
    single = formats.loc[("float32", "none")].sort_values("value").iloc[-1]
    if "bfloat16" not in formats.index:
        text = (f"The fastest way, `{single.name}`, decodes {stats.format_estimate(single)} times as fast as the plain "
                "loop in float32. bfloat16, and int8 beside it, was not measured: the processor has no units for it.")
    else:
        half = formats.loc[("bfloat16", "none")].sort_values("value").iloc[-1]
        light = (formats.loc[("bfloat16", "int8")] / formats.loc[("bfloat16", "none")]).loc[PLAIN]
        text = (f"The fastest way, `{half.name}`, decodes {stats.format_estimate(half)} times as fast as the plain "
                f"loop in bfloat16; in float32 it is `{single.name}` with {stats.format_estimate(single)}. int8 "
                f"weights in both models take {light['weights (MiB)']:.0%} of bfloat16's memory (with all copies of "
                f"weights) and decode plainly at {light['tokens per second']:.2f} times its speed.")
    return Finding("Number formats.", f"{text} Greedy text in each format is that of the target in this format. "
                   "*quantised*: both models, or target|drafter; *text shared*: the share of a text before the first "
                   "difference.", table=shown)


def _advised(factors: pd.DataFrame) -> pd.Series:
    """The recommendation's row at the smallest batch."""
    return factors[(factors["batch"] == factors["batch"].min()) & (factors["alternative"] == ADVISED)].iloc[0]


# --------------------------------------------------------------------------------------------------------------- report

SPEED = """
## Wall clock beside transformers

All ways decode the same prompts with the same stopping rule, in turns; prefill is included, and ratios are geometric
means over prompts. Two factors are kept apart: the gain of the **loop** without speculation over transformers' greedy
`generate`, and the gain of **speculation** over the loop's own plain decoding. The *policy* drafts as deep as its last
rounds advise, or not at all.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Wall clock"."""
    rows = run["speed"]
    yield SPEED
    yield side_by_side(rows, measure.factors(rows, rng))


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Speed by kind of text, the loop's own cost, predictions, memory and number formats."""
    rows = run["speed"]
    smallest = rows[rows["batch"] == rows["batch"].min()]
    yield "## Speed by kind of text"
    yield on_which_text(smallest, measure.gains(smallest, PLAIN, rng, by=["kind"]))
    yield overhead(rows)
    if "speed_predicted" in run:  # the pair has a draft model, whose trees replay counts
        yield predicted(run["speed_predicted"])
        yield memory_needed(run["memory"])
    if "formats" in run:
        yield "## Number formats"
        yield number_formats(run["formats"], rng)
