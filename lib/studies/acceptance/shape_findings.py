"""Findings of the appendices and of notebook 2: all static shapes, where rounds end, what drafters agree on, the choice
of a tree, grown trees, and rules for sampled children.

Estimates that several findings share are attributes of `Shapes`. The other functions take tables, and a generator where
they resample.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from lib.lab import charts, stats
from lib.lab.findings import Finding
from lib.lab.stats import format_estimate
from lib.lab.theme import shown
from lib.replay.acceptance import CONTINUATION
from lib.studies.acceptance import summary
from lib.studies.acceptance.summary import GROWN, where
from lib.trees import drawing
from lib.trees.tree import Tree

BUDGET, LENGTH = "budget (draft nodes)", "acceptance length (draft tokens per round)"
TOLERANCE = 0.1  # tokens per round: a smaller loss, its interval included, is negligible
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
        self.largest, self.protocol = self.rows["budget"].max(), summary.protocol_of(self.rows, pair)
        self.lengths = summary.lengths(self.rows, rng)
        self.judged = self.of_pair(self.rows)
        self.over_chain = stats.compare(self.judged, ["budget"], "family", "chain", "accepted", "rounds", rng)
        self.own = self.of_pair(self.lengths)
        self.fixed = summary.best_fixed(self.own)

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


def loops(repetition: pd.DataFrame) -> Finding:
    """How many continuations end in a loop, by target and temperature."""
    table = repetition.groupby(["target", "temperature"])["loops"].agg(["mean", "size"])
    table.columns = ["share that loops", "continuations"]
    shares = (f"`{name}` " + ", ".join(f"{share:.0%} at temperature {heat:g}" for (_, heat), share in own.items())
              for name, own in table["share that loops"].groupby("target"))
    return Finding("Share of continuations that end in a loop:", f"{'; '.join(shares)}.", table=table.round(2))


def vocabulary(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """The share of the target's own tokens that a reduced draft vocabulary covers, by kind of text; from the table
    "vocabulary" of one target.
    """
    rows = rows[rows["temperature"] == rows["temperature"].min()]
    whole = stats.summarise(rows, ["target"], "covered", "tokens", rng, rounds="tokens").iloc[0]
    kinds = stats.summarise(rows, ["kind"], "covered", "tokens", rng, rounds="tokens").sort_values("value")
    least, most = kinds.iloc[0], kinds.iloc[-1]
    table = pd.DataFrame({"share covered": stats.format_estimates(kinds, 3), "tokens": kinds["n_rounds"]})
    return Finding(
        f"The {rows['size'].iloc[0]:,} tokens that `{whole.target}` writes most often cover "
        f"{stats.format_estimate(whole, '.1%')} of what it writes here,", f"least for {least.kind} ({least.value:.1%}), "
        f"most for {most.kind} ({most.value:.1%}); {int(whole.n_prompts)} greedy continuations, before a loop. A "
        "drafter with this vocabulary proposes no other token; verification keeps the whole vocabulary.",
        table=table.set_axis(kinds["kind"], axis=0))


def agreement(ranks: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Leviathan's alpha of each pair in continuations before a loop, at the highest temperature. Drafters without a
    distribution are left out.
    """
    ranks = ranks[(ranks["protocol"] == CONTINUATION) & ranks["alpha_sum"].notna()]
    if not len(ranks):
        return Finding("Agreement is not measured:", "no drafter of this run has a distribution.")
    hottest = ranks["temperature"].max()
    alpha = stats.summarise(where(ranks, temperature=hottest), ["pair"], "alpha_sum", "positions", rng,
                            rounds="positions").set_index("pair")
    return Finding(
        f"At temperature {hottest:g} Leviathan's α is {alpha['value'].min():.2f} (`{alpha['value'].idxmin()}`) to "
        f"{alpha['value'].max():.2f} (`{alpha['value'].idxmax()}`).", "It is the probability mass that the "
        "distributions of target and drafter share.",
        table=pd.DataFrame({"α": stats.format_estimates(alpha, 3)}, index=alpha.index))


# ------------------------------------------------------------------------------------------------------ over the budget


def over_budget(shapes: Shapes) -> Finding:
    """Acceptance length of each family over the budget."""
    banded = shapes.own["family"].isin(["chain", "optimal"])  # more bands would hide each other
    rows = shapes.own.assign(low=shapes.own["low"].where(banded), high=shapes.own["high"].where(banded))
    figure = charts.lines(rows, x="budget", y="value", lower="low", upper="high", by="family", log_x=True,
                          order=shapes.families, x_label=BUDGET, y_label=LENGTH, title=shapes.pair)
    text = shapes.own.assign(text=stats.format_estimates(shapes.own))
    table = text.pivot(index="family", columns="budget", values="text")
    flat = {name: summary.exhausted(shapes.own, name) for name in ("chain", "optimal")}
    wins = shapes.fixed[shapes.fixed.index > 2].reset_index()
    best = ", ".join(f"`{row.family}` at {row.budget} ({row.of_optimal:.0%} of Sequoia's tree)"
                     for row in wins.itertuples())
    best = f"The best shape that is fixed in advance is {best}. " if best else ""
    return Finding(
        f"A chain reaches 99 % of its largest acceptance length at {flat['chain']} nodes, Sequoia's tree at "
        f"{flat['optimal']}.", f"{best}Up to {shapes.largest} nodes were tested. Bands (chain, Sequoia) are 95 % "
        "intervals over prompts, which differ more than shapes do.", figure, "all_shapes",
        table.loc[shapes.own["family"].unique()].rename(index=shown))


def against_optimal(shapes: Shapes, rng: np.random.Generator) -> Finding:
    """Paired differences from Sequoia's tree at the largest budget."""
    against = stats.compare(shapes.judged, ["budget"], "family", "optimal", "accepted", "rounds", rng)
    widest = against[against["budget"] == shapes.largest].sort_values("value", ascending=False).assign(pair=shapes.pair)
    figure = charts.points(widest, label="family", by="pair", line=0.0, x_label="tokens per round, less Sequoia's tree")
    grown = "; ".join(f"`{row.family}` {format_estimate(row, '+.2f')}"
                      for row in widest[widest["family"].isin(GROWN)].itertuples())
    return Finding(
        f"Differences from Sequoia's tree at {shapes.largest} nodes,", f"in tokens per round: "
        f"{grown or 'no other is grown'}. Of all shapes {(widest['high'] < 0).sum()} are worse beyond their interval.",
        figure, "against_optimal")


# --------------------------------------------------------------------------------------------- depth and candidates


def chains(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Acceptance rate of chains by length, and the share of the target's calls that they save, in greedy continuations
    before a loop; from the table "chains".
    """
    own = where(summary.clean(rows), protocol=CONTINUATION, temperature=rows["temperature"].min())
    rate = stats.summarise(own, ["pair", "budget"], "accepted", "drafted", rng)
    sums = own.groupby(["pair", "budget"], sort=False)[["rounds", "accepted"]].sum()
    saved = (sums["accepted"] / (sums["accepted"] + sums["rounds"])).to_numpy()  # 1 - rounds / tokens
    told = rate.assign(told=[f"{text}; {share:.2f}" for text, share in zip(stats.format_estimates(rate), saved)])
    return Finding("Chains by length: acceptance rate, and the share of target calls saved.", "The rate is accepted "
                   "over drafted tokens; the share saved is 1 - rounds / tokens, bonus tokens included.",
                   table=told.pivot(index="pair", columns="budget", values="told"))


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
    end = line.iloc[-1]
    further = (f"Of the rounds that accepted the chain's token at depth {int(end['depth']) - 1}, {end['value']:.0%} "
               f"also accept the one at depth {int(end['depth'])}. " if end["depth"] > 1 else "")
    return Finding(
        f"The first token of a chain is accepted in {first['chain']:.0%} of rounds, one at depth 1 of "
        f"`{first.idxmax()}` in {first.max():.0%}.",
        f"{further}*Conditional*: of the rounds that "
        "reached a depth at a node with children; *unconditional*: of all rounds.", figure, "depth")


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
    name, row = next(wide.iterrows())
    return Finding(
        f"For `{name}` the drafter's favourite is the target's next token at {row[1]:.0%} of positions; the second "
        f"adds {100 * (row[2] - row[1]):.0f} percentage points, the next two together {100 * (row[4] - row[2]):.0f}.",
        f"The favourites of all pairs cover {wide[1].min():.0%} to {wide[1].max():.0%}, the best four tokens "
        f"{wide[4].min():.0%} to {wide[4].max():.0%}.", figure, "coverage")


# ---------------------------------------------------------------------------------------- the choice of a tree, growth


def text_needed(by_text: pd.DataFrame) -> Finding:
    """How much text the choice of a tree needs, from `summary.by_text`."""
    if not len(by_text):
        return Finding("How much text the choice of a tree needs is not known:", "one prompt chooses; two or more, with "
                       "`choose_prompts`, can be compared.")
    figure = charts.lines(by_text, x="prompts", y="value", lower="low", upper="high", by="pair", panels="family",
                          log_x=True, bound=0.0, x_label="prompts that the tree was chosen from",
                          y_label="draft tokens per round,\nagainst all prompts")
    sentences = []
    for (pair, family), lost in by_text.groupby(["pair", "family"], sort=False):
        first = lost.sort_values("prompts").iloc[0]
        enough, end = summary.stable_from(lost, TOLERANCE), f"no smaller choice keeps the loss below {TOLERANCE}"
        if enough is not None:
            positions = lost.loc[lost["prompts"] == enough, "positions"].iloc[0]
            end = (f"from {positions:,.0f} positions on (prompts: {enough}) the loss, with its interval, is below "
                   f"{TOLERANCE}")
        sentences.append(f"{pair}, `{family}`: chosen from one prompt, the tree accepts "
                         f"{stats.format_estimate(first, '+.2f')} draft tokens per round against the tree "
                         f"chosen from all; {end}")
    return Finding("How much text the choice of a tree needs.", f"{'. '.join(sentences)}.", figure, "stability")


def grown_trees(rows: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Each growth rule against the best static family, paired by prompt, and what drafting costs, from rows of the
    table `growth` of one setting.
    """
    if not len(rows):
        return Finding("Grown trees are not compared:", "the drafter has no probabilities over which trees grow.")
    lead = summary.growth_differences(rows, rng)
    largest = lead.loc[lead["value"].idxmax()]
    figure = charts.points(lead.assign(nodes=lead["budget"].map("{} nodes".format)), label="nodes", by="family",
                           line=0.0, x_label="tokens per round, against the best static family")
    calls = stats.summarise(rows, ["family", "budget"], "calls", "rounds", rng)
    calls["text"] = stats.format_estimates(calls, 1)
    return Finding(
        f"Of {len(lead)} comparisons with the best static tree {(lead['low'] > 0).sum()} are gains beyond their "
        f"interval and {(lead['high'] < 0).sum()} are losses.", f"The largest difference is that of `{largest.family}` "
        f"at {largest.budget} nodes: {format_estimate(largest, '+.2f')} tokens per round over {largest.n_prompts} "
        "prompts. The static family is chosen on the same prompts, which favours it. The table has the drafter's "
        "forward passes per round, by budget.", figure, "growth",
        calls.pivot(index="family", columns="budget", values="text"))


# ----------------------------------------------------------------------------------------------------- sampled children


def expected_and_live(expected: pd.DataFrame, decoded: pd.DataFrame, rng: np.random.Generator) -> Finding:
    """Expected acceptance of rules for sampled children beside live decoding, from the tables `expected` and `live`."""
    if not len(expected):
        return Finding("Expected and live acceptance are not compared:",
                       "this run has no temperature above 0, or no draft model.")
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
