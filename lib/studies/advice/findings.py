"""What the tables of the advice say: the cost of a round, the fastest budget, larger models, formulas, what to use.

Speeds are predicted by replay and calibrated costs; intervals come from the tables, nothing is resampled here.
"""

import ast
from typing import Iterator, Mapping

import numpy as np
import pandas as pd

from lib.cost import formulas
from lib.cost.advice import BEST_CHAIN, RECOMMENDED, Advice
from lib.cost.fit import Costs
from lib.lab import stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.acceptance.summary import where
from lib.studies.advice import figures, measure
from lib.studies.report import Ask
from lib.trees import drawing
from lib.trees.tree import Tree

SETTING = ["target", "batch"]
FORMULAS = (formulas.SMART, formulas.LEVIATHAN, formulas.BLOG)


# ------------------------------------------------------------------------------------------------------------- findings


def round_costs(costs: Costs, target: str, drafter: str, *, nodes: int, prefix: float) -> Finding:
    """What checking this many nodes and drafting a level cost, at the smallest and the largest calibrated batch."""
    batches = dict.fromkeys([costs.rows["batch"].min(), costs.rows["batch"].max()])
    price = {batch: costs.at(target, drafter, batch=batch, prefix=prefix) for batch in batches}
    checks = ", ".join(f"{own.check(nodes) / own.plain:.1f} times a plain step at batch {batch}"
                       for batch, own in price.items())
    smallest = min(price)
    return Finding(
        "The cost of a round.", f"A check of {nodes} nodes takes {checks}; a level of the drafter "
        f"{price[smallest].level(1) / price[smallest].plain:.2f} of a plain step at batch {smallest}. Points: "
        "measured; lines: the fitted costs between them.", figures.cost_curves(costs, target, drafter), "costs")


def fastest_budget(rows: pd.DataFrame) -> Finding:
    """The budget of the fastest tree at each batch; rows: the table "advice_budgets" of one pair."""
    best = {batch: figures.best_budget(own) for batch, own in rows.groupby("batch")}
    sizes = ", ".join(f"{row.nodes} at batch {batch}" for batch, row in best.items())
    speeds = "; ".join(f"{_estimate(row, 'speedup')} times plain decoding at batch {batch}"
                       for batch, row in best.items())
    pair = f"{rows['target'].iloc[0]}/{rows['drafter'].iloc[0]}"
    return Finding(f"The fastest tree's nodes: {sizes}.",
                   f"Its speed: {speeds}. Predicted for `{pair}`; bands are 95 % intervals over "
                   f"{rows['n_prompts'].max()} prompts.", figures.speed_over_budget(rows), "speed_over_budget")


def larger_pairs(rows: pd.DataFrame) -> Finding:
    """What the same acceptance is worth with the costs of each pair; rows: the table "advice_sizes"."""
    speeds = []
    for batch, own in _fastest(rows).groupby("batch", sort=False):
        each = ", ".join(f"{_estimate(row, 'speedup')} with those of `{row.costs}`" for row in own.itertuples())
        speeds.append(f"at batch {batch} {each}")
    alone = (" No larger pair was timed: none was asked for, or the processor has no units for their number format."
             if rows["costs"].nunique() < 2 else "")
    return Finding(
        "What the same acceptance is worth with other costs:", f"{'; '.join(speeds)} times plain decoding, for the "
        "fastest tree. Solid: the fastest tree of each budget, bands are 95 % intervals; dotted: the chain. The table "
        "shows why: a model that waits for its weights checks more *nodes for a tenth more*, and a drafter's *level* "
        f"costs what its own weights do. Predicted; what a larger pair would accept is not measured.{alone}",
        figures.speed_by_size(rows), "larger_pairs")


def terms(rows: pd.DataFrame) -> pd.DataFrame:
    """By costs and batch, the terms of the speed: a plain round, a drafter's level, a check, and the fastest tree;
    rows: the table "advice_sizes".
    """
    best = _fastest(rows).set_index(["costs", "batch"])
    chains = rows[rows["family"] == "chain"].groupby(["costs", "batch"])["speedup"].max()
    return pd.DataFrame({
        "plain round (ms)": best["plain_ms"].round(2), "a level / plain": best["level"].round(2),
        "nodes for a tenth more": best["free"], "fastest tree's nodes": best["nodes"],
        "its check / plain": best["check"].round(2), "its speedup": best["speedup"].round(2),
        "best chain's": chains.reindex(best.index).round(2)})


def beside_formulas(rows: pd.DataFrame) -> Finding:
    """Leviathan's formula and the blog's table beside replay; rows: the table "advice_formulas" of one pair."""
    wide = rows.pivot(index=["batch", "length"], columns="by", values="speedup")
    over = wide[measure.LEVIATHAN] / wide[measure.REPLAY]
    batch, length = over.idxmax()
    return Finding(
        f"Leviathan's formula gives {over.min():.2f} to {over.max():.2f} times the speedup of replay and measured "
        "costs,", f"most at batch {batch} and length {length}: it charges nothing for a longer check. The source "
        "blog's table knows no hardware.", figures.formulas(rows), "formulas")


def blog_columns() -> Finding:
    """The source blog's table, whose columns contradict one another."""
    claims = formulas.blog_claims()
    apart = claims["tokens_by_alpha"] / claims["tokens_by_calls"]
    text = (f"Its acceptance, read as a chance per token, gives {apart.min():.2f} to {apart.max():.2f} times as many "
            f"tokens per call as its saved target calls, and its speedup for {claims['length'].iloc[0]} tokens would "
            f"need a drafter that costs {claims['draft_cost'].iloc[0]:.1%} of a target's step.")
    claims.columns = ["draft length", "acceptance", "speedup", "target calls saved", "tokens per call by calls saved",
                      "by 1 + acceptance x length", "by Leviathan's formula",
                      "draft cost that would explain the speedup"]
    return Finding("The source blog's columns disagree with one another.", text,
                   table=claims.set_index("draft length").round(2))


def recommended(table: pd.DataFrame) -> Finding:
    """The recommendation for every target and batch, and the best chain's share of its speed; from the table
    "advice".
    """
    parts = []
    for (target, batch), rows in table.groupby(SETTING, sort=False):
        top, chain = (rows.set_index("what").loc[what] for what in (RECOMMENDED, BEST_CHAIN))
        if not top["nodes"]:
            parts.append(f"`{target}` at batch {batch}: plain decoding, which no tree beats")
            continue
        size = f"{top['nodes']} node" + ("s" if top["nodes"] != 1 else "")
        parts.append(f"`{target}` at batch {batch}: `{top['drafter']}` with {size}, {top['speedup']:.2f} times plain "
                     f"decoding, the best chain reaches {_estimate(chain, 'against', '.0%')} of that")
    shown = readable(table)
    return Finding("Recommended:", f"{'; '.join(parts)}. *by level*: the tree's nodes at depth 1, 2, ..; *against*: "
                   "speed over the recommendation's.",
                   table=shown.droplevel("target") if table["target"].nunique() == 1 else shown)


def followed(table: pd.DataFrame) -> Finding | None:
    """The share of the recommended speed that each formula's choice reaches, over all targets and batches; None where
    the table "advice" has no formula's choice.
    """
    shares = []
    for formula in FORMULAS:
        share = table.loc[table["what"] == formula, "against"]
        if len(share):
            ends = dict.fromkeys(f"{end:.0%}" for end in (share.min(), share.max()))  # one where they are the same
            shares.append(f"{formula} {' to '.join(ends)}")
    if not shares:
        return None
    return Finding(f"Had a formula chosen: {', '.join(shares)} of the recommended speed.",
                   "Where one misleads, the reason is what it leaves out. A node that opens a level pays for a whole "
                   "forward pass of the drafter, and the marginal rule ignores what later nodes of that level would "
                   "gain; Leviathan's formula charges nothing for a longer check; the blog's table knows neither "
                   "drafter nor machine.")


def promises(advised: Mapping[tuple[str, int], Advice]) -> pd.DataFrame:
    """By target, batch and formula: the nodes that it would draft, the speedup that it promises, the speedup of the
    same tree by replay and measured costs on prompts that did not choose, and that speed over the recommendation's.
    """
    table = pd.concat([one.table.assign(promised=one.table["what"].map(one.promised)) for one in advised.values()])
    table = table[table["what"].isin(FORMULAS)]
    columns = {"nodes": table["nodes"], "promised speedup": table["promised"].round(2)}
    columns |= {f"{name} [95 %]": _with_interval(table, name) for name in ("speedup", "against")}
    return pd.DataFrame({name: list(values) for name, values in columns.items()},
                        index=pd.MultiIndex.from_frame(table[[*SETTING, "what"]]))


def recommended_tree(target: str, batch: int, taken: Advice, shares: np.ndarray) -> Finding:
    """A picture of the recommended tree; shares: see `best_tree.node_shares`, of prompts that did not choose."""
    if not taken.tree.budget:
        return Finding("No tree: plain decoding is fastest.")
    below = shares[1:]
    figure = drawing.draw_tree(taken.tree, weights=shares / max(below.max(), 1e-9),
                               title=f"{target} drafted by {taken.drafter}, batch {batch}: "
                                     f"{drawing.describe(taken.tree)}")
    return Finding("The recommended tree; the darker a node, the more often it is accepted.",
                   f"{(below >= 0.01).mean():.0%} of its nodes are accepted in 1 % of rounds or more, the favourite of "
                   f"the first level in {below.max():.0%}.", figure, "recommended_tree")


def as_engines_take_it(settings: pd.DataFrame) -> Finding:
    """The settings of serving engines; from the table "advice_settings" of one target and batch."""
    if settings.empty:
        return Finding("Plain decoding is fastest here: leave speculation off.")
    speeds = ["the tree itself" if row.exact else "unknown" if np.isnan(row.loss) else f"{1 - row.loss:.0%}"
              for row in settings.itertuples()]
    return Finding("As serving engines take it:", "the tree where they can express it, else the nearest setting that "
                   "they can, with its share of the speed as replay predicts it. Trees that an engine grows anew in "
                   "each round are replayed with the drafter alone.",
                   table=settings.assign(speed=speeds).set_index("engine")[["speed", "setting"]])


def lines_to_copy(settings: pd.DataFrame) -> str:
    """Markdown: each engine's setting as a block of code, with its form, its share of the speed and its note."""
    blocks = []
    for row in settings.itertuples():
        share = f"{1 - row.loss:.0%} [{1 - row.loss_high:.0%}, {1 - row.loss_low:.0%}] of its speed"
        fit = "the tree itself" if row.exact else "its speed unknown" if np.isnan(row.loss) else share
        blocks.append(f"**{row.engine}** ({row.form}; {fit}; {row.note})\n```\n{row.setting}\n```")
    return "\n\n".join(blocks)


# --------------------------------------------------------------------------------------------------------------- tables


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table "advice" by target, batch and what: drafter, the tree's nodes, in all and level by level, and tokens
    per round, speedup and speed against the recommendation's with their intervals.
    """
    columns = {"drafter": table["drafter"], "nodes": table["nodes"], "by level": table["tree"].map(_levels)}
    columns |= {f"{name} [95 %]": _with_interval(table, name) for name in ("tokens", "speedup", "against")}
    return pd.DataFrame({name: list(values) for name, values in columns.items()},
                        index=pd.MultiIndex.from_frame(table[[*SETTING, "what"]]))


def _with_interval(table: pd.DataFrame, name: str) -> list[str]:
    ends = table[[name, f"{name}_low", f"{name}_high"]]
    return stats.format_estimates(ends.set_axis(["value", "low", "high"], axis=1))


def _estimate(row, name: str, spec: str = ".2f") -> str:
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def _levels(tree: str) -> str:
    """The number of nodes of each level of a tree that is written as its paths."""
    depth = Tree.from_choices(ast.literal_eval(tree)).depth
    return ", ".join(map(str, np.bincount(depth)[1:]))


def _fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest tree's row of each costs and batch, in the order of the table."""
    trees = rows[rows["family"] == measure.OURS]
    return trees.loc[trees.groupby(["costs", "batch"], sort=False)["speedup"].idxmax()]


# --------------------------------------------------------------------------------------------------------------- report


def report(run: Results, ask: Ask, rng: np.random.Generator) -> Iterator[Part]:
    """Section 7 of the report, for the pair of the headlines where this study has it, else for its own first pair."""
    curves, advice, settings = run["advice_budgets"], run["advice"], run["advice_settings"]
    pairs = curves["target"] + "/" + curves["drafter"]
    target, _, drafter = (ask.pair if ask.pair in set(pairs) else pairs.iloc[0]).partition("/")
    own = where(curves, target=target, drafter=drafter)
    yield """## 7 Which tree is fastest here?

More nodes never accept less, but they take longer. A short calibration of the decoding loop measures the cost of
drafting a level and of checking *n* nodes on this machine; replay counts the tokens that a tree yields. Together they
predict tokens per second. Trees are chosen on one half of the prompts and judged on the other."""
    if "costs" in run:
        yield round_costs(Costs(run["costs"]), target, drafter, nodes=own["budget"].max(), prefix=own["prefix"].iloc[0])
    yield """The fastest tree of every budget is shown beside a chain and a *k*-ary tree of as many nodes: which budget
is fastest, and does it change with the batch?"""
    yield fastest_budget(own)
    yield """**And larger models?** The shipped family is small. One step of a small model is compute-bound from a few
tokens on; a large model waits for its weights, and checks many tokens in the time of one. The cost of a model does not
depend on its weights' values, so pairs of published sizes were timed with random weights, and the acceptance of the
pair above is combined with their costs."""
    yield terms(run["advice_sizes"])
    yield larger_pairs(run["advice_sizes"])
    yield beside_formulas(where(run["advice_formulas"], target=target, drafter=drafter))
    yield recommended(where(advice, target=target))
    if (by_formulas := followed(where(advice, target=target))) is not None:
        yield by_formulas
    yield as_engines_take_it(settings[(settings["target"] == target) & (settings["batch"] == settings["batch"].min())])
