"""What the acceptance tables add up to: acceptance lengths with intervals, shapes compared with the optimal tree;
choices of a tree; grown trees; expected acceptance.

Every function takes tables (see `schema`) and returns a table or a number; those that resample take a generator.
"""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.replay.acceptance import CONTINUATION, RANKS, REAL_TEXT
from lib.trees.tree import Tree

GROWN = ("sparse", "optimal", "frequent")  # families grown from data; the others are fixed in advance
SETTING = ["pair", "protocol", "temperature", "family", "budget"]
MEMORISED = 0.3  # nats per token: a kind of text on which the target's loss is lower says nothing about tasks
BEST_STATIC = "best static"


def where(rows: pd.DataFrame, **wanted) -> pd.DataFrame:
    """The rows in which every named column has the wanted value. ValueError where there are none."""
    keep = np.logical_and.reduce([rows[name] == value for name, value in wanted.items()])
    if not keep.any():
        values = "; ".join(f"{name}: {sorted(rows[name].unique())}" for name in wanted)
        raise ValueError(f"no row has {wanted}; there are {values}")
    return rows[keep]


def before_loops(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of text before a loop; the table may be empty."""
    return rows[rows["stretch"] == "before"] if "stretch" in rows else rows


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of text before a loop, with the column `pair`."""
    kept = before_loops(rows)
    return kept.assign(pair=kept["target"] + "/" + kept["drafter"]) if "pair" not in kept else kept


# -------------------------------------------------------------------------------------------------------------- shapes


def protocol_of(rows: pd.DataFrame, pair: str) -> str:
    """The protocol of a pair's headlines: real-text starts where the run has them, as for base models."""
    return REAL_TEXT if REAL_TEXT in set(rows.loc[rows["pair"] == pair, "protocol"]) else CONTINUATION


def headline(rows: pd.DataFrame, pair: str, temperature: float = 0.0) -> pd.DataFrame:
    """The rows that headlines rest on: one pair, the protocol of its headlines, one temperature (0: greedy)."""
    own = rows[(rows["pair"] == pair) & (rows["temperature"] == temperature)]
    return own[own["protocol"] == protocol_of(rows, pair)]


def lengths(rows: pd.DataFrame, generator: np.random.Generator, by: Sequence[str] = SETTING) -> pd.DataFrame:
    """Acceptance length with its interval for each setting."""
    return stats.summarise(rows, by, "accepted", "rounds", generator)


def best_fixed(estimates: pd.DataFrame) -> pd.DataFrame:
    """For each budget of one setting the fixed family of the largest acceptance length, with `of_optimal`, its share of
    the optimal tree's.
    """
    fixed = estimates[~estimates["family"].isin(GROWN)]
    best = fixed.loc[fixed.groupby("budget", sort=False)["value"].idxmax()].set_index("budget")
    optimal = estimates[estimates["family"] == "optimal"].set_index("budget")["value"]
    return best.assign(of_optimal=best["value"] / optimal)


def exhausted(estimates: pd.DataFrame, family: str, share: float = 0.99) -> int:
    """The smallest budget at which a family has this share of its largest acceptance length."""
    own = estimates[estimates["family"] == family].sort_values("budget").set_index("budget")["value"]
    return int((own >= share * own.max()).idxmax())


def memorised(losses: pd.DataFrame, target: str) -> list[str]:
    """Kinds of text that a target has memorised, from the table of held-out losses (member, kind, nats_a_token)."""
    own = losses[losses["member"] == target]
    return sorted(own.loc[own["nats_a_token"] < MEMORISED, "kind"])


def tree_of(nodes: pd.DataFrame) -> tuple[Tree, np.ndarray]:
    """A tree from the table `nodes` (the rows of one family and setting), and the share of rounds that accepted each
    node, 1 for the root: float[m].
    """
    tree = Tree.from_choices(tuple(map(int, path.split("."))) for path in nodes["path"])
    share = dict(zip(nodes["path"], nodes["accepted"] / nodes["rounds"].clip(lower=1)))
    return tree, np.array([1.0, *(share[".".join(map(str, path))] for path in tree.choices())])


def utilisation(nodes: pd.DataFrame, at_least: float = 0.01) -> pd.Series:
    """For each family the share of a tree's nodes that are accepted in at least this share of rounds."""
    used = nodes["accepted"] >= at_least * nodes["rounds"]
    return used.groupby(nodes["family"]).mean()


def coverage(ranks: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """The share of positions at which the target's token is among the drafter's k best, for k = 1 .. 16, from the table
    `rank`; with intervals.
    """
    within = ranks[[f"rank_{r}" for r in range(RANKS)]].cumsum(axis=1).to_numpy()
    long = [ranks[[*by, "prompt", "positions"]].assign(k=k + 1, covered=within[:, k]) for k in range(RANKS)]
    return stats.summarise(pd.concat(long), [*by, "k"], "covered", "positions", generator, rounds="positions")


# ------------------------------------------------------------------------------------------------------------- choices


def by_text(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """For each pair and family: what a tree from fewer prompts loses against the tree from all (tokens per round,
    paired), with `positions`, the mean number it was chosen from.
    """
    own = clean(rows)
    lost = stats.compare(own, ["pair", "family"], "prompts", own["prompts"].max(), "accepted", "rounds", generator)
    about = own.groupby(["pair", "family", "prompts"], as_index=False)["positions"].mean()
    return lost.merge(about, on=["pair", "family", "prompts"])


def stable_from(lost: pd.DataFrame, tolerance: float) -> int | None:
    """The fewest prompts from which on the loss against all prompts stays above -`tolerance` tokens per round, its
    interval included; None where only all prompts do.

    lost: the rows of one pair and family of `by_text`.
    """
    ordered = lost.sort_values("prompts", ascending=False)
    near = (ordered["low"] > -tolerance).cumprod().astype(bool)
    return int(ordered.loc[near, "prompts"].min()) if near.any() else None


# ----------------------------------------------------------------------------------------------------------- the others


def growth_differences(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Acceptance length of each growth rule less that of the best static family, for each budget, paired by prompt.

    rows: of the table `growth`, of one setting. The static family of the largest acceptance length is taken for each
    budget after the fact, which favours static trees: a rule that is ahead of it is ahead of all of them.
    """
    is_static = rows["confidence"].isna()
    sums = rows[is_static].groupby(["budget", "family"])[["accepted", "rounds"]].sum()
    best = (sums["accepted"] / sums["rounds"]).groupby("budget").idxmax()
    static = rows[[pair in set(best) for pair in zip(rows["budget"], rows["family"])]]
    both = pd.concat([static.assign(family=BEST_STATIC), rows[~is_static]])
    return stats.compare(both, ["budget"], "family", BEST_STATIC, "accepted", "rounds", generator)


def expected_and_live(expected: pd.DataFrame, live: pd.DataFrame) -> pd.DataFrame:
    """The rows of the tables `expected` and `live` for the settings that both have, of text before a loop; `how` says
    which table, `label` names rule, shape and temperature.
    """
    setting = ["rule", "shape", "temperature"]
    both = pd.concat([expected.assign(how="expected"), live.assign(how="live")], ignore_index=True)
    both = both[(both["stretch"] == "before") & (both["temperature"] > 0)]
    in_both = both.groupby(setting)["how"].transform("nunique") == 2
    labels = [f"{row.rule}, {row['shape']}, t = {row.temperature:g}" for _, row in both.iterrows()]
    return both.assign(label=labels)[in_both].reset_index(drop=True)
