"""What the recommendation and its tables say: the cost of a check, the fastest budget, larger models, formulas, what to
use. Intervals come from the tables and from recommendation.json; nothing is resampled here.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.cost import formulas, recommendation, roofline
from lib.cost.recommendation import GENERATE, ONE, PLAIN, RECOMMENDED, ForBatch, Recommendation, exact
from lib.cost.recommending import PREFIX, RULER
from lib.cost.round_cost import CostTable
from lib.lab import stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.advice import figures, measure, sources, trees_and_chains
from lib.studies.advice.machines import of_run
from lib.studies.drafters.summary import CHAIN, GROWN, TREE, form
from lib.trees import drawing
from lib.trees.growth.registry import AUTO
from lib.trees.tree import Tree

if TYPE_CHECKING:
    from lib.studies.report import Ask

# ------------------------------------------------------------------------------------------------------------- findings


AUTOMATIC = "automatic budget"
FORMS = (CHAIN, TREE, GROWN, AUTOMATIC)


def recommended(made: Recommendation) -> Finding:
    """What is recommended for every batch, with its measured speeds."""
    rows = [{"batch": own.batch, "drafter": own.drafter, "tree": own.tree, "budget": own.budget,
             "predicted": f"{own.predicted:.2f}", "speedup [95 %]": str(own.speedup),
             "over the best chain": "it is one" if own.over_chain == ONE else str(own.over_chain),
             "best tree over best chain": str(own.tree_over_chain or ""),
             "with prefill": str(own.with_prefill),
             **{f"tokens/s, {way}": str(own.tokens_per_second[way]) for way in (RECOMMENDED, PLAIN, GENERATE)}}
            for own in made.by_batch]
    notes = [*made.warnings, *(f"batch {own.batch}: {note}" for own in made.by_batch
                               for note in (own.reason, *own.warnings) if note)]
    return Finding(
        f"Recommended for `{made.target}` in {made.dtype} on {made.processor}, {made.threads} threads.",
        f"Chosen on {made.choosing} prompts, measured on up to {made.judging} others; {made.looping:.0%} of the "
        "judging prompts, whose continuations repeat themselves, are left out. Speeds are without prefill, but for the "
        "column *with prefill*; intervals resample prompts and repeats."
        + "".join(f" *{one[0].upper()}{one[1:]}.*" for one in notes), table=pd.DataFrame(rows).set_index("batch"))


def other_formats(made: Recommendation) -> Finding:
    """The fastest setting over all number formats beside the recommendation, with its quality."""
    told = made.formats
    if told is None or not told.fastest:
        why = "; ".join(f"{name}: {reason}" for name, reason in told.left_out.items()) if told else ""
        return Finding("No other number format was raced:", f"{why or 'none was asked for'}.")
    table = pd.DataFrame([{
        "batch": own.batch, "number format": own.dtype, "drafter": own.drafter, "tree": own.tree,
        "tokens/s": str(own.tokens_per_second), "over the recommendation": str(own.over), "prompts": own.prompts,
        "agreement": exact(own.agreement), "KL (nats per token)": exact(own.divergence)} for own in told.fastest])
    left_out = "".join(f" {name}: {reason}." for name, reason in told.left_out.items())
    return Finding(
        in_formats(made), f"Quality is that beside {told.widest}, the widest format that fits into the memory, which "
        "wrote the text: the share of tokens at which the most likely next token is the same, and the mean "
        f"Kullback-Leibler divergence. The formats were timed one after another: plain decoding in {told.reference} was {told.drift} times as fast after all of them as before "
        f"(n = {told.drift_prompts}).{left_out}",
        table=table.set_index("batch"))


def in_formats(made: Recommendation) -> str:
    """The fastest setting over all number formats at each batch size, in a sentence for each."""
    return " ".join(f"At batch {own.batch} {own.sentence}."
                    for own in made.formats.fastest)


def kinds(made: Recommendation, timed: pd.DataFrame) -> Finding:
    """The measured speedup of the recommendation over plain decoding by kind of text; timed: "advice_timed"."""
    first = made.by_batch[0]
    values = pd.Series({kind: each.value for kind, each in first.kinds.items()}).sort_values(ascending=False)
    judged = timed[(timed["part"] == "judging") & (timed["batch"] == first.batch)]
    counts = judged.groupby("kind")["prompt"].nunique().reindex(values.index)
    table = pd.DataFrame({"prompts": counts} | {
        f"batch {own.batch}": [str(own.kinds.get(kind, "")) for kind in values.index] for own in made.by_batch},
        values.index)
    few = " So few prompts do not order the kinds." if counts.max() < stats.FEWEST else ""
    return Finding(
        f"At batch {first.batch} the recommendation is, by the mean of few prompts, faster than plain decoding on "
        f"{(values > 1).sum()} of {len(values)} kinds of text, {values.min():.2f} to {values.max():.2f} times as fast.",
        f"Without prefill; {counts.min()} to {counts.max()} prompts of each kind.{few} Batches of several prompts mix "
        "kinds.", table=table)


def raced(made: Recommendation) -> Finding:
    """What decoded choosing prompts at each batch, and what cannot be told apart from the fastest; the best tree beside
    the best chain on the prompts that judge.
    """
    rows = [{"batch": own.batch, "raced": each.name, "nodes": each.nodes, "estimate": f"{each.estimate:.2f}",
             "over the fastest [95 %]": str(each.over_fastest), "tied": "yes" if each.tied else "", "n": own.raced_on}
            for own in made.by_batch for each in own.raced]
    told = " ".join(f"At batch {own.batch} {own.ties}. On judging prompts {own.trees}." for own in made.by_batch)
    return Finding(
        "Ties, and trees beside chains:", f"{told} *Estimate*: over plain decoding, from all choosing prompts. *Over "
        "the fastest*: on *n* of them in the same turns; what is *tied* is not told to be slower than that of "
        "the highest estimate. Of those within 2 % of it the one with the fewest nodes is recommended.",
        table=pd.DataFrame(rows).set_index(["batch", "raced"]) if rows else None)


def predicted_and_measured(errors: pd.DataFrame) -> Finding:
    """Predicted beside measured speedup, with the parts of the error; errors: the table "advice_errors"."""
    own = measure.medians(errors)
    ends = "" if np.isnan(own["low"]) else f" [{own['low']:+.0%}, {own['high']:+.0%}]"
    return Finding(
        f"The predicted speedup is off by a median of {own['size']:.0%}; its signed error has the median "
        f"{own['value']:+.0%}{ends} (n = {own['n']}).", "Each point is a drafter with a tree at one batch size that "
        "decoded judging prompts; its interval resamples them. Medians of the parts: tokens per round on choosing over "
        f"judging prompts {own['tokens']:+.0%}, time of a round {own['time']:+.0%}, and {own['optimism']:+.0%} for the "
        "optimism of choosing, which the prediction takes off. The interval of the median takes points as independent, "
        "though those of a batch share prompts.", figures.predicted_and_measured(errors), "predicted_and_measured")


def calibrated_and_timed(candidates: pd.DataFrame, timed: pd.DataFrame) -> Finding:
    """The calibration's time of a round beside that of the candidates that were timed on the choosing prompts."""
    both = measure.beside(candidates, timed)
    bias = both.groupby("batch")["ratio"].agg(["median", "size"])
    told = ", ".join(f"{row['median']:.2f} at batch {batch}" for batch, row in bias.iterrows())
    return Finding(
        f"On the choosing prompts a round took, over its calibrated time, {told} (medians).", "Ratios of drafters with "
        f"trees ({', '.join(f'{count:.0f}' for count in bias['size'])} by batch) run from {both['ratio'].min():.2f} to "
        f"{both['ratio'].max():.2f}. The calibration only chooses what is raced: predictions use the race's times.")


def check_costs(costs: CostTable, target: str, nodes: int) -> Finding:
    """What checking this many nodes costs at each calibrated batch."""
    batches = sorted(costs.rows.loc[costs.rows["drafter"] == RULER, "batch"].unique())
    price = {batch: costs.at(target, RULER, batch=batch) for batch in batches}
    checks = ", ".join(f"{own.check(nodes) / own.plain:.2f} at batch {batch}" for batch, own in price.items())
    return Finding(f"A check of {nodes} nodes takes {checks} times a plain round.", "Points: measured; lines: the "
                   "fitted costs between them.", figures.check_curves(costs, target), "costs")


def fastest_budget(candidates: pd.DataFrame, made: Recommendation) -> Finding:
    """The budget of the fastest candidate at each batch; candidates: the table "advice_candidates"."""
    best = [rows.loc[rows["speedup"].idxmax()] for _, rows in candidates.groupby("batch")]
    told = "; ".join(f"at batch {row.batch} `{row.drafter}` with `{row['shape']}`, "
                     f"{_predicted(row)} times plain decoding" for row in best)
    return Finding(f"The fastest budget, predicted: {told}.",
                   f"Predicted on {candidates['n_prompts'].max()} choosing prompts; the star is the "
                   "recommendation, as measured on others.", figures.speed_over_budget(candidates, made),
                   "speed_over_budget")


def tree_or_chain(rows: pd.DataFrame, ratios: pd.DataFrame | None = None,
                  launched: Mapping[str, float] = MappingProxyType({})) -> Finding:
    """Where a drafter's trees are faster than its chains; rows: the table "advice_map", ratios: "advice_ratios" where
    there is one, launched: `machines.launch_bound`.
    """
    rows = trees_and_chains.only_timed(rows)
    if rows.empty:
        return Finding("No tree that branches was tried:", "give a larger `most_nodes`, or drafters that draft one.")
    first = rows["batch"].min()
    where = _alike(rows[rows["batch"] == first])
    panels = {f"{trees_and_chains.HERE}\nmeasured, batch {batch}": own
              for batch, own in rows[rows["hardware"] == trees_and_chains.HERE].groupby("batch")}
    panels |= {f"{hardware}\n{_costs(hardware, source, launched)}, batch {first}": own
               for (hardware, source), own in where.items() if hardware != trees_and_chains.HERE}
    best = {named: own[own["budget"] == trees_and_chains.ANY] for named, own in where.items()}
    table = pd.DataFrame.from_dict({
        f"{hardware} ({_costs(hardware, source, launched)})": _tree_or_chain(own) | _timed(ratios, hardware, first)
        for (hardware, source), own in best.items()}, orient="index").rename_axis("costs of")
    here = best[trees_and_chains.HERE, "measured"]
    return Finding(
        f"At batch {first}, a tree is faster than every chain of the same drafter for {_wins(here)} on this machine; "
        f"the largest ratio is that of {_most(here)}.",
        "Blue: the fastest tree of the budget is faster than the drafter's fastest chain of any length; a dot: beyond "
        "the interval, paired by prompt. Tree and chain were chosen on one half of the prompts and compared on the "
        "other. Speeds are predicted by replay from the acceptance of this run, or, for a drafter that did not compete "
        "here, of another machine's run. Computed costs are a roofline from data sheets, which knows no caches and no "
        "attention; drafting is assumed to take the same share of a plain round as where it was timed."
        + _launches(launched, set(rows["hardware"])) + ("" if ratios is None else " *Timed in turns*: the speed of a "
        "tree over that of a chain on the same prompts, where both were timed."),
        figures.tree_or_chain(rows[rows["budget"] != trees_and_chains.ANY], panels), "tree_or_chain", table=table)


def _alike(rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows by hardware and source; computed costs that say the same of every drafter and budget, such as those on
    which every check is free, are one, under all names.
    """
    said = ["drafter", "budget", "shape", "chain_shape", "speedup", "chain_speedup", "over_chain"]
    found: dict[tuple, list] = {}
    for (hardware, source), own in rows.groupby(["hardware", "source"], sort=False):
        same = own[said].round(9).to_csv(index=False) if source == "computed" else hardware
        found.setdefault((source, same), [[], own])[0].append(hardware)
    return {("; ".join(names), source): own for (source, _), (names, own) in found.items()}


def _costs(hardware: str, source: str, launched: Mapping[str, float]) -> str:
    """How the costs of a hardware are known, and whether they are those of launching kernels."""
    return f"{source}, launch-bound" if hardware in launched else source


def _launches(launched: Mapping[str, float], shown: set[str]) -> str:
    told = [f"{name} {times:.0f} times as long" for name, times in launched.items() if name in shown]
    return (f" *Launch-bound*: a plain step takes more than {roofline.LAUNCH_BOUND:.0f} times as long as reading the "
            f"weights ({', '.join(told)}), so that it is the time of launching kernels, and wider checks look free."
            if told else "")


def _timed(ratios: pd.DataFrame | None, hardware: str, batch: int) -> dict[str, str]:
    """What was timed on one hardware of trees over chains, in words; nothing without the table "advice_ratios"."""
    if ratios is None:
        return {}
    own = ratios[(ratios["hardware"] == hardware) & (ratios["batch"] == batch)]
    told = [f"{row.tree} over {row.chain}: {recommendation.Interval(row.ratio, row.ratio_low, row.ratio_high)} "
            f"(n = {row.n_prompts}, {row.part})" for row in own.itertuples()]
    return {"timed in turns": "; ".join(told) or "none"}


def _tree_or_chain(best: pd.DataFrame) -> dict[str, str]:
    """The fastest chain and tree of any drafter on one hardware, and for which drafters a tree beats every chain; best:
    the rows of trees of every size.
    """
    chain, tree = (best.loc[best[speed].idxmax()] for speed in ("chain_speedup", "speedup"))
    return {"fastest chain": f"{chain['drafter']}, {chain['chain_shape']}: {chain['chain_speedup']:.2f}",
            "fastest tree": f"{tree['drafter']}, {tree['shape']}: {tree['speedup']:.2f}",
            "a tree beats every chain of its drafter": _wins(best), "most": _most(best).replace("`", "")}


def _wins(best: pd.DataFrame) -> str:
    """For how many drafters a tree beats every chain beyond the interval."""
    if best["over_chain_low"].isna().all():
        return f"{(best['over_chain'] > 1).sum()} of {len(best)} drafters (too few prompts for intervals)"
    return f"{(best['over_chain_low'] > 1).sum()} of {len(best)} drafters"


def _most(best: pd.DataFrame) -> str:
    """The tree that is furthest ahead of its drafter's chains."""
    top = best.loc[best["over_chain"].idxmax()]
    interval = recommendation.Interval(*top[["over_chain", "over_chain_low", "over_chain_high"]])
    return f"`{top['drafter']}` with `{top['shape']}`, {interval} times its best chain"


def where_trees_pay(rows: pd.DataFrame) -> str:
    """For how many drafters a tree beats every chain at measured costs, in a sentence; rows: the table "advice_map"."""
    rows = trees_and_chains.only_timed(rows)
    first = rows[(rows["batch"] == rows["batch"].min()) & (rows["source"] == "measured")]
    best = first[first["budget"] == trees_and_chains.ANY]
    if best.empty:
        return "No tree that branches was tried."
    told = [f"for {_wins(own)} at the costs measured on {hardware}"
            for hardware, own in best.groupby("hardware", sort=False)]
    here = set(best.loc[best["hardware"] == trees_and_chains.HERE, "drafter"])
    others = [f"`{name}`" for name in dict.fromkeys(best["drafter"]) if name not in here]
    absent = f" Of {', '.join(others)}, which did not compete here, the acceptance is that of another machine's run."
    return (f"At batch {best['batch'].iloc[0]} a branching tree is predicted to be faster than every chain of its "
            f"drafter, beyond the 95 % interval, {', '.join(told)}.{absent if others else ''}")


def tree_orders(rows: pd.DataFrame) -> Finding:
    """Which published orders of trees and chains hold, by speed; rows: the table "advice_orders"."""
    rows = trees_and_chains.only_timed(rows)
    rows = rows[(rows["batch"] == rows["batch"].min()) & (rows["source"] == "measured")]
    if rows["ratio_low"].isna().all():
        why = "there are too few prompts to test them" if len(rows) else "no drafter was tried with both of a claim"
        return Finding("Published orders of trees and chains:", f"{why}.")
    told = [f"{(own['ratio_low'] > 1).sum()} of {len(own)} at the costs measured on {hardware} "
            f"({(own['ratio_high'] < 1).sum()} reversed)" for hardware, own in rows.groupby("hardware", sort=False)]
    shown = rows.assign(value=rows["ratio"], low=rows["ratio_low"], high=rows["ratio_high"])
    shown["told"] = stats.format_estimates(shown)
    shown["order"] += " (" + shown["published"] + ")"
    wide = shown.pivot(index=["order", "drafter"], columns="hardware", values="told")[list(rows["hardware"].unique())]
    return Finding(
        f"Published orders of trees and chains that hold by speed, beyond their interval: {'; '.join(told)}.",
        f"Predicted at batch {rows['batch'].iloc[0]}: the fastest of the one kind over the fastest of the other, of "
        "the same drafter, chosen on one half of the prompts and compared on the other. Grown trees are those of rules "
        "that use no costs, without SMART and automatic budgets; the fastest rule need not be the paper's. Papers "
        "report these orders for larger targets, whose rounds take longer.",
        table=wide.fillna(""))


def by_form(candidates: pd.DataFrame) -> Finding:
    """Each drafter's fastest chain, static tree, grown tree and automatic budget; candidates: "advice_candidates"."""
    automatic = candidates["shape"].str.endswith(f"@{AUTO}")
    forms = candidates["shape"].map(form).mask(candidates["chain"], CHAIN).mask(automatic, AUTOMATIC)
    keys = ["batch", "drafter"]
    best = candidates.assign(form=forms)
    best = best.loc[best.groupby([*keys, "form"], sort=False)["speedup"].idxmax()]
    speeds, told = (best.assign(told=[f"{_predicted(row)} {row.shape}" for row in best.itertuples()])
                    .pivot(index=keys, columns="form", values=name).reindex(columns=FORMS).dropna(axis=1, how="all")
                    for name in ("speedup", "told"))
    first = speeds.loc[speeds.index.get_level_values("batch").min()]
    counts, tried = first.idxmax(axis=1).value_counts().reindex(first.columns, fill_value=0), first.notna().sum()
    listed = ", ".join(f"{name} for {counts[name]} of {tried[name]}" for name in first)
    text = "Predicted speedup over plain decoding on the choosing prompts, and the shape."
    if AUTOMATIC in first:
        gain = (first[AUTOMATIC] / first.drop(columns=AUTOMATIC).max(axis=1)).dropna()
        text += (f" An automatic budget is predicted to be {gain.min():.2f} to {gain.max():.2f} times as fast as the "
                 "drafter's best other shape.")
    return Finding(f"At batch {speeds.index[0][0]} a drafter's fastest form, of those that it was tried with, is "
                   f"{listed} drafters.", text, table=told.fillna(""))


def machines(rows: pd.DataFrame) -> Finding:
    """What was recommended on other machines; rows: the table "advice_machines"."""
    table = pd.DataFrame({
        "machine": rows["machine"] + ", " + rows["threads"].astype(str) + " threads", "number format": rows["dtype"],
        "batch": rows["batch"], "drafter": rows["drafter"], "tree": rows["shape"],
        "predicted": rows["predicted"].map("{:.2f}".format), "speedup [95 %]": _measured(rows),
        "judged on": rows["judged"],
        "tokens/s, plain decoding": rows["plain"].map("{:.3g}".format)})
    competed = "; ".join(f"on {machine}: {drafters}" for machine, drafters in
                         rows.drop_duplicates("machine")[["machine", "drafters"]].itertuples(index=False))
    return Finding("The same target on other machines, measured there.", f"Drafters that competed {competed}. Besides "
                   "the machine, prompts, their number and the length of answers may differ from this run, and so may "
                   "the acceptance behind a prediction. *Judged on*: prompts, or batches of them.",
                   table=table.set_index(["machine", "batch"]))


def in_words(rows: pd.DataFrame) -> str:
    """What was recommended on other machines, in a sentence for each; rows: the table "advice_machines"."""
    told = []
    for machine, own in rows.assign(speedup=_measured(rows)).groupby("machine", sort=False):
        each = [f"plain decoding at batch {row.batch}" if row.drafter == recommendation.NO_DRAFTER else
                f"`{row.drafter}` with `{row.shape}` at batch {row.batch}, {row.speedup} times plain decoding "
                f"(predicted {row.predicted:.2f}{_few(row)})" for row in own.itertuples()]
        competed = len(own["drafters"].iloc[0].split(", "))
        told.append(f"On {machine}, where {competed} drafters competed: {'; '.join(each)}.")
    return " ".join(told)


def _few(row) -> str:
    """How many prompts judged a recommendation, where they are too few for an interval."""
    judged = f"{row.judged} prompts" if row.batch == 1 else f"{row.judged} batches of prompts"
    return "" if pd.notna(row.measured_low) else f"; {judged}, too few for an interval"


def _measured(rows: pd.DataFrame) -> list[str]:
    return [str(recommendation.Interval(*each))
            for each in rows[["measured", "measured_low", "measured_high"]].itertuples(index=False)]


def larger_pairs(rows: pd.DataFrame) -> Finding:
    """What the same acceptance is worth with the costs of each pair; rows: the table "advice_sizes"."""
    if rows.empty:
        return Finding("No larger pair was compared:", "all drafters here are heads, or draft with more than the "
                       "pair's own draft model, whose cost in a larger pair is not known.")
    first = rows[rows["batch"] == rows["batch"].min()]
    told = ", ".join(f"{_predicted(row)} times plain decoding with the costs of `{row.costs}`"
                     for row in _fastest(first).itertuples())
    alone = (" No larger pair was timed: none was asked for, or the processor has no units for their number format."
             if rows["costs"].nunique() < 2 else "")
    return Finding(
        f"At batch {first['batch'].iloc[0]} the same acceptance is worth {told}.", "Predicted speedup of the fastest "
        "drafter at each batch, by budget, with 95 % bands; dotted: its chains. What a larger pair would accept is "
        f"not measured.{alone}", figures.speed_by_size(rows), "larger_pairs")


def terms(rows: pd.DataFrame) -> pd.DataFrame:
    """By costs and batch, the terms of the speed of the fastest shape; rows: the table "advice_sizes"."""
    if rows.empty:
        return rows
    best = _fastest(rows).set_index(["costs", "batch"])
    chains = rows[rows["chain"]].groupby(["costs", "batch"])["speedup"].max()
    return pd.DataFrame({
        "number format": best["dtype"], "plain round (ms)": best["plain_ms"].round(2),
        "drafting a token / plain": best["level"].round(2), "nodes that add a tenth at most": best["free"],
        "fastest drafter": best["drafter"], "its nodes": best["budget"], "its check / plain": best["check"].round(2),
        "its speedup": best["speedup"].round(2), "best chain's": chains.reindex(best.index).round(2)})


def beside_formulas(rows: pd.DataFrame) -> Finding:
    """Leviathan's formula and the blog's table beside replay; rows: the table "advice_formulas"."""
    if rows.empty:
        return Finding("No formula was compared:", "no drafter was tried with a chain of a single token.")
    wide = rows.pivot(index=["batch", "length"], columns="by", values="speedup")
    over = wide[measure.LEVIATHAN] / wide[measure.REPLAY]
    batch, length = over.idxmax()
    return Finding(
        f"Leviathan's formula gives {over.min():.2f} to {over.max():.2f} times the speedup of replay and measured "
        f"costs for `{rows['drafter'].iloc[0]}`,", f"most at batch {batch} and length {length}: it charges nothing for "
        "a longer check. The source blog's table knows no hardware.", figures.formulas(rows), "formulas")


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


def best_lengths(rows: pd.DataFrame) -> Finding:
    """The length of a chain that each published formula calls the best; rows: the table "formula_lengths"."""
    shown = rows.assign(told=[f"{row.length} ({row.speedup:.2f})" for row in rows.itertuples()])
    return Finding(
        "The best draft length by formula, and its speedup in brackets.", "Rows: the chance that a draft token is "
        "accepted; columns: a drafter's step over a target's step. Computed, not measured; lengths of 1 to "
        f"{formulas.LONGEST} were tried.", table=shown.pivot(index=["by", "alpha"], columns="cost", values="told"))


def source_grid(rows: pd.DataFrame) -> Finding:
    """Two weblogs' tables beside the same measured here, one for each grid; rows: the table "source_grid"."""
    rows = rows.assign(**{
        name: _with_ends(rows, name) for name in ("rate", "speedup")}, measured=rows["drafter"] + ", " + rows["shape"])
    rows["measured"] = rows["measured"].mask(rows["drafter"] == "", "")
    names = {"measured": "measured with", "rate": "acceptance rate", "saved": "target calls saved",
             "memory": "memory added", "n_prompts": "prompts", "claimed_rate": "claimed rate",
             "claimed_saved": "claimed calls saved",
             "claimed_memory": "claimed memory", **{name: name for name in ("tokens", "speedup", "claimed")}}
    kept = {sources.LENGTH: ["measured", "rate", "saved", "speedup", "claimed_rate", "claimed_saved", "claimed"],
            sources.PAIR: ["measured", "rate", "saved", "memory", "claimed_rate", "claimed_memory", "claimed"],
            sources.TASK: ["measured", "tokens", "speedup", "n_prompts", "claimed"],
            sources.SCENARIO: ["measured", "tokens", "speedup", "n_prompts", "claimed"]}
    shown = [own.set_index("row")[kept[name]].rename(columns=names).rename_axis(name).round(2).astype(object).fillna("")
             for name, own in rows.groupby("grid", sort=False)]
    machines, formats = ([each for each in rows[name].unique() if each] for name in ("machine", "dtype"))
    return Finding(
        "Two weblogs' tables beside the same measured here.", "Acceptance is replayed, on "
        f"{', '.join(formats)} models; a speedup is that of these tokens at the costs timed on "
        f"{', '.join(machines) or 'no machine'}, and missing where drafting was not timed. By task each drafter has "
        "its best shape, by scenario the fastest chain stands, both chosen on half of the prompts.", table=shown)


def _with_ends(rows: pd.DataFrame, name: str) -> list[str]:
    ends = rows[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
    return ["" if np.isnan(each[0]) else str(recommendation.Interval(*each)) for each in ends]


def recommended_tree(own: ForBatch) -> Finding:
    """A picture of the recommended tree at one batch."""
    if own.is_plain or not isinstance(own.shape, Tree):
        return Finding(f"At batch {own.batch} there is no tree to draw:", own.sentence + ".")
    figure = drawing.draw_tree(own.shape, title=f"{own.drafter}, batch {own.batch}: {drawing.describe(own.shape)}")
    return Finding(f"The recommended tree at batch {own.batch}:", own.sentence + ".", figure, "recommended_tree")


def as_engines_take_it(own: ForBatch) -> Finding:
    """The settings of serving engines for the recommendation at one batch."""
    if not own.settings:
        why = own.for_engines or "plain decoding is fastest: leave speculation off"
        return Finding(f"Settings of serving engines at batch {own.batch}:", f"{why}.")
    what = own.for_engines or "the tree where they can express it, else the drafter's best chain"
    return Finding(f"As serving engines take it, at batch {own.batch}:", f"{what}.",
                   table=pd.DataFrame(own.settings).set_index("engine"))


def _predicted(row) -> str:
    return f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"


def _fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest shape's row of each costs and batch, in the order of the table."""
    return rows.loc[rows.groupby(["costs", "batch"], sort=False)["speedup"].idxmax()]


# --------------------------------------------------------------------------------------------------------------- report

COST = """
## Cost and speed

More nodes never accept less, but they take longer. A calibration of the decoding loop measures what drafting a level
and checking *n* nodes cost on this machine; replay counts the tokens. Together they predict the speed of each drafter
and tree. The fastest few are then timed, and the winner is measured on prompts that did not choose it.
"""
SIZES = """
### Other hardware and larger models

Reading the weights from memory takes a fixed time per round, and up to some number of nodes the arithmetic takes less.
That number grows with the processor's rate of arithmetic over its memory bandwidth: few nodes on two cores, many on a
GPU. The cost of a model does not depend on its weights' values, so pairs of other sizes were timed with random weights;
the acceptance is the one measured here.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Cost and speed"; a sentence in its place where the run made no recommendation."""
    if "advice_candidates" not in run:
        yield "## Cost and speed\n\nThis run made no recommendation: notebook 06 is not part of it."
        return
    made, candidates = recommendation.load(run.run_dir / recommendation.FILE), run["advice_candidates"]
    yield COST
    yield check_costs(CostTable(run["costs"]), made.target, min(8, candidates["budget"].max()))
    yield fastest_budget(candidates, made)
    if "advice_map" in run:
        yield tree_or_chain(run["advice_map"], run["advice_ratios"] if "advice_ratios" in run else None, of_run(run))
    if "advice_errors" in run:
        yield predicted_and_measured(run["advice_errors"])
    yield calibrated_and_timed(candidates, run["advice_timed"])
    yield kinds(made, run["advice_timed"])
    yield SIZES
    yield larger_pairs(run["advice_sizes"] if "advice_sizes" in run else pd.DataFrame())
    if "advice_machines" in run:
        yield machines(run["advice_machines"])


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Settings of serving engines, and formulas beside replay."""
    if "advice_candidates" not in run:
        return
    made = recommendation.load(run.run_dir / recommendation.FILE)
    yield "## Serving engines and costs by size"
    for own in [own for own in made.by_batch if own.settings] or made.by_batch[:1]:
        yield as_engines_take_it(own)
    yield by_form(run["advice_candidates"])
    if "advice_orders" in run:
        yield tree_orders(run["advice_orders"])
    if "advice_sizes" in run:
        yield terms(run["advice_sizes"])
    if "advice_formulas" in run:
        yield beside_formulas(run["advice_formulas"])
