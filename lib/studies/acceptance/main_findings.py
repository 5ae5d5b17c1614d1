"""The findings of the report's main part: few shapes by budget, kind of text, temperature and pair, and one round with
real tokens.
"""

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
from lib.explorers.round_figures import FONTS, visible
from lib.explorers.walkthrough import Step
from lib.trees import drawing
from lib.trees.tree import Tree

FEW = ("chain", "independent:4", "optimal", "frequent")  # static shapes that the main part compares
TWO = ("chain", "optimal")
CONTEXT = 60  # characters of the text before the root that are kept


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
    at, last = (_told(over, shapes.budget, best), _told(over, shapes.largest, best))
    ends = over.loc[(over["family"] == "optimal") & (over["low"] > 0), "budget"]
    ahead = f"at {', '.join(map(str, ends))} nodes" if len(ends) else "at no budget"
    judged = shapes.judged["prompt"].nunique()
    return Finding(
        f"At {shapes.budget} nodes, draft tokens accepted per round beyond a chain of as many: {at}; at "
        f"{shapes.largest}: {last}.",
        f"Sequoia's tree is ahead of the chain, beyond the interval, {ahead}. `{shapes.pair}`, greedy, {judged} "
        "prompts; the table has the differences, paired by prompt. Band: 95 % interval of the chain over prompts, "
        "which differ more than shapes do."
        + (" The growth rule is the best of those measured on these prompts, which favours it." if best else ""),
        _over_budget(shapes, few, lines), "acceptance_by_budget", table.rename(index=shown))


def _told(over: pd.DataFrame, budget: int, grown: str) -> str:
    """The differences from the chain at a budget of Sequoia's tree, and of a growth rule where it was measured."""
    own = over[over["budget"] == budget].set_index("family")
    return ", ".join(f"{shown(name)} {stats.format_estimate(own.loc[name], '+.2f')}" for name in ("optimal", grown)
                     if name in own.index)


def _best_grown(grown: pd.DataFrame) -> str:
    """The growth rule of the largest acceptance length at the largest budget, among rows without static families."""
    rules = grown[grown["confidence"].notna()] if len(grown) else grown
    if not len(rules):
        return ""
    sums = rules[rules["budget"] == rules["budget"].max()].groupby("family")[["accepted", "rounds"]].sum()
    return (sums["accepted"] / sums["rounds"]).idxmax()


def _over_budget(shapes: Shapes, few: list[str], lines: pd.DataFrame) -> Figure:
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
    _budgets(axis, lines["budget"])
    axis.set_ylabel(LENGTH)
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
        f"{chain.max():.2f} ({chain.idxmax()}) draft tokens per round.",
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
        f"Draft tokens per round, {shapes.protocol}. Pairs differ in target, drafter and text.", made,
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


# ----------------------------------------------------------------------------------------------------------- one round


def worked_rows(step: Step, pair: str, drafter: str, shape: str) -> pd.DataFrame:
    """The round of a step: a row for each node in order, and one for the bonus token, whose parent is the last accepted
    node. Tokens and context show white space by signs.
    """
    before = visible("".join(text for text, _ in step.text[: len(step.text) - step.fresh])[-CONTEXT:], CONTEXT)
    return pd.DataFrame({
        "pair": pair, "drafter": drafter, "shape": shape, "node": range(step.tree.size + 1), "parent": step.parents,
        "rank": [*step.tree.rank.tolist(), 0], "token": [visible(token) for token in (*step.tokens, step.bonus)],
        "role": step.roles, "context": before})


def worked_round(rows: pd.DataFrame) -> Finding:
    """The round as a figure, and in words. rows: the table "worked_round"."""
    nodes, first = rows[rows["role"] != "bonus"], rows.iloc[0]
    kept, bonus = nodes.loc[nodes["role"] == "accepted", "token"], rows["token"].iloc[-1]
    tree = Tree(nodes["parent"].to_numpy(), nodes["rank"].to_numpy())
    accepted = nodes.loc[nodes["role"] == "accepted", "node"].tolist()
    words = " ".join(map(_code, kept))
    return Finding(
        f"A round that yields {len(kept) + 1} tokens.", f"`{first.drafter}` drafts `{first['shape']}` for "
        f"`{first.pair.partition('/')[0]}` after the text {_code('…' + first.context)}. The target "
        f"accepts {words or 'no draft token'} and adds {_code(bonus)}. Right: the mask of the forward pass; a filled cell means "
        "that the node of the row attends to the node of the column.",
        _picture(tree, nodes["token"].tolist(), accepted, bonus), "worked_round")


def _code(text: str) -> str:
    """A text as code in Markdown, which its own sign for code would end."""
    return f"`{text.replace('`', 'ˋ')}`"


def _picture(tree: Tree, tokens: list[str], accepted: list[int], bonus: str) -> Figure:
    """The tree with its tokens (root left, accepted path and bonus token coloured) beside its mask."""
    wide = np.ptp(drawing.positions(tree)) + 1
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 1.6 + 0.38 * wide), width_ratios=(1.7, 1),
                                         layout="constrained")
    drawing.draw_tree(tree, labels=tokens, accepted=accepted, bonus=bonus, axis=left)
    left.set_xlim(-0.5, tree.max_depth + 1.5)
    drawing.draw_mask(tree, axis=right, node=accepted[-1] if accepted else None)
    named = [f"{label} {node}" for node, label in enumerate(tokens)]
    right.set_yticks(range(tree.size), named)
    for text in (*left.texts, *right.get_yticklabels()):
        text.set_fontfamily(FONTS)
    return figure
