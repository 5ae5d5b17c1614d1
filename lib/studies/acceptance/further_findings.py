"""Findings beyond static shapes: other drafters and sampled children, merged drafts, grown trees, the choice of a tree,
and the speed of replay. All are made from tables, with a generator where they resample.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import charts, stats
from lib.lab.findings import Finding
from lib.lab.stats import format_estimate
from lib.lab.theme import styles_of
from lib.studies.acceptance import CHAINED_REPLAY, EVERY_START, LIVE, summary
from lib.studies.acceptance.shape_findings import LENGTH
from lib.studies.acceptance.summary import where

NO_GROWTH = "the drafter has no probabilities over which trees grow."
NO_SAMPLES = "this run has no temperature above 0, or no draft model."
BANDED = ("optimal", "dyspec")  # families whose intervals are drawn
GREEDY = {"random": "random tokens have", "lookup": "look-up", "top_k": "the drafter",
          "merged": "several drafters merged", "oracle": "an oracle"}  # drafters in words, in the order of the sentence
TOLERANCE = 0.1  # tokens per round: a smaller loss, its interval included, is negligible


# ---------------------------------------------------------------------------------- other drafters and sampled children


def other_drafters(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Acceptance length of drafters and rules that were decoded live, from the table `live`."""
    before = rows[rows["stretch"] == "before"]
    lengths = stats.summarise(before, ["temperature", "drafter", "rule", "shape"], "accepted", "rounds", rng)
    lengths["text"] = stats.format_estimates(lengths)
    table = lengths.pivot(index=["temperature", "drafter", "rule"], columns="shape", values="text")
    widest = lengths["shape"].iloc[-1]
    own = lengths[lengths["shape"] == widest]
    greedy = own[own["temperature"] == 0].set_index("drafter")["value"]
    sampled = own[own["temperature"] > 0].groupby("drafter")["value"].mean()
    told = [f"{name} {greedy[kind]:.2f}" for kind, name in GREEDY.items() if kind in greedy.index]
    text = f"Greedily, {', '.join(told)}."
    if len(sampled):
        text += (f" Sampled, top-k children have {sampled['top_k']:.2f}, independent samples {sampled['iid']:.2f}, and "
                 f"samples without replacement {sampled['without_replacement']:.2f}. A residual rule accepts all of "
                 "the mass that both distributions share; naive sampling accepts only listed tokens.")
    return Finding(f"Acceptance lengths with `{widest}`.", text, table=table)


def sampled_children(expected: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Expected acceptance of rules for sampled children, against naive sampling of the best ones on the same text."""
    if not len(expected):
        return Finding("Sampled children are not compared:", NO_SAMPLES)
    before = expected[expected["stretch"] == "before"]
    gain = stats.compare(before, ["temperature", "shape"], "rule", "naive", "accepted", "rounds", rng)
    gain["text"] = [format_estimate(row, "+.3f") for row in gain.itertuples()]
    table = gain.pivot(index="rule", columns=["shape", "temperature"], values="text")
    return Finding(
        "Sampled children against the drafter's best ones", "on the same text, in tokens per round. Naive sampling of "
        f"the best children is beaten beyond the interval in {(gain['low'] > 0).sum()} of {len(gain)} settings, and is "
        f"ahead in {(gain['high'] < 0).sum()}.", table=table)


def merging(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """What one merged tree saves against the drafters' sequences apart, from the table `merging`."""
    if not len(rows):
        return Finding("Merged drafts are not compared:", "this run has only one drafter for the target.")
    saved = summary.merging(rows, rng)
    ends = " to ".join(dict.fromkeys(f"{1 - share:.0%}" for share in (saved["value"].max(), saved["value"].min())))
    table = saved.assign(saved=stats.format_estimates(saved)).drop(columns=["value", "low", "high"])
    return Finding(
        f"One tree needs {ends} of the nodes that separate sequences need.", "Nodes per round: *sequences*, each from "
        "root to leaf; *trees*, one per drafter; *merged*, one for all. *saved*: share of the sequences' nodes; *kib*: "
        "of the target's cache, per round.", table=table[["sequences", "trees", "merged", "kib", "saved"]].round(1))


def expected_and_live(expected: pd.DataFrame, decoded: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Expected acceptance of rules for sampled children beside live decoding, from the tables `expected` and `live`."""
    if not len(expected):
        return Finding("Expected and live acceptance are not compared:", NO_SAMPLES)
    both = summary.expected_and_live(expected, decoded)
    lengths = stats.summarise(both, ["label", "how"], "accepted", "rounds", rng)
    figure = charts.points(lengths, label="label", by="how", x_label=LENGTH)
    apart = stats.compare(both, ["label"], "how", "live", "accepted", "rounds", rng)
    beyond = ((apart["low"] > 0) | (apart["high"] < 0)).sum()
    whole = stats.compare(both.assign(all=""), ["all"], "how", "live", "accepted", "rounds", rng).iloc[0]
    return Finding(
        "Expected and live acceptance:", f"over all settings together, paired by prompt, they differ by "
        f"{format_estimate(whole, '+.3f')} tokens per round; setting by setting, beyond the interval in {beyond} of "
        f"{len(apart)}. The expectations of all settings at one temperature are on the same texts, so that their "
        "differences tend to have the same sign.", figure, "expected")


# ---------------------------------------------------------------------------------------------------------- grown trees


def grown_trees(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Grown trees beside static ones: acceptance and drafting, from rows of the table `growth` of one setting."""
    if not len(rows):
        return Finding("Grown trees are not compared:", NO_GROWTH)
    by = [*summary.GROWTH_SETTING, "family"]
    lengths = stats.summarise(rows, by, "accepted", "rounds", rng)
    calls = stats.summarise(rows, by, "calls", "rounds", rng)
    lead = summary.growth_differences(rows, rng)
    figure = _gain_and_cost(lengths, calls)
    most = lead["budget"].max()
    best = lead[lead["budget"] == most].sort_values("value").iloc[-1]
    passes = calls[calls["budget"] == most].set_index("family")["value"]
    return Finding(
        "Grown trees beside static ones.", f"At {most} nodes `{best.family}` differs from the best static family by "
        f"{format_estimate(best, '+.2f')} tokens per round, with {passes[best.family]:.1f} forward passes of the "
        f"drafter. Of {len(lead)} comparisons over all budgets {(lead['low'] > 0).sum()} are gains beyond their "
        f"interval and {(lead['high'] < 0).sum()} are losses. The static family is chosen on the same prompts, "
        "which favours it.", figure, "growth")


def growth_lead(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Each growth rule against the best static family, paired by prompt, from the same rows."""
    if not len(rows):
        return Finding("Grown trees are not compared:", NO_GROWTH)
    lead = summary.growth_differences(rows, rng)
    largest = lead.loc[lead["value"].idxmax()]
    figure = charts.points(lead.assign(nodes=lead["budget"].map("{} nodes".format)), label="nodes", by="family",
                           line=0.0, x_label="tokens per round, against the best static family")
    return Finding(
        f"Of {len(lead)} comparisons with the best static tree {(lead['low'] > 0).sum()} are gains beyond their "
        f"interval and {(lead['high'] < 0).sum()} are losses.", f"The largest difference is that of `{largest.family}` "
        f"at {largest.budget} nodes: {format_estimate(largest, '+.2f')} tokens per round over {largest.n_prompts} "
        "prompts.", figure, "growth_lead")


def _gain_and_cost(lengths: pd.DataFrame, calls: pd.DataFrame) -> Figure:
    """Left acceptance length, right the drafter's forward passes, over the budget; a line for each family, dash-dotted
    where it grows.
    """
    figure, axes = plt.subplots(1, 2, figsize=(11.2, 4.4), sharex=True, layout="constrained")
    styles, budgets = styles_of(lengths["family"]), np.unique(lengths["budget"])
    for axis, rows, label in zip(axes, (lengths, calls), (LENGTH, "drafter's forward passes per round")):
        for family, line in rows.groupby("family", sort=False):
            line, style = line.sort_values("budget"), styles[family]
            axis.plot(line["budget"], line["value"], **style.line, label=family, markeredgecolor="white",
                      markeredgewidth=0.6)
            if family in BANDED:
                axis.fill_between(line["budget"], line["low"], line["high"], color=style.colour, alpha=0.15,
                                  linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.minorticks_off()
        axis.set(xlabel="budget (draft nodes)", ylabel=label)
    axes[1].set_yscale("log", base=2)
    axes[1].yaxis.set_major_formatter("{x:g}")
    handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1]))
    ends = lengths[lengths["budget"] == lengths["budget"].max()].sort_values("value", ascending=False)["family"]
    figure.legend([handles[family] for family in ends], list(ends), loc="outside right center")
    return figure


# ------------------------------------------------------------------------------------------------------------- choices


def text_needed(by_text: pd.DataFrame) -> Finding:
    """How much text the choice of a tree needs, from `summary.by_text`."""
    figure = charts.lines(by_text, x="prompts", y="value", lower="low", upper="high", by="pair", panels="family",
                          log_x=True, bound=0.0, x_label="prompts that the tree was chosen from",
                          y_label="tokens per round,\nagainst all prompts")
    sentences = []
    for (pair, family), lost in by_text.groupby(["pair", "family"], sort=False):
        first = lost.sort_values("prompts").iloc[0]
        loss = f"{-first['value']:.2f} [{-first['high']:.2f}, {-first['low']:.2f}]"
        enough, end = summary.stable_from(lost, TOLERANCE), "only all prompts come"
        if enough is not None:
            positions = lost.loc[lost["prompts"] == enough, "positions"].iloc[0]
            end = f"from {positions:,.0f} positions on (prompts: {enough}) the choice stays"
        sentences.append(f"{pair}, `{family}`: one prompt loses {loss}, and {end} within {TOLERANCE} of all")
    return Finding("How much text the choice of a tree needs.", f"{'; '.join(sentences)}.", figure, "stability")


def one_tree_or_many(rows: pd.DataFrame, pair: str, rng: np.random.Generator) -> Finding:
    """One tree for all kinds of text against one for each kind, from the table `choices`."""
    own = where(summary.by_kind(rows, rng), pair=pair)
    figure = charts.points(own, label="kind", by="arm", line=0.0, panels="pair",
                           x_label="tokens per round, against the tree of the kind itself")
    together = own[own["kind"] == "all together"].set_index("arm")
    each = "; ".join(f"{arm} {format_estimate(row, '+.2f')}" for arm, row in together.iterrows())
    return Finding("One tree for all kinds of text, against one for each:", f"{each} tokens per round. Where an "
                   "interval contains 0, the prompts do not tell the two apart.", figure, "one_tree_or_many")


def chained_rounds(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """What a search on chained rounds adds to the most frequent rank paths, from the table `choices`."""
    gain = summary.by_objective(rows, rng)
    return Finding(
        "Chained rounds.", "The most frequent rank paths are best for uniform starts. A further search on chained "
        f"rounds gains {gain['value'].mean():+.3f} tokens per round on unseen prompts (mean of {len(gain)} settings, "
        f"{(gain['low'] > 0).sum()} of them beyond their interval).",
        table=gain.assign(text=[format_estimate(row, "+.3f") for row in gain.itertuples()]).pivot(
            index="pair", columns="budget", values="text"))


# ------------------------------------------------------------------------------------------------------ speed of replay


def replay_speed(rows: pd.DataFrame) -> Finding:
    """How many trees replay evaluates per second, from the table `replay_speed`."""
    by_way = rows.set_index("way")
    every, chained = by_way.loc[EVERY_START], by_way.loc[CHAINED_REPLAY]
    claim = "The search over trees."
    if not (every["repeats"] and chained["repeats"]):
        return Finding(claim, "Three replays of a few trees did not fit into the time that the benchmark was given.")
    speeds = (f"Of trees with {every['nodes']:.0f} nodes, replay evaluates {every['trees_a_second']:,.0f} per second "
              f"at all of {every['positions']:,.0f} positions, and {chained['trees_a_second']:,.0f} per second as "
              "chained rounds")
    if by_way.loc[LIVE, "repeats"]:
        return Finding(claim, f"{speeds}. That is {every['times_live']:,.0f} and {chained['times_live']:,.0f} times "
                       "faster than live decoding.")
    return Finding(claim, f"{speeds}; three live decodings did not fit into the time that the benchmark was given.")


def replay_seconds(rows: pd.DataFrame) -> Finding:
    """The time per tree of each way, from the table `replay_speed`."""
    times = rows.rename(columns={"seconds": "value", "lower": "low", "upper": "high"})
    figure = charts.points(times, label="way", by="pair", log_x=True, x_label="seconds per tree (quartiles)")
    return Finding("Time to find what one tree accepts at all positions of a trace.", "Medians and quartiles of "
                   "interleaved repeats.", figure, "replay_speed")
