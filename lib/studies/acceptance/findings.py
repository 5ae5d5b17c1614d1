"""What the acceptance tables say: shapes against each other, against the best tree and against knowing the future."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.replay.acceptance import REAL_TEXT
from lib.trees.tree import Tree

GROWN = ("sparse", "optimal", "frequent")  # chosen from data; the other families are fixed in advance
SETTING = ["pair", "protocol", "temperature", "family", "budget"]
MEMORISED = 0.3  # nats a token: a kind that the target knows better than this says nothing about tasks


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows before a loop, with the pair's name."""
    kept = rows[rows["stretch"] == "before"] if "stretch" in rows else rows
    return kept.assign(pair=kept["target"] + "/" + kept["drafter"]) if "pair" not in kept else kept


def lengths(rows: pd.DataFrame, generator: np.random.Generator, by: Sequence[str] = SETTING) -> pd.DataFrame:
    """Acceptance length with its interval for every setting."""
    return stats.summarise(rows, by, "accepted", "rounds", generator)


def best_fixed(found: pd.DataFrame) -> pd.DataFrame:
    """By pair, protocol, temperature and budget: the fixed family of the largest acceptance length, with
    `of_optimal`, its share of the optimal tree's.
    """
    group = ["pair", "protocol", "temperature", "budget"]
    fixed = found[~found["family"].isin(GROWN)]
    best = fixed.loc[fixed.groupby(group, sort=False)["value"].idxmax()]
    top = found.loc[found["family"] == "optimal", [*group, "value"]].rename(columns={"value": "optimal"})
    joined = best.merge(top, on=group)
    return joined.assign(of_optimal=joined["value"] / joined["optimal"])


def doubling(found: pd.DataFrame, budgets: Sequence[int]) -> pd.DataFrame:
    """What each step from one budget to the next adds to the acceptance length, per doubling of the budget."""
    ordered = found[found["budget"].isin(budgets)].sort_values("budget")
    group = ordered.groupby([name for name in SETTING if name != "budget"], sort=False)
    return ordered.assign(gain=group["value"].diff() / np.log2(ordered["budget"] / group["budget"].shift())).dropna(
        subset=["gain"]
    )


def tree_of(nodes: pd.DataFrame) -> tuple[Tree, np.ndarray]:
    """A tree of the table `nodes` (the rows of one family and setting), and how often each node was accepted, the root
    included (always): float[m].
    """
    tree = Tree.from_choices(tuple(map(int, path.split("."))) for path in nodes["path"])
    share = dict(zip(nodes["path"], nodes["accepted"] / nodes["rounds"].clip(lower=1)))
    return tree, np.array([1.0, *(share[".".join(map(str, path))] for path in tree.choices())])


def utilisation(nodes: pd.DataFrame, at_least: float = 0.01) -> pd.Series:
    """By family: the share of a tree's nodes that are accepted in at least so large a share of rounds."""
    used = nodes["accepted"] >= at_least * nodes["rounds"]
    return used.groupby(nodes["family"]).mean()


def of_oracle(found: pd.DataFrame, depths: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """Each setting's share of what its depth allows: a drafter that knew the future would gain min(depth, horizon)."""
    joined = found.merge(
        depths.drop_duplicates(["pair", "family", "budget"])[["pair", "family", "budget", "depth"]],
        on=["pair", "family", "budget"],
    )
    return joined.assign(share=joined["value"] / joined["depth"].clip(upper=horizon))


def asked_for(pair: str, names: Sequence[str]) -> str:
    """The pair itself, if the run has it. ValueError with those that it has."""
    if pair not in names:
        raise ValueError(f"pair is {pair!r}, which this run has not; choose one of {', '.join(names)}")
    return pair


def memorised(losses: pd.DataFrame, target: str) -> list[str]:
    """Kinds of text that a target knows by heart, from the table of held-out losses (member, kind, nats_a_token)."""
    own = losses[losses["member"] == target]
    return sorted(own.loc[own["nats_a_token"] < MEMORISED, "kind"])


def spread(rows: pd.DataFrame, over: str, generator: np.random.Generator, **fixed) -> pd.DataFrame:
    """Acceptance length by the values of one column, all that `fixed` names held."""
    for name, value in fixed.items():
        rows = rows[rows[name] == value]
    return lengths(rows, generator, [over])


def headline(rows: pd.DataFrame, pair: str) -> pd.DataFrame:
    """The rows that headlines rest on: one pair, real-text starts, greedy."""
    return rows[(rows["pair"] == pair) & (rows["protocol"] == REAL_TEXT) & (rows["temperature"] == 0)]


def verdicts(
    lead: pd.Series, fixed: pd.Series, by_kind: pd.Series, by_shape: pd.Series, budget: int
) -> list[str]:
    """Three sentences: does a tree beat a chain, does another fixed shape serve larger budgets, does text or shape
    decide more.

    lead: the optimal tree's paired gain over the chain (value, low, high); fixed: the best fixed family by budget;
    by_kind, by_shape: acceptance lengths at this budget.
    """
    told = ["A chain is soon exhausted, the right tree is not." if lead["low"] > 0
            else "At this size a tree is not clearly ahead of a chain."]
    small, large = (family.partition(":")[0] for family in fixed.sort_index().iloc[[0, -1]])
    if small == "chain" != large:
        told.append("Small budgets want depth, large ones want breadth where the drafter hesitates.")
    else:
        told.append("One kind of fixed shape serves small and large budgets." if small == large
                    else "Small and large budgets want different fixed shapes.")
    text_decides = by_kind.max() - by_kind.min() > by_shape.max() - by_shape.min()
    more, less = ("text", "shape") if text_decides else ("shape", "text")
    return [*told, f"At {budget} nodes the {more} decides more than the {less}."]


def exhausted(found: pd.DataFrame, family: str, share: float = 0.99) -> int:
    """The smallest budget at which a family has this share of its largest acceptance length."""
    own = found[found["family"] == family].sort_values("budget").set_index("budget")["value"]
    return int((own >= share * own.max()).idxmax())


def ahead_from(gain: pd.DataFrame, family: str) -> int | None:
    """The smallest budget from which on a family gains beyond its interval; None if it does not at the largest.

    gain: paired differences from another family (budget, family, low), as `stats.compare` gives them.
    """
    own = gain[gain["family"] == family].set_index("budget")["low"].sort_index()
    ahead = (own > 0)[::-1].cummin()[::-1]
    return int(ahead.idxmax()) if ahead.any() else None


def beside(own: pd.DataFrame, reference: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Two runs' estimates next to each other, where both have the setting."""
    names = [*by, "value", "low", "high", "n_prompts"]
    return own[names].merge(reference[names], on=list(by), suffixes=(" (this run)", " (reference)"))


def banded(found: pd.DataFrame, families: Sequence[str] = ("chain", "optimal")) -> pd.DataFrame:
    """The estimates with intervals for these families alone: bands of all lines over one another show nothing."""
    return found.assign(**{side: found[side].where(found["family"].isin(families)) for side in ("low", "high")})
