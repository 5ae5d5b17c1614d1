"""What the drafter study found: acceptance, speed and cost of every drafter, how heads learnt, and which to take."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.lab import charts, processor, provenance, stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.drafters import summary
from lib.studies.drafters.measure import CONTROLS, MODEL, NO_SHAPE, PLAIN

if TYPE_CHECKING:
    from lib.studies.report import Ask

LOOKUP = "lookup"  # in every run
FORMS = (summary.CHAIN, summary.TREE, summary.GROWN)


def same_output(rows: pd.DataFrame) -> Finding:
    """How many outputs are plain decoding's; rows: the table "drafters"."""
    drafted = rows[rows["drafter"] != PLAIN]
    outputs = drafted.groupby(["target", "drafter", "shape", "prompt"])["identical"].all()
    return Finding(f"{outputs.sum():,} of {len(outputs):,} outputs are plain decoding's, token for token,",
                   f"in {' and '.join(rows['dtype'].unique())}, where nearly equal logits may differ in their order; "
                   "in float64 the tests require all outputs to be the same.")


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
        f"`{most.name}` is accepted most, {stats.format_estimate(most)} draft tokens per round, `{least.name}` least, "
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
           for name, column in (("drafting (plain rounds)", "draft"), ("checking (plain rounds)", "verify"),
                                ("memory added", "memory"))}})
    shown["memory added"] = shown["memory added"].map("{:.1%}".format)
    told = (f"Of {len(real)} drafters {faster} are faster than plain decoding beyond their interval. "
            if first["n_prompts"] >= stats.FEWEST else "There are too few prompts for intervals. ")
    forms = summary.with_best_shape(rows, rng, by=["form"])
    forms["drafter"] += np.where(forms["drafter"].isin(CONTROLS), " (control)", "")
    figure = charts.points(forms.sort_values("value", ascending=False), label="drafter", by="form", line=1.0,
                           order=[name for name in FORMS if name in set(forms["form"])],
                           x_label="speedup over plain decoding")
    return Finding(
        f"`{first.name}` with `{first['shape']}` is the fastest, {stats.format_estimate(first)} times plain decoding.",
        f"{told}{_not_apart(real)}{int(first['n_prompts'])} prompts judge. Drafting and checking are times per round "
        "over that of a plain round; memory is over the target's weights.", figure, "drafters", shown.round(2))


def _not_apart(real: pd.DataFrame) -> str:
    """How many drafters the first one is not told apart from; real: the fastest first, with intervals."""
    near = real.index[1:][real["high"].iloc[1:] >= real["value"].iloc[0]]
    return f"The intervals of {', '.join(f'`{name}`' for name in near)} contain this value. " if len(near) else ""


def trees_over_chains(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Whether the best tree of a drafter is faster than its own best chain; rows: of one target."""
    best = summary.with_best_shape(rows[~rows["drafter"].isin(CONTROLS)], rng, by=["form"])
    found = summary.over_chains(rows, best, rng)
    if found.empty:
        return Finding("No drafter was judged with a tree and with a chain:", "there is one prompt, or one form.")
    top = found.loc[found["value"].idxmax()]
    told = "; ".join(f"a {name} ({', '.join(f'`{shape}`' for shape in own['shape'].unique())}) is faster for "
                     f"{(own['low'] > 1).sum()} and slower for {(own['high'] < 1).sum()} of {len(own)} drafters"
                     for name, own in found.groupby("form", sort=False))
    shown = found.assign(ratio=stats.format_estimates(found)).drop(columns=["value", "low", "high"])
    few = " There are too few prompts for intervals." if found["low"].isna().all() else ""
    return Finding(
        f"Beside the best chain of the same drafter, beyond its interval: {told}.{few}", "The largest ratio is that of "
        f"`{top['drafter']}`: `{top['shape']}` decodes {stats.format_estimate(top)} times as fast as `{top['chain']}`. "
        "Paired by prompt; chain and trees were chosen on the other half of the prompts.",
        table=shown.set_index(["drafter", "form"]))


def worth(rows: pd.DataFrame, model: str, rng: np.random.Generator) -> Part:
    """What each idea is worth by itself; rows: of one target, model: the label of its language model."""
    found = summary.ideas(rows, model, rng)
    if found.empty:
        return "No drafter was measured with an idea and without it."
    return Finding("What each idea is worth by itself,", "over the same drafter without it: ratios on the same shapes, "
                   "paired by prompt.", table=found.set_index(["idea", "with", "without"]))


def heads_learning(points: pd.DataFrame) -> Finding:
    """How heads learnt to agree with their target: a panel per head, a line per depth; points: the table "head_curves"
    of one target."""
    learnt = summary.learning(points)
    ends = ", ".join(f"`{head}` {own.near:.0%} and {own.far:.0%}" for head, own in learnt.iterrows())
    rising = [f"`{head}` {100 * own.late:.2f}" for head, own in learnt.iterrows() if own.late > summary.RISING]
    told = ("In the last tenth of training no head's agreement one token ahead rose by more than a percentage point."
            if not rising else "Agreement one token ahead still rose by more than a percentage point in the last tenth "
            f"of training (in points: {', '.join(rising)}): these heads are undertrained.")
    mean = points.groupby(["head", "depth", "step"], as_index=False)["agreement"].mean()
    figure = charts.lines(mean.assign(ahead=mean["depth"].map("{} ahead".format)), x="step", y="agreement", by="ahead",
                          panels="head", columns=4, x_label="training step",
                          y_label="share of tokens on which\nhead and target agree")
    return Finding(
        f"How often the heads' favourite is that of {points['target'].iloc[0]}, one token ahead and furthest ahead: "
        f"{ends}.", f"{told} Kinds of text are averaged with equal weight.",
        figure, "head_curves")


def beside_claims(rows: pd.DataFrame, target: str, model: str, machine: str, rng: np.random.Generator) -> Part:
    """Speedups by task, by pair and by draft length beside the weblog's; rows: of all targets, target: that of the
    tasks and lengths, model: the label of its language model, without which one sentence says why there is nothing,
    machine: where all was measured. By task each drafter has the shape with which it is fastest over all tasks.
    """
    if not model:
        return f"No draft model was measured for `{target}`, so these claims are not compared."
    own = rows[rows["target"] == target]
    eagle = "eagle" if own["drafter"].eq("eagle").any() else model
    chains = [name for name in rows["shape"].unique() if name.startswith("chain:")]
    longest = max(chains, key=lambda name: int(name.partition(":")[2]))
    settings = [f"{name}, {summary.fastest_shape(own, name)}" for name in (eagle, LOOKUP)]
    tasks = summary.task_table(own, *settings, rng)
    pairs = summary.pair_table(rows, longest, rng)
    lengths = summary.length_table(own, model, rng)
    numbers = ["calls saved", "claimed rate", "claimed speedup", "claimed calls saved"]
    shown = lengths.assign(**{name: lengths[name].map("{:.2f}".format).where(lengths[name].notna()) for name in numbers})
    shown = shown.fillna("")
    gains = summary.speedups(own[own["setting"].isin([*settings, PLAIN])], ["kind"], rng)
    gains = gains.pivot(index="kind", columns="setting", values="value")[settings]
    ahead = gains[settings[0]] > gains[settings[1]]
    return Finding("Measured beside claimed, by task, by pair and by draft length.",
                   f"In the source EAGLE is ahead of look-up on every task; here `{settings[0]}` is ahead of "
                   f"`{settings[1]}` on {ahead.sum()} of {len(ahead)} kinds. By task each drafter has the shape with "
                   f"which it is fastest over all tasks, by pair `{longest}`; all was measured on {machine}.",
                   table=[tasks, pairs, shown])


def by_text(chosen: pd.DataFrame) -> Finding:
    """The fastest drafter and tree for each kind of text; chosen: `summary.advice` of one target."""
    shown = chosen.assign(speedup=stats.format_estimates(chosen)).rename(columns={"n_prompts": "prompts judged on"})
    faster = (chosen["value"] > 1).sum()
    return Finding(f"With what was fastest on one half of the prompts of the kind, {faster} of {len(chosen)} kinds run "
                   "faster than plain decoding.", "This describes the drafters and trees that were decoded here, at batch 1; "
                   "the recommendation compares more of them, on more prompts.",
                   table=shown.set_index("kind")[["drafter", "shape", "speedup", "prompts judged on"]])


def _without_controls(by_drafter: pd.DataFrame) -> pd.DataFrame:
    return by_drafter.drop(index=list(CONTROLS), errors="ignore")


# --------------------------------------------------------------------------------------------------------------- report

DRAFTERS = """
## Drafters decoded live

The drafters of this study decode live: greedily, one request at a time, in shuffled order after the same prompt, and
beside plain decoding in the same loop. Each drafter takes the shape, of the few that are tried here, with which it was
fastest on one half of the prompts, and is judged on the other half; the recommendation compares more shapes, on other
prompts. Two controls bound them: *random* tokens, and an *oracle* that knows the target's text.
"""
HEADS = """
## Training of heads

Heads read the target's hidden states and share its output layer. The target is frozen; it wrote half of the text that
they learn from, or all of it where it is a chat model.
"""
BY_TEXT = """
## Drafters by kind of text

All drafters with one tree, and the orders of drafters that papers report, tested prompt by prompt.
"""
WEBLOG = """
## Beside a weblog's tables

The weblog that this project began with gives speedups by draft length, by task and by pair, for models of 7 to 70
billion parameters. By task its drafter is EAGLE; where no EAGLE head was measured, a language model takes its place.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Drafters", of the target of the notebook's first pair."""
    rows, target, *_ = _measured(run)
    own = rows[rows["target"] == target]
    yield DRAFTERS
    yield each_with_its_best(own, rng)
    yield trees_over_chains(own, rng)


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Drafters by text, the training of heads, published orders, and the weblog's tables."""
    rows, target, shape, model = _measured(run)
    own = rows[rows["target"] == target]
    at_shape = own[own["shape"].isin([shape, NO_SHAPE])]
    yield BY_TEXT
    yield accepted(at_shape, shape, rng)
    yield published_orders(at_shape, model, rng)
    yield worth(own, model, rng)
    if "head_curves" in run:  # only targets for which heads ship have them
        yield HEADS
        yield heads_learning(run["head_curves"])
    if model:
        yield WEBLOG
        machine = processor.title(provenance.machine_of(run.record, "05_drafters"))
        yield beside_claims(rows, target, model, machine, rng)


def _measured(run: Results) -> tuple[pd.DataFrame, str, str, str]:
    """The rows before loops with their kinds as tables show them, the first target, the notebook's shape for all
    drafters, and the label of the first language model that drafts.
    """
    parameters, rows = run.record["parameters"]["05_drafters"], summary.clean(run["drafters"])
    rows["kind"] = summary.labelled(rows, parameters["prompts"])
    return rows, rows["target"].iloc[0], parameters["shape"], summary.first_model(rows, parameters["pairs"])
