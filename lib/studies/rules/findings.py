"""What the study of rules found: which rules are lossless, what each is worth, and which one to take.

Functions of tables alone, used by notebook 04 and by the report. "Exact rows" are rows of the table
"rules_exact" as `measure.labelled` returns them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.lab import charts, stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.rules import figures
from lib.studies.rules.measure import BOUND, EXACT, LEVEL, LOSSLESS, RANDOM, SETTING, judged, label, labelled
from lib.verify.proof.sources import AGAIN, RATIO
from lib.verify.rules import RULES

if TYPE_CHECKING:
    from lib.studies.report import Ask

KEYS = list(SETTING)
BASE = ("traversal", "without_replacement")  # the lossless rule and its proposal beside which lossy rules are shown
UNCORRECTED = {RATIO: "emits a sample of p", AGAIN: "emits nothing and drafts again"}  # published, and no rules
YARDSTICK = "without_replacement"  # the proposal whose bound all rules are divided by

RULES_TEXT = """
## Verification rules

A rule decides which draft tokens are kept. A lossless rule leaves the distribution of the text as the target has it.
This is computed here, not argued: a rule receives its random numbers from outside, so that it can be run once for every
combination of their outcomes. Over languages of a few tokens this gives the exact law of the tokens that a round emits,
which is compared with the target's own. The rule that is enumerated is the rule that decodes.
"""

BOUNDS = """
## Rules in detail

No lossless rule accepts more of drafts that are sampled without replacement than the optimal transport between whole
trees and whole paths: the bound below. Top-k drafts are not subject to it.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Verification rules"."""
    yield RULES_TEXT
    yield _without_table(lossless_or_not(run["rules_proof"]))
    yield _without_table(loop_is_lossless(run["rules_law"]))
    yield on_real_models(run["rules_live"], rng)
    yield _without_table(verification_cost(run["rules_cost"]))


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """What each rule is worth beside its bound, and what lossy rules buy."""
    parameters = run.record["parameters"]["04_rules"]
    exact, shapes = exact_rows(run["rules_exact"], parameters), parameters["exact_shapes"]
    main = exact[exact["agreement"] == parameters["agreement"]]
    yield BOUNDS
    yield worth(main, rng)
    yield by_path(exact, rng)
    yield _without_table(replacement(exact, rng))
    yield lossy(main[main["shape"].isin([shapes[0], shapes[-1]])])
    yield which_rule(main[main["shape"] == shapes[-1]])
    yield published(exact, rng)


def _without_table(finding: Finding) -> Finding:
    return replace(finding, table=None)


# ------------------------------------------------------------------------------------------------------------ findings


def lossless_or_not(proof: pd.DataFrame) -> Finding:
    """From the table "rules_proof": the largest distance of each rule and proposal from the target's law."""
    worst = proof.groupby("lossless")["worst"].max()
    count = proof.groupby(["rule", "proposal"])["languages"].sum()
    table = proof.groupby(["rule", "proposal"])["worst"].max().unstack()
    table = table.loc[[name for name in (*RULES, *UNCORRECTED) if name in table.index]]
    table = table.map(lambda value: "" if pd.isna(value) else f"{value:.0e}" if value < EXACT else f"{value:.2f}")
    return Finding(
        "Lossless rules are lossless, to rounding.",
        f"The largest distance from the target's law is {worst[True]:.0e} for them and {worst[False]:.2f} for lossy "
        f"rules, over {count.min()} to {count.max()} enumerations for each rule and proposal, of random languages "
        f"(filled markers) and hard ones (hollow: disjoint supports, zeros, ties, certainty).{_uncorrected(proof)}",
        figures.deviations(proof), "lossless_or_not", table)


def _uncorrected(proof: pd.DataFrame) -> str:
    """The distances of a weblog's acceptance without a residual, where they were enumerated."""
    worst = proof[proof["kind"] == RANDOM].groupby("rule")["worst"].max()
    known = [name for name in UNCORRECTED if name in worst]
    told = " and ".join(f"{worst[name]:.2f} if it {UNCORRECTED[name]}" for name in known)
    return (" A weblog's acceptance with probability p / q and no residual is not lossless: after a rejection its "
            f"largest distance on random languages is {told}." if known else "")


def loop_is_lossless(law: pd.DataFrame) -> Finding:
    """From the table "rules_law": tests of the tokens that real models emit in the loop."""
    tests = judged(law)
    refused = ", ".join(f"`{name}`" for name in tests.loc[~tests["passes"], "rule"].unique())
    shown = ["prompt", "rule", "proposal", "samples", "statistic", "degrees", "p_value", "adjusted", "visible",
             "passes"]
    return Finding(
        f"On real models in {' and '.join(law['dtype'].unique())}, {(~tests['passes']).sum()} of {len(tests)} tests refuse "
        "that the loop's text has the target's own law",
        f"(G-test of the first tokens of {tests['samples'].min()} samples, prompts: {tests['prompt'].nunique()}, Holm, level "
        f"{LEVEL:g}); a distance of "
        f"{tests['visible'].max():.2f} would be detected four times out of five."
        + (f" Refused: {refused}; test again with more samples." if refused else ""), table=tests[shown].round(4))


def worth(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """From exact rows of one agreement: accepted length of each lossless rule, as a share of the same bound for all."""
    own = against_bounds(rows)
    share = stats.summarise(own, ["shape", "temperature", "label"], "accepted", "yardstick", rng, prompt="language")
    figure = charts.lines(share, x="temperature", y="value", by="label", lower="low", upper="high", panels="shape",
                          bound=1.0, x_label="temperature", y_label="accepted length\n(share of the bound)", columns=2)
    mean, by_heat = (share.groupby(by)["value"].mean() for by in ("label", ["temperature", "label"]))
    left = 1 - own.groupby("label")["accepted"].sum() / own.groupby("label")["best"].sum()
    cold, hot = share["temperature"].min(), share["temperature"].max()
    return Finding(
        f"On average `{mean.idxmax()}` accepts most, `{mean.idxmin()}` least.",
        "All rules are divided by the bound for samples without replacement, which top-k drafts may exceed; naive "
        f"sampling of top-k children accepts {by_heat[cold][label('naive')]:.0%} of it at temperature {cold:g} and "
        f"{by_heat[hot][label('naive')]:.0%} at {hot:g}. Each proposal also has its own bound, below which the rules "
        f"stay by these shares: {', '.join(f'`{name}` {value:.1%}' for name, value in left.items())}. Bands: 95 % from "
        f"resampling {own['language'].nunique()} languages.", figure, "rules_by_temperature")


def on_real_models(live: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """From the table "rules_live": tokens per round of each lossless rule with the proposal that it was made for."""
    rows = live[live["stretch"] == "before"]
    means = stats.summarise(rows, ["pair", "shape", "temperature", "rule"], "accepted", "rounds", rng)
    means[["value", "low", "high"]] += 1
    means["tokens"] = stats.format_estimates(means)
    table = means.pivot(index="rule", columns=["pair", "shape", "temperature"], values="tokens").loc[list(LOSSLESS)]
    ends = stats.summarise(rows, ["pair", "rule"], "accepted", "rounds", rng).sort_values("value").groupby("pair")
    by_pair = "; ".join(f"on `{name}` most with `{each['rule'].iloc[-1]}` ({1 + each['value'].iloc[-1]:.2f}), least "
                        f"with `{each['rule'].iloc[0]}` ({1 + each['value'].iloc[0]:.2f})" for name, each in ends)
    return Finding("Tokens per round on real models,", f"each rule with the proposal that it was made for: {by_pair}. "
                   "Where intervals overlap, more prompts are needed to tell rules apart.", table=table)


def replacement(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """From exact rows: the gain of drawing without replacement over drawing independently, on trees that branch."""
    trees = rows[~rows["shape"].str.startswith("chain:")]
    change = gain(trees, "without_replacement", "multi_step", ["shape", "agreement", "temperature"], rng)
    change = change.sort_values("value")
    least, most = change.iloc[0], change.iloc[-1]
    table = change.pivot(index=["agreement", "shape"], columns="temperature", values="value").round(1)
    table.columns = [f"more tokens at temperature {value:g} (%)" for value in table.columns]
    return Finding(
        "Drawing without replacement instead of independently",
        f"changes the tokens per round by {least['value']:+.1f} % to {stats.format_estimate(most, '+.1f')} %, "
        f"most on `{most['shape']}` at temperature {most['temperature']:g}.", table=table)


def by_path(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """From exact rows: the gain of block verification over the token-wise rule on chains."""
    chains = path_gain(rows, ["agreement", "temperature", "length"], rng)
    shown = chains.assign(by="temperature " + chains["temperature"].astype(str),
                          panel="agreement " + chains["agreement"].astype(str))
    figure = charts.lines(shown, x="length", y="value", by="by", lower="low", upper="high", panels="panel", log_x=True,
                          x_label="drafted chain (tokens)", y_label="more tokens per round (%)")
    longest = chains["length"].max()
    ends = chains[chains["length"] == longest].groupby("temperature")["value"].mean()
    return Finding(
        "What deciding by path adds.", f"On chains of {longest} tokens block verification changes the tokens per round "
        f"by {ends.iloc[0]:+.1f} % at temperature {ends.index[0]:g} and by {ends.iloc[-1]:+.1f} % at "
        f"{ends.index[-1]:g}, relative to the token-wise rule.", figure, "gain_by_path")


def lossy(rows: pd.DataFrame) -> Finding:
    """From exact rows of one agreement: accepted length and distance of lossy rules beside the lossless `BASE`."""
    beside = lossy_beside(rows)
    mean = beside.groupby("rule")[["accepted", "distance"]].mean()
    more = mean["accepted"] / mean.loc[BASE[0], "accepted"] - 1
    others = mean.drop(index=BASE[0])
    by_rule = "; ".join(f"`{name}` {more[name]:+.0%}, {row['distance']:.2f}" for name, row in others.iterrows())
    return Finding(
        f"Of {len(others)} lossy rules {(more[others.index] > 0).sum()} accept more than "
        f"{BASE[0]} verification.", f"Change of the accepted length, and distance from the target's law: "
        f"{by_rule}. Dotted: the accepted length of {BASE[0]} verification at each temperature; larger markers are "
        "higher temperatures.",
        figures.accepted_over_distance(beside, BASE[0]), "lossy")


def which_rule(rows: pd.DataFrame) -> Finding:
    """From exact rows of one agreement and shape: the rule that accepts most for each proposal and temperature."""
    best = best_rules(rows)
    lossless = best[best["lossless"]].groupby("proposal")["rule"].unique()
    by_proposal = "; ".join(f"{' or '.join(f'`{rule}`' for rule in rules)} for {name.replace('_', ' ')}"
                            for name, rules in lossless.items())
    return Finding(
        f"Which rule accepts most on `{rows['shape'].iloc[0]}`,",
        f"by proposal, lossless or not, and temperature. Without loss: {by_proposal}. On a chain *traversal* is block "
        "verification.", figures.which_rule(best), "which_rule")


def verification_cost(rows: pd.DataFrame) -> Finding:
    """From the table "rules_cost": the time of a verification, and that time in reads of the rows that it needs."""
    slowest = rows.loc[rows["times_read"].idxmax()]
    shown = ["proposal", "rows_read", "verify_us", "read_us", "times_read", "lower", "upper"]
    return Finding(
        f"Verification takes {rows['verify_us'].min() / 1000:.2f} to {rows['verify_us'].max() / 1000:.2f} ms",
        f"over {rows['vocabulary'].iloc[0]:,} tokens: in the median {rows['times_read'].median():.1f} times as long as "
        f"reading the probabilities that the rule needs, and at most {slowest['times_read']:.1f} times "
        f"(`{slowest['rule']}` on `{slowest['shape']}`).", table=rows.set_index(["shape", "rule"])[shown].round(1))


def published(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """From exact rows: published comparisons of rules, and whether the same rule is ahead here."""
    found = directions(rows, rng)
    differing = found[found["agrees"] == "no"]["finding"]
    return Finding(
        f"Beside what was published: {len(found) - len(differing)} of {len(found)} directions agree.",
        f"Not so here: {'; '.join(f'*{one}*' for one in differing) or 'none'}. *here*: per cent more tokens per round, "
        f"over the settings of this run. Its languages have {rows['vocabulary'].iloc[0]} tokens and no grammar, so "
        "sizes need not agree.", table=found.set_index(["from", "finding"]))


# ---------------------------------------------------------------------------------------------------------- estimates


def exact_rows(rows: pd.DataFrame, parameters: dict) -> pd.DataFrame:
    """The rows of the table "rules_exact" with the seed and vocabulary of a run's parameters, labelled."""
    return labelled(rows[(rows["seed"] == parameters["seed"]) & (rows["vocabulary"] == parameters["vocabulary"])])


def against_bounds(rows: pd.DataFrame) -> pd.DataFrame:
    """The exact rows of each lossless rule with the proposal that it was made for, with the bound of that proposal as
    `best` and that of the proposal YARDSTICK as `yardstick`. Rows without bounds are left out."""
    bounds = rows[rows["rule"] == BOUND].set_index([*KEYS, "proposal"])["accepted"]
    own = rows[rows["rule"].map(LOSSLESS).eq(rows["proposal"])]
    own = own.join(bounds.rename("best"), on=[*KEYS, "proposal"])
    own = own.join(bounds.xs(YARDSTICK, level="proposal").rename("yardstick"), on=KEYS)
    return own.dropna(subset=["best", "yardstick"])


def gain(rows: pd.DataFrame, rule: str, base: str, by: Sequence[str], rng: np.random.Generator,
         proposals: Sequence[str] = ()) -> pd.DataFrame:
    """By how many per cent more tokens per round (bonus token included) a rule yields than the base, for each setting
    `by`, over the settings that have both; value, low, high from resampling languages.

    proposals: of the rule and of the base; by default those that they were made for.
    """
    ours, theirs = map(label, (rule, base), proposals or ("", ""))
    both = rows[rows["label"].isin([ours, theirs])]
    both = both[both.groupby(KEYS)["label"].transform("nunique") == 2]
    both = both.assign(tokens=1 + both["accepted"], length=_lengths(both))
    change = stats.compare(both, by, "label", theirs, "tokens", "rounds", rng, relative=True, prompt="language")
    change[["value", "low", "high"]] = 100 * (change[["value", "low", "high"]] - 1)
    return change


def path_gain(rows: pd.DataFrame, by: Sequence[str], rng: np.random.Generator) -> pd.DataFrame:
    """`gain` of block verification over the token-wise rule on chains, both on independent samples."""
    return gain(rows[rows["shape"].str.startswith("chain:")], "block", "multi_step", by, rng)


def lossy_beside(rows: pd.DataFrame) -> pd.DataFrame:
    """The exact rows of all lossy rules and of the lossless `BASE`, on drafts of the proposal of BASE."""
    return rows[(rows["proposal"] == BASE[1]) & (~rows["lossless"] | rows["rule"].eq(BASE[0]))]


def best_rules(rows: pd.DataFrame) -> pd.DataFrame:
    """Of exact rows, the rule that accepts most for each proposal, promise and temperature, with its mean accepted
    length and distance. Of equals the rule that is first in RULES. Bounds are left out.
    """
    by = ["proposal", "lossless", "temperature"]
    mean = rows[rows["rule"] != BOUND].groupby([*by, "rule"], as_index=False)[["accepted", "distance"]].mean()
    mean = mean.assign(accepted=mean["accepted"].round(9), place=mean["rule"].map(list(RULES).index))
    ordered = mean.sort_values(["accepted", "place"], ascending=[False, True]).drop(columns="place")
    return ordered.drop_duplicates(by).sort_values(by, ignore_index=True)


def directions(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """From exact rows, one row per published finding: its size there, its size here (per cent more tokens per round),
    and whether the directions agree."""
    trees = rows[~rows["shape"].str.startswith("chain:")]
    residual = gain(trees, "multi_step", "naive", ["temperature"], rng, ("iid", "iid"))["value"]
    replaced = gain(trees, "without_replacement", "multi_step", ["agreement", "shape", "temperature"], rng)["value"]
    chosen = gain(trees, "without_replacement", "naive", ["temperature"], rng)["value"]
    length = path_gain(rows, ["length"], rng).sort_values("length")
    deepest = rows[_lengths(rows) == length["length"].max()]
    heat = path_gain(deepest, ["temperature"], rng).sort_values("temperature")["value"]
    length = length["value"]
    found = [
        ("SpecInfer", "a residual beats naive sampling of the same draws", "26 to 28 %", residual, residual.min() > 0),
        ("Sequoia", "without replacement beats independent samples", "up to 65 % faster", replaced, replaced.min() > 0),
        ("Sequoia", "sampling without replacement accepts more than top-k at every temperature", "up to 27 % faster", chosen, chosen.min() > 0),
        ("Sun et al. 2024", "deciding by path beats by token", "8 % at 8 tokens", length[-1:], length.iloc[-1] > 0),
        ("Weng et al. 2025", "by path gains more on longer paths", "1.2 to 3.8 %", length,
         length.is_monotonic_increasing),
        ("Weng et al. 2025", "by path gains more where it is hotter", "1.0 to 2.8 %", heat,
         heat.is_monotonic_increasing),
    ]
    table = pd.DataFrame(found, columns=["from", "finding", "published", "here", "agrees"])
    return table.assign(here=table["here"].map(_range), agrees=table["agrees"].map({True: "yes", False: "no"}))


def _lengths(rows: pd.DataFrame) -> pd.Series:
    """Tokens of a chain; 0 for other shapes."""
    return rows["shape"].where(rows["shape"].str.startswith("chain:"), ":0").str.partition(":")[2].astype(int)


def _range(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:+.1f} %" if len(values) == 1 else f"{low:+.1f} to {high:+.1f} %"
