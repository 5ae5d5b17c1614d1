"""What the drafter study found: acceptance, cost and speed of every drafter, how heads learnt, and which to take."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from lib.lab import charts, stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.drafters import choice, figures, summary
from lib.studies.drafters.measure import CONTROLS, MODEL, NO_SHAPE, PLAIN

if TYPE_CHECKING:
    from lib.studies.report import Ask

LOOKUP = "lookup"  # in every run
CHOOSERS = "random|oracle|adaptive|confident|combined|sam_eagle"  # choose between others, or how long to go on


def same_output(rows: pd.DataFrame) -> Finding:
    """How many outputs are plain decoding's; rows: the table "drafters"."""
    outputs = rows.groupby(["target", "drafter", "shape", "prompt"])["identical"].all()
    return Finding(f"{outputs.sum():,} of {len(outputs):,} outputs are plain decoding's, token for token,",
                   f"in {' and '.join(rows['dtype'].unique())}. Where an output differs, two logits of the target were "
                   "nearly equal; in float64 the tests require all outputs to be the same.")


def accepted(rows: pd.DataFrame, shape: str, rng: np.random.Generator) -> Finding:
    """Acceptance length of every drafter on every kind of text; rows: of one target, at one shape."""
    by_kind = summary.lengths(rows, ["drafter", "kind"], rng).pivot(index="drafter", columns="kind", values="value")
    by_kind = by_kind.loc[by_kind.mean(axis=1).sort_values(ascending=False).index]
    by_kind.columns = [name.replace(" (", "\n(") for name in by_kind.columns]
    figure = charts.heat_map(by_kind, value_label="acceptance length", x_label="kind of text", y_label="",
                             title=f"{rows['target'].iloc[0]}, {shape}")
    figure.axes[0].tick_params(axis="x", rotation=0, labelsize=8)
    overall = _without_controls(summary.lengths(rows, ["drafter"], rng).set_index("drafter")).sort_values("value")
    most, least = overall.iloc[-1], overall.iloc[0]
    generated = rows["kind"].str.endswith(summary.GENERATED).any()
    notes = [" Kinds marked generated were written by programs."] if generated else []
    if not overall.index.str.startswith(MODEL).any():
        notes.append(" The target has no draft model here, so drafters that need one are left out.")
    return Finding(
        f"`{most.name}` is accepted most, {stats.format_estimate(most)} tokens per round, `{least.name}` least, "
        f"{stats.format_estimate(least)}", f"({shape}, {int(most.n_prompts)} prompts, text before a "
        f"loop).{''.join(notes)}", figure, "drafters_acceptance")


def published_orders(rows: pd.DataFrame, model: str, rng: np.random.Generator) -> Finding:
    """The literature's orders of drafters, tested prompt by prompt; rows: of one target, at one shape."""
    orders = summary.orders(rows, model, rng)
    here = orders["here"].value_counts()
    return Finding(
        f"Published orders that are found here beyond their interval: {here.get('holds', 0)} of {len(orders)}; "
        f"reversed: {here.get('the opposite', 0)};", "for the others more prompts are needed. Differences are in "
        "tokens per round, paired by prompt.", table=orders.set_index("claim"))


def each_with_its_best(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Speedup of each drafter with its own best tree, and where the time of its rounds goes; rows: of one target."""
    best = summary.with_best_shape(rows, rng)
    real = _without_controls(best.set_index("drafter")).sort_values("value", ascending=False)
    if real.empty:
        return Finding("No drafter was judged:", "there is only one prompt, which chose.")
    faster, first = (real["low"] > 1).sum(), real.iloc[0]
    costs = summary.costs(rows).set_index(["drafter", "shape"])
    shown = pd.DataFrame({
        "tree": real["shape"], "speedup": stats.format_estimates(real), "tokens per round": real["tokens"].round(2),
        **{name: [costs.loc[(drafter, row["shape"]), column] for drafter, row in real.iterrows()]
           for name, column in (("drafting (steps)", "draft"), ("checking (steps)", "verify"),
                                ("memory added", "memory"))}})
    shown["memory added"] = shown["memory added"].map("{:.1%}".format)
    told = (f"Of {len(real)} drafters {faster} are faster than plain decoding beyond their interval. "
            if first["n_prompts"] >= stats.FEWEST else "There are too few prompts for intervals. ")
    return Finding(
        f"`{first.name}` with `{first['shape']}` is the fastest, {stats.format_estimate(first)} times plain decoding.",
        f"{told}{int(first['n_prompts'])} prompts judge. Drafting and checking are times per round over that of a "
        "plain round; memory is over the target's weights.", figures.with_best_trees(best, rows["target"].iloc[0]),
        "drafters", shown.round(2))


def every_shape(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Acceptance length of every drafter with every shape; rows: of one target."""
    lengths = summary.lengths(rows, ["drafter", "shape"], rng)
    real = lengths[~lengths["drafter"].isin(CONTROLS)]
    top = real.loc[real["value"].idxmax()]
    wide = lengths.assign(shown=stats.format_estimates(lengths)).pivot(index="drafter", columns="shape", values="shown")
    return Finding(f"`{top.drafter}` with `{top['shape']}` is accepted most, {stats.format_estimate(top)} tokens per "
                   "round", "(with 95 % intervals).", table=wide)


def conditional_acceptance(rows: pd.DataFrame, shape: str, rng: np.random.Generator) -> Finding:
    """Conditional acceptance by depth of the drafters that draft by themselves; rows: of one target, at one chain."""
    deep = summary.by_depth(rows, ["drafter"], rng)
    deep = deep[(deep["n_rounds"] >= 10) & ~deep["drafter"].str.match(CHOOSERS)]
    order = sorted(set(rows["drafter"]) - {PLAIN})
    figure = charts.lines(deep, x="depth", y="value", by="drafter", order=order, x_label="depth in the draft",
                          y_label="conditional acceptance", title=f"{rows['target'].iloc[0]}, {shape}")
    figure.axes[0].set_xticks(sorted(deep["depth"].unique()))
    ends = deep.sort_values("depth").groupby("drafter")["value"].agg(["first", "last"])
    change = ends["last"] - ends["first"]
    extremes = ", ".join(f"`{name}` goes from {ends.loc[name, 'first']:.0%} to {ends.loc[name, 'last']:.0%}"
                         for name in dict.fromkeys((change.idxmax(), change.idxmin())))
    return Finding(
        f"Of {len(ends)} drafters {(change > 0).sum()} are accepted more often deep in the draft than at its first "
        "token:", f"rounds that get there are those on easy text. On `{shape}`, from the first depth to the last with "
        f"10 rounds, {extremes}.", figure, "by_depth")


def cost_and_gain(costs: pd.DataFrame) -> Finding:
    """The cost of drafting beside the tokens that it gains; costs: `summary.costs` of one target, at one shape."""
    real = _without_controls(costs.set_index("drafter"))
    (target, shape), = costs[["target", "shape"]].drop_duplicates().itertuples(index=False)
    cheap, dear = real.loc[real["draft"].idxmin()], real.loc[real["draft"].idxmax()]
    light, heavy = real.loc[real["memory"].idxmin()], real.loc[real["memory"].idxmax()]
    ahead, most = real.loc[real["expected"].idxmax()], real.loc[real["tokens"].idxmax()]
    return Finding(
        f"`{ahead.name}` is expected to gain most, {ahead.expected:.2f} times plain decoding; `{most.name}`, which is "
        f"accepted most, {most.expected:.2f} times.", f"Drafting takes between {cheap.draft:.2f} target steps per "
        f"round (`{cheap.name}`) and {dear.draft:.2f} (`{dear.name}`). The memory added is between {light.memory:.1%} "
        f"(`{light.name}`) and {heavy.memory:.1%} (`{heavy.name}`) of the target's weights.",
        figures.cost_against_gain(real.reset_index(), f"{target}, {shape}"), "drafters_cost")


def measured_speed(speeds: pd.DataFrame, costs: pd.DataFrame) -> Finding:
    """Measured beside expected speed; speeds: `summary.speedups`, costs: `summary.costs`, of one target and shape."""
    real, leader, faster = _fastest(speeds)
    (target, shape), = costs[["target", "shape"]].drop_duplicates().itertuples(index=False)
    step = _without_controls(costs.set_index("drafter"))["verify"].median()
    return Finding(
        f"`{leader.name}` is the fastest, {stats.format_estimate(leader)} times plain decoding; of {len(real)} "
        f"drafters {faster} are faster than plain decoding beyond their interval, {(real['high'] < 1).sum()} slower.",
        f"Verifying the tree took {step:.2f} target steps (median), not one: that is the distance from the hollow "
        "marks.",
        figures.speedups(speeds, costs, f"{target}, {shape}"), "drafters_speed")


def costs_shown(speeds: pd.DataFrame, costs: pd.DataFrame) -> Styler:
    """The costs of every drafter at one shape, with its measured speed, the fastest first."""
    real, _, _ = _fastest(speeds)
    shown = costs.set_index("drafter")[["tokens", "rate", "draft", "verify", "expected", "memory"]]
    shown = shown.join(real["value"], how="inner").sort_values("value", ascending=False)
    shown.columns = ["tokens per round", "acceptance rate", "drafting (steps)", "verifying (steps)", "expected",
                     "memory added", "measured"]
    return shown.style.format("{:.2f}", na_rep="").format("{:.1%}", subset=["memory added"])


def heads_learning(points: pd.DataFrame) -> Finding:
    """How heads learnt to agree with their target; points: the table "head_curves" of one target."""
    learnt = summary.learning(points)
    ends = ", ".join(f"`{head}` {own.near:.0%} and {own.far:.0%}" for head, own in learnt.iterrows())
    gained = learnt["late"].sort_values()
    return Finding(
        f"How often the heads' favourite is that of {points['target'].iloc[0]}, one token ahead and furthest ahead: "
        f"{ends}.", f"Over the last half of its training `{gained.index[-1]}` still gained {gained.iloc[-1]:.0%}, "
        f"`{gained.index[0]}` {gained.iloc[0]:.0%}. Kinds of text are averaged with equal weight.",
        figures.head_curves(points), "head_curves")


def heads_memory(peaks: pd.DataFrame) -> Finding:
    """What one depth at a time saves in training; peaks: the table "head_memory" of one target."""
    saved = peaks.pivot(index="kind", columns="way", values="peak_bytes")
    saved = (saved["together"] / saved["apart"]).sort_values()
    return Finding(f"With one depth at a time, the losses of a step need {saved.iloc[0]:.1f} (`{saved.index[0]}`) to "
                   f"{saved.iloc[-1]:.1f} times (`{saved.index[-1]}`) less memory,", "for the same gradients.",
                   figures.head_memory(peaks), "head_memory")


def beside_claims(rows: pd.DataFrame, target: str, shape: str, model: str, rng: np.random.Generator) -> Part:
    """Speedups by task, by pair and by draft length beside the weblog's; rows: of all targets, target: that of the
    tasks and lengths, model: the label of its language model, without which one sentence says why there is nothing.
    """
    own = rows[rows["target"] == target]
    eagle = summary.beside_eagle(own, model)
    if not model:
        return f"No draft model was measured for `{target}`, so these claims are not compared."
    tasks = summary.task_table(own, f"{eagle}, {shape}", f"{LOOKUP}, {shape}", rng)
    pairs = summary.pair_table(rows, longest_chain(rows), rng)
    lengths = summary.length_table(own, model, rng)
    numbers = ["calls saved", "claimed rate", "claimed speedup", "claimed calls saved"]
    shown = lengths.style.format("{:.2f}", subset=numbers, na_rep="").format(na_rep="", subset=["rate", "speedup"])
    gains = summary.speedups(own[own["shape"].isin([shape, NO_SHAPE])], ["kind"], rng)
    gains = gains.pivot(index="kind", columns="drafter", values="value")
    ahead = gains[eagle] > gains[LOOKUP]
    return Finding("Measured beside claimed, by task, by pair and by draft length.",
                   f"In the source EAGLE is ahead of look-up on every task; here `{eagle}` is ahead on {ahead.sum()} "
                   f"of {len(ahead)} kinds.", table=[tasks, pairs, shown])


def by_text(chosen: pd.DataFrame) -> Finding:
    """The fastest drafter and tree for each kind of text; chosen: `summary.advice` of one target."""
    shown = chosen.assign(speedup=stats.format_estimates(chosen)).rename(columns={"n_prompts": "prompts judged on"})
    faster = (chosen["value"] > 1).sum()
    return Finding(f"With what was fastest on other prompts of the kind, {faster} of {len(chosen)} kinds run faster "
                   "than plain decoding.", "This describes the drafters and trees that were decoded here, at batch 1; "
                   "the recommendation compares more of them, on more prompts.",
                   table=shown.set_index("kind")[["drafter", "shape", "speedup", "prompts judged on"]])


def choosing(simulated: pd.DataFrame, rng: np.random.Generator) -> tuple[Finding, pd.DataFrame]:
    """Choosing a drafter while serving, and the table of all ways to choose; simulated: `choice.simulate`."""
    ways = stats.summarise(simulated, ["chooser"], "gain", "requests", rng, prompt="order", rounds="requests")
    ways = ways.set_index("chooser")
    sums = simulated.groupby("chooser")[["best", "requests"]].sum().loc[ways.index]
    shown = pd.DataFrame({"speed over plain decoding": stats.format_estimates(ways),
                          "fastest drafter taken": (sums["best"] / sums["requests"]).map("{:.0%}".format)}, ways.index)
    bandits = ways["value"][["upper confidence bound", "Thompson sampling"]]
    requests, orders = simulated["requests"].iloc[0], simulated["order"].nunique()
    fixed = next(name for name in ways.index if name.startswith("always "))
    finding = Finding(
        "A service that does not know a request's kind can learn as it serves:", f"over {requests} requests "
        f"{bandits.idxmax()} runs at {bandits.max():.2f} times plain decoding, {fixed} at {ways['value'][fixed]:.2f}; "
        f"with each request's fastest drafter known beforehand the service would run at "
        f"{ways['value']['in hindsight']:.2f} (means over {orders} orders of requests).")
    return finding, shown


def longest_chain(rows: pd.DataFrame) -> str:
    """The name of the longest chain among the rows' shapes."""
    chains = [name for name in rows["shape"].unique() if name.startswith("chain:")]
    return max(chains, key=lambda name: int(name.partition(":")[2]))


def _fastest(speeds: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series, int]:
    """The speeds by drafter without controls, the fastest drafter's, and how many are faster than plain decoding beyond
    their interval.
    """
    real = _without_controls(speeds.set_index("drafter"))
    return real, real.loc[real["value"].idxmax()], int((real["low"] > 1).sum())


def _without_controls(by_drafter: pd.DataFrame) -> pd.DataFrame:
    return by_drafter.drop(index=list(CONTROLS), errors="ignore")


# --------------------------------------------------------------------------------------------------------------- report

DRAFTERS = """
## Drafters with their best trees

All drafters decode live here: greedily, one request at a time, in shuffled order after the same prompt, and beside
plain decoding in the same loop. Each drafter takes the tree with which it was fastest on every other prompt, and is
judged on the remaining prompts. Two controls bound them: *random* tokens, and an *oracle* that knows the target's text.
"""
HEADS = """
## Training of heads

Medusa's and EAGLE's heads, and the block head, read the target's hidden states and share its output layer. The target
is frozen, and half of their text is its own. A curve that still rises at its end belongs to a head that is
undertrained.
"""
BY_TEXT = """
## Drafters by kind of text

All drafters with one tree, and the orders of drafters that papers report, tested prompt by prompt.
"""
WEBLOG = """
## Beside a weblog's tables

The weblog that this project began with gives speedups by draft length, by task and by pair, for models hundreds of
times larger. By task its drafter is EAGLE; where no EAGLE head was measured, a language model takes its place.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Drafters", of the target of the notebook's first pair."""
    rows, target, *_ = _measured(run)
    own = rows[rows["target"] == target]
    yield DRAFTERS
    yield each_with_its_best(own, rng)


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Drafters by text, the training of heads, published orders, and the weblog's tables."""
    rows, target, shape, model = _measured(run)
    own = rows[rows["target"] == target]
    at_shape = own[own["shape"].isin([shape, NO_SHAPE])]
    yield BY_TEXT
    yield accepted(at_shape, shape, rng)
    yield published_orders(at_shape, model, rng)
    if "head_curves" in run:  # only targets for which heads ship have them
        yield HEADS
        yield heads_learning(run["head_curves"])
    if model:
        yield WEBLOG
        yield beside_claims(rows, target, shape, model, rng)


def _measured(run: Results) -> tuple[pd.DataFrame, str, str, str]:
    """The rows before loops with their kinds as tables show them, the first target, the notebook's shape for all
    drafters, and the label of the first language model that drafts.
    """
    parameters, rows = run.record["parameters"]["05_drafters"], summary.clean(run["drafters"])
    rows["kind"] = summary.labelled(rows, parameters["prompts"])
    return rows, rows["target"].iloc[0], parameters["shape"], summary.first_model(rows, parameters["pairs"])
