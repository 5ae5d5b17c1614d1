"""The findings of the report's section "Acceptance": few shapes by budget, kind of text, temperature and pair."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.lab import charts, stats, theme
from lib.lab.findings import Finding
from lib.lab.theme import shown
from lib.studies.acceptance import summary
from lib.studies.acceptance.shape_findings import BUDGET, LENGTH, Shapes
from lib.studies.acceptance.summary import where
from lib.trees import drawing

FEW = ("chain", "independent:4", "optimal", "frequent")  # static shapes that the main part compares
TWO = ("chain", "optimal")


def by_budget(shapes: Shapes, grown: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Acceptance length of few static shapes and of the best growth rule over the budget, each shape drawn; and the
    differences from the chain. grown: rows of the table "growth" of the pair, perhaps none.
    """
    few = [name for name in FEW if name in shapes.families]
    lines = shapes.own[shapes.own["family"].isin(few)]
    over = shapes.over_chain[shapes.over_chain["family"].isin(few)]
    best = _best_grown(grown)
    if best:
        own = stats.summarise(grown[grown["family"] == best], ["family", "budget"], "accepted", "rounds", rng)
        lines = pd.concat([lines, own])
        both = pd.concat([shapes.judged[shapes.judged["family"] == "chain"], grown[grown["family"] == best]])
        over = pd.concat([over, stats.compare(both, ["budget"], "family", "chain", "accepted", "rounds", rng)])
    same = over["value"].eq(0) & over["low"].eq(0) & over["high"].eq(0)
    gains = over.assign(text=[stats.format_estimate(row, "+.2f") for row in over.itertuples()])
    gains["text"] = gains["text"].mask(same, "the same")
    table = gains[gains["budget"] > 1].pivot(index="family", columns="budget", values="text")
    table = table.loc[[name for name in [*few, best] if name in table.index]].fillna("")
    told = [f"{shown(name)} {_at_most(over[over['family'] == name])}" for name in ("optimal", best) if name]
    ends = over.loc[(over["family"] == "optimal") & (over["low"] > 0), "budget"]
    ahead = f"at {', '.join(map(str, ends))} nodes" if len(ends) else "at no budget"
    judged = shapes.judged["prompt"].nunique()
    return Finding(
        f"At {shapes.largest} nodes, tokens per round beyond a chain of as many: {'; '.join(told)}.",
        f"Sequoia's tree is ahead of the chain, beyond the interval, {ahead}. `{shapes.pair}`, greedy, {judged} "
        "prompts; the table has the differences, paired by prompt. Band: 95 % interval of the chain over prompts, "
        "which differ more than shapes do."
        + (" The growth rule is the best of those measured on these prompts, which favours it." if best else ""),
        figure(shapes, few, lines), "acceptance_by_budget", table.rename(index=shown))


def _best_grown(grown: pd.DataFrame) -> str:
    """The growth rule of the largest acceptance length at the largest budget, among rows without static families."""
    rules = grown[grown["confidence"].notna()] if len(grown) else grown
    if not len(rules):
        return ""
    sums = rules[rules["budget"] == rules["budget"].max()].groupby("family")[["accepted", "rounds"]].sum()
    return (sums["accepted"] / sums["rounds"]).idxmax()


def _at_most(over: pd.DataFrame) -> str:
    """The difference at the largest budget, with its interval."""
    return stats.format_estimate(over.sort_values("budget").iloc[-1], "+.2f")


def figure(shapes: Shapes, few: list[str], lines: pd.DataFrame) -> Figure:
    """Above, the drawing of each static shape in its colour; below, acceptance length over the budget."""
    made = plt.figure(figsize=(8.6, 6.0), layout="constrained")
    rows = made.add_gridspec(2, 1, height_ratios=(1, 2.3))
    top = rows[0].subgridspec(1, len(few))
    styles = theme.styles_of(dict.fromkeys(lines["family"]))
    for place, name in enumerate(few):
        tree, share = shapes.drawn[name]
        axis = made.add_subplot(top[place])
        drawing.draw_tree(tree, colour=styles[name].colour, weights=np.sqrt(share), axis=axis, numbered=False)
        axis.yaxis.set_visible(False)
        axis.set_title(f"{shown(name)}\n{tree.budget} nodes", color=styles[name].colour, fontsize=9)
    axis = made.add_subplot(rows[1])
    for name, line in lines.groupby("family", sort=False):
        line = line.sort_values("budget")
        axis.plot(line["budget"], line["value"], **styles[name].line, label=shown(name), markeredgecolor="white")
        if name == "chain":
            axis.fill_between(line["budget"], line["low"], line["high"], color=theme.BLACK, alpha=0.1, linewidth=0)
    budgets = sorted(lines["budget"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axis.minorticks_off()
    axis.set(xlabel=BUDGET, ylabel=LENGTH)
    charts.name_ends(axis)
    return made


def by_kind(shapes: Shapes, rng: np.random.Generator) -> Finding:
    """Acceptance length on each kind of text, sorted: of the chain at the compared budget, and of Sequoia's tree at the
    largest.
    """
    rows, most = shapes.judged[~shapes.judged["kind"].isin(shapes.left_out)], shapes.largest
    arms = {f"chain of {shapes.budget}": ("chain", shapes.budget), f"Sequoia (static), {most} nodes": ("optimal", most)}
    lengths = pd.concat([summary.lengths(rows[(rows["family"] == family) & (rows["budget"] == budget)], rng, ["kind"])
                         .assign(tree=name) for name, (family, budget) in arms.items()])
    wide = lengths.pivot(index="kind", columns="tree", values="value")[list(arms)].sort_values(list(arms)[0])[::-1]
    drawn = charts.points(lengths.set_index("kind").loc[wide.index].reset_index(), label="kind", by="tree",
                          order=list(arms), x_label=LENGTH)
    chain, ratio = wide.iloc[:, 0], (wide.iloc[:, 1] / wide.iloc[:, 0]).sort_values()
    each = rows.groupby("kind")["prompt"].nunique()
    return Finding(
        f"Between the kinds of text a chain of {shapes.budget} accepts {chain.min():.2f} ({chain.idxmin()}) to "
        f"{chain.max():.2f} ({chain.idxmax()}) tokens per round.",
        f"Sequoia's tree of {most} nodes accepts {ratio.iloc[0]:.2f} ({ratio.index[0]}) to {ratio.iloc[-1]:.2f} times "
        f"({ratio.index[-1]}) as many. {each.min()} prompts per kind"
        + (", too few for intervals." if each.max() < stats.FEWEST else "."), drawn, "acceptance_by_kind")


def by_temperature_and_pair(shapes: Shapes) -> Finding:
    """Left: the chain and Sequoia's tree at each temperature; right: Sequoia's tree for each pair of this protocol."""
    heat = where(shapes.lengths, protocol=shapes.protocol, pair=shapes.pair)
    heat = heat[heat["family"].isin(TWO)]
    pairs = where(shapes.lengths, protocol=shapes.protocol, temperature=shapes.temperature, family="optimal")
    made, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.0), sharey=True, layout="constrained")
    hot = dict(zip(sorted(heat["temperature"].unique()), (theme.BLUE, theme.PURPLE, theme.VERMILLION, theme.GREEN)))
    for (temperature, name), line in heat.groupby(["temperature", "family"], sort=False):
        _line(left, line, f"{shown(name)}, {temperature:g}", hot.get(temperature, theme.GREY),
              theme.DOTTED if name == "chain" else theme.SOLID)
    for (pair, line), style in zip(pairs.groupby("pair", sort=False), theme.styles_of(pairs["pair"]).values()):
        _line(right, line, pair, style.colour, style.dash)
    for axis in (left, right):
        _budgets(axis, heat["budget"])
        charts.name_ends(axis)
    left.set(title=f"{shapes.pair}, by temperature", ylabel=LENGTH)
    right.set(title="Sequoia (static), by pair, greedy")
    at = heat[heat["budget"] == shapes.budget].pivot(index="temperature", columns="family", values="value")
    told = ", ".join(f"{row['chain']:.2f} at {temperature:g}" for temperature, row in at.iterrows())
    ends = pairs[pairs["budget"] == shapes.budget].set_index("pair")["value"]
    return Finding(
        f"A chain of {shapes.budget} accepts {told} (temperatures); Sequoia's tree accepts {ends.min():.2f} "
        f"(`{ends.idxmin()}`) to {ends.max():.2f} (`{ends.idxmax()}`) with the pairs measured.",
        f"Tokens per round, {shapes.protocol}. Pairs differ in target, drafter and text.", made,
        "acceptance_by_temperature_and_pair")


def _line(axis: Axes, line: pd.DataFrame, label: str, colour: str, dash) -> None:
    line = line.sort_values("budget")
    axis.plot(line["budget"], line["value"], color=colour, linestyle=dash, marker="o", markersize=3.5, label=label)


def _budgets(axis: Axes, budgets: pd.Series) -> None:
    ticks = sorted(budgets.unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{budget:g}" for budget in ticks])
    axis.minorticks_off()
    axis.set_xlabel(BUDGET)
