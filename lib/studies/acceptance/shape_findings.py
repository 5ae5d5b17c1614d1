"""Findings on all static shapes: which ones gain at which budgets and where rounds end; and on the texts that they rest
on.

Estimates that several findings share are attributes of `Shapes`. The other functions take tables, and a generator where
they resample.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import charts, stats
from lib.lab.findings import Finding
from lib.lab.theme import shown
from lib.replay.acceptance import CONTINUATION
from lib.studies.acceptance import summary
from lib.studies.acceptance.summary import GROWN, where
from lib.trees import drawing
from lib.trees.tree import Tree

BUDGET, LENGTH = "budget (draft nodes)", "acceptance length (tokens per round)"
LOOKED_AT = ("chain", "independent:4", "kary:2", "comb:3", "optimal")  # shapes shown by depth
DEEPEST, FEWEST_ROUNDS = 8, 30  # depths that are shown, and rounds that a depth needs to be shown


class Shapes:
    """The shapes of a run for one pair and one temperature, by the protocol of its headlines, with their estimates.

    run: tables by name. budget: draft nodes at which shapes are compared, one of the run's. left_out: kinds of text
    that say nothing about kinds. The generator is used in this order: lengths of all settings, differences from the
    chain.
    """

    def __init__(self, run: Mapping[str, pd.DataFrame], pair: str, budget: int, rng: np.random.Generator, *,
                 temperature: float = 0.0, left_out: Sequence[str] = ()):
        self.run, self.pair, self.budget = run, pair, budget
        self.temperature, self.left_out = temperature, list(left_out)
        self.rows = summary.clean(run["acceptance"])
        self.families, self.pairs = list(self.rows["family"].unique()), list(self.rows["pair"].unique())
        self.budgets = sorted(self.rows["budget"].unique())
        self.largest, self.protocol = max(self.budgets), summary.protocol_of(self.rows, pair)
        self.smallest = min((each for each in self.budgets if each > 2), default=self.largest)
        self.lengths = summary.lengths(self.rows, rng)
        self.judged = self.of_pair(self.rows)
        self.over_chain = stats.compare(self.judged, ["budget"], "family", "chain", "accepted", "rounds", rng)
        self.own = self.of_pair(self.lengths)
        self.by_family = self.own.set_index(["family", "budget"])
        self.fixed = summary.best_fixed(self.own).set_index("budget")

    def of_pair(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of the pair and temperature, by the protocol of headlines."""
        return summary.headline(rows, self.pair, self.temperature)

    @cached_property
    def drawn(self) -> dict[str, tuple[Tree, np.ndarray]]:
        """For each family the tree of the table `nodes`, and how often each of its nodes was accepted."""
        return {name: summary.tree_of(self.nodes[self.nodes["family"] == name]) for name in self.families}

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """The pair's rows of the table `nodes`."""
        return self.of_pair(summary.clean(self.run["nodes"]))


# ---------------------------------------------------------------------------------------------------- shapes and models


def drawn_shapes(shapes: Shapes) -> Finding:
    """All families at one budget, each node as dark as it was accepted often."""
    trees = {name: tree for name, (tree, _) in shapes.drawn.items()}
    figure = drawing.gallery(trees, weights={name: np.sqrt(share) for name, (_, share) in shapes.drawn.items()},
                             notes={name: drawing.describe(tree) for name, tree in trees.items()})
    used, depths = summary.utilisation(shapes.nodes), [tree.max_depth for tree in trees.values()]
    others = used.drop(["chain", "optimal"])
    text = (f"The share of nodes that are accepted in at least one round in a hundred is {used['chain']:.0%} for the "
            f"chain and {used['optimal']:.0%} for Sequoia's tree.")
    if len(others):
        text += (f" For the other shapes it is between {others.min():.0%} (`{others.idxmin()}`) and {others.max():.0%} "
                 f"(`{others.idxmax()}`).")
    return Finding(f"The same {int(shapes.nodes['budget'].iloc[0])} nodes reach between {min(depths)} and "
                   f"{max(depths)} tokens ahead.", text, figure, "shapes")


def mask(tree: Tree, node: int, prefix_length: int, title: str) -> Finding:
    """A tree beside the attention mask of its forward pass, with the path to one node marked."""
    figure = drawing.shape_card(tree, prefix_length=prefix_length, node=node, title=title)
    return Finding("The mask of a tree is its ancestry.", f"{tree.size} tokens of one forward pass represent "
                   f"{len(tree.leaves)} paths; the marked path is what its last node attends to.", figure, "mask")


def loops(repetition: pd.DataFrame) -> Finding:
    """How many continuations end in a loop, by target and temperature."""
    table = repetition.groupby(["target", "temperature"])["loops"].agg(["mean", "size"])
    table.columns = ["share that loops", "continuations"]
    shares = (f"`{name}` " + ", ".join(f"{share:.0%} at temperature {heat:g}" for (_, heat), share in own.items())
              for name, own in table["share that loops"].groupby("target"))
    return Finding("Share of continuations that end in a loop:", f"{'; '.join(shares)}.", table=table.round(2))


def agreement(ranks: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """How often the models of each pair agree in continuations before a loop: greedily, and by Leviathan's alpha at the
    highest temperature. Drafters without a distribution are left out.
    """
    ranks = ranks[(ranks["protocol"] == CONTINUATION) & ranks["alpha_sum"].notna()]
    if not len(ranks):
        return Finding("Agreement is not measured:", "no drafter of this run has a distribution.")
    hottest, pairs = ranks["temperature"].max(), list(ranks["pair"].unique())
    columns = (("the drafter's favourite is the target's", 0, "rank_0"), ("α", hottest, "alpha_sum"))
    estimates = {
        name: stats.summarise(ranks[ranks["temperature"] == heat], ["pair"], column, "positions", rng,
                              rounds="positions").set_index("pair").loc[list(pairs)] for name, heat, column in columns}
    same, alpha = (each["value"] for each in estimates.values())
    table = pd.DataFrame({name: stats.format_estimates(each, 3) for name, each in estimates.items()}, index=pairs)
    return Finding(
        "Agreement of the models of a pair:", f"greedily, the drafter's favourite is the target's next token at "
        f"{same.min():.0%} (`{same.idxmin()}`) to {same.max():.0%} (`{same.idxmax()}`) of positions. At temperature "
        f"{hottest:g} Leviathan's α, the probability mass that both distributions share, is {alpha.min():.2f} to "
        f"{alpha.max():.2f}.", table=table)


# ------------------------------------------------------------------------------------------------------ over the budget


def _by_family(shapes: Shapes, estimates: pd.DataFrame, y_label: str, **settings) -> Figure:
    """Estimates of each family over the budget; bands for the chain and Sequoia's tree, as others would hide them."""
    bands = estimates["family"].isin(["chain", "optimal"])
    rows = estimates.assign(low=estimates["low"].where(bands), high=estimates["high"].where(bands))
    return charts.lines(rows, x="budget", y="value", lower="low", upper="high", by="family", log_x=True,
                        order=shapes.families, x_label=BUDGET, y_label=y_label, **settings)


def over_budget(shapes: Shapes) -> Finding:
    """Acceptance length of each family over the budget."""
    figure = _by_family(shapes, shapes.own, LENGTH, title=shapes.pair)
    flat = {name: summary.exhausted(shapes.own, name) for name in ("chain", "optimal")}
    wins = shapes.fixed[shapes.fixed.index > 2].reset_index()
    best = ", ".join(f"`{row.family}` at {row.budget} ({row.of_optimal:.0%} of Sequoia's tree)"
                     for row in wins.itertuples())
    best = f"The best shape that is fixed in advance is {best}. " if best else ""
    return Finding(
        f"A chain reaches 99 % of its largest acceptance length at {flat['chain']} nodes, Sequoia's tree at "
        f"{flat['optimal']}.", f"{best}Up to {shapes.largest} nodes were tested. Bands (chain, Sequoia) are 95 % "
        "intervals over prompts, which differ more than shapes do.", figure, "all_shapes")


def against_chain(shapes: Shapes) -> Finding:
    """Paired differences from a chain of the same budget."""
    text = shapes.over_chain.assign(text=[stats.format_estimate(row, "+.2f") for row in shapes.over_chain.itertuples()])
    table = text[text["budget"] >= min(4, shapes.largest)].pivot(index="family", columns="budget", values="text")
    at_largest = shapes.over_chain[shapes.over_chain["budget"] == shapes.largest]
    ahead, below = (", ".join(f"`{name}`" for name in at_largest[side]["family"]) or "none"
                    for side in (at_largest["low"] > 0, at_largest["high"] < 0))
    return Finding(
        "Difference from a chain of the same budget, in tokens per round, paired by prompt.",
        f"At {shapes.largest} nodes these shapes gain beyond their interval: {ahead}; these lose: {below}.",
        table=table.loc[[name for name in shapes.families if name != "chain"]].rename(index=shown))


def at_budget(shapes: Shapes, rng: np.random.Generator) -> Finding:
    """All families at one budget in the terms of cost."""
    order = [name for name in shapes.families if (name, shapes.budget) in shapes.by_family.index]
    ends = ["value", "low", "high"]
    kept = stats.summarise(shapes.judged, ["family", "budget"], "accepted", "drafted", rng)
    oracle = summary.of_oracle(shapes.own, shapes.rows)
    length, kept, oracle = (each[each["budget"] == shapes.budget].set_index("family").loc[order]
                            for each in (shapes.own, kept, oracle))
    saved = length.assign(**1 - 1 / (1 + length[ends]))
    columns = {"acceptance length": length, "block efficiency": length.assign(**1 + length[ends]),
               "acceptance rate": kept, "target calls saved": saved}
    table = pd.DataFrame({name: stats.format_estimates(each) for name, each in columns.items()}, index=order)
    return Finding(
        f"At {shapes.budget} nodes Sequoia's tree saves {saved.value['optimal']:.0%} of the target's forward passes, "
        f"a chain {saved.value['chain']:.0%}.", f"They keep {kept.value['optimal']:.0%} and {kept.value['chain']:.0%} "
        "of their draft tokens.", table=table.assign(depth=oracle["depth"], **{"of the oracle":
        oracle["share"].round(2)}).rename(index=shown))


def against_optimal(shapes: Shapes, rng: np.random.Generator) -> Finding:
    """Paired differences from Sequoia's tree at the largest budget."""
    against = stats.compare(shapes.judged, ["budget"], "family", "optimal", "accepted", "rounds", rng)
    widest = against[against["budget"] == shapes.largest].sort_values("value", ascending=False).assign(pair=shapes.pair)
    figure = charts.points(widest, label="family", by="pair", line=0.0, x_label="tokens per round, less Sequoia's tree")
    grown = "; ".join(f"`{row.family}` {stats.format_estimate(row, '+.2f')}"
                      for row in widest[widest["family"].isin(GROWN)].itertuples())
    return Finding(
        f"Differences from Sequoia's tree at {shapes.largest} nodes,", f"in tokens per round: "
        f"{grown or 'no other is grown'}. Of all shapes {(widest['high'] < 0).sum()} are worse beyond their interval.",
        figure, "against_optimal")


# --------------------------------------------------------------------------------------------- depth and candidates


def by_depth(shapes: Shapes, rng: np.random.Generator) -> Finding:
    """Conditional and unconditional acceptance at each depth."""
    deep = shapes.of_pair(summary.clean(shapes.run["depth"]))
    deep = deep[deep["family"].isin(LOOKED_AT) & (deep["depth"] <= DEEPEST)]
    on = stats.summarise(deep, ["family", "depth"], "accepted", "reached", rng, rounds="reached")
    on = on[(on["n_rounds"] >= FEWEST_ROUNDS) | (on["depth"] == 1)]
    far = stats.summarise(deep, ["family", "depth"], "accepted", "rounds", rng)
    figure = charts.lines(
        pd.concat([on.assign(what="conditional"), far.assign(what="unconditional")]), x="depth", y="value", lower="low",
        upper="high", by="family", panels="what", order=shapes.families, x_label="depth in the tree",
        y_label="acceptance")
    first = on[on["depth"] == 1].set_index("family")["value"]
    line = on[on["family"] == "chain"].sort_values("depth")
    start, end = line.iloc[0], line.iloc[-1]
    return Finding(
        f"At depth 1 a chain is accepted {first['chain']:.0%} of the time, `{first.idxmax()}` {first.max():.0%}.",
        f"Of the rounds that accepted a chain's token at the depth before, {start['value']:.0%} accept the one at "
        f"depth 1 and {end['value']:.0%} the one at depth {int(end['depth'])}. *Conditional*: of the rounds that reached "
        "a depth at a node with children; *unconditional*: of all rounds.", figure, "depth")


def coverage(ranks: pd.DataFrame, pairs: Sequence[str], rng: np.random.Generator, temperature: float = 0.0) -> Finding:
    """How often the target's next token is among the drafter's k best, in continuations before a loop."""
    rows = where(ranks, protocol=CONTINUATION, temperature=temperature)
    pairs = [pair for pair in pairs if (rows["pair"] == pair).any()]
    share = summary.coverage(rows, ["pair"], rng)
    decoding = "greedy continuations" if temperature == 0 else f"continuations at temperature {temperature:g}"
    figure = charts.lines(share, x="k", y="value", lower="low", upper="high", by="pair", log_x=True, order=pairs,
                          x_label="k best tokens of the drafter", y_label="share of positions covered",
                          title=f"{decoding} before a loop")
    wide = share.pivot(index="pair", columns="k", values="value").loc[list(pairs)]
    each = "; ".join(f"`{name}`: {row[1]:.0%} for the favourite, {row[2] - row[1]:+.0%} for the second, "
                     f"{row[4] - row[2]:+.0%} for the next two" for name, row in wide.iterrows())
    return Finding("Share of positions covered by the drafter's best tokens.", f"{each}.", figure, "coverage")
