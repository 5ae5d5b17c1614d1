"""What the advice's table says, as a person reads it."""

import ast
from typing import Mapping

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.studies.advice import by_formula
from lib.studies.advice.measure import BEST_CHAIN, RECOMMENDED, Advice
from lib.trees.tree import Tree

SETTING = ["target", "batch"]
FORMULAS = (by_formula.SMART, by_formula.LEVIATHAN, by_formula.BLOG)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table "advice" by target, batch and what: who drafts, the tree's nodes, in all and level by level, and tokens
    a round, speedup and speed against the recommendation's with their intervals.
    """
    found = {"drafter": table["drafter"], "nodes": table["nodes"], "by level": table["tree"].map(_levels)}
    found |= {f"{name} [95 %]": _with_interval(table, name) for name in ("tokens", "speedup", "against")}
    return pd.DataFrame({name: list(values) for name, values in found.items()},
                        index=pd.MultiIndex.from_frame(table[[*SETTING, "what"]]))


def promises(advised: Mapping[tuple[str, int], Advice]) -> pd.DataFrame:
    """By target, batch and formula: the nodes that it would draft, the speedup that it promises, what replay with
    measured costs says of the same tree on prompts that did not choose, and that speed against the recommendation's.
    """
    table = pd.concat([one.table.assign(promised=one.table["what"].map(one.promised)) for one in advised.values()])
    table = table[table["what"].isin(FORMULAS)]
    found = {"nodes": table["nodes"], "promised speedup": table["promised"].round(2)}
    found |= {"speedup [95 %]": _with_interval(table, "speedup"), "against [95 %]": _with_interval(table, "against")}
    return pd.DataFrame({name: list(values) for name, values in found.items()},
                        index=pd.MultiIndex.from_frame(table[[*SETTING, "what"]]))


def recommended(table: pd.DataFrame) -> str:
    """The recommendation for every target and batch, and what the best chain reaches of it."""
    said = []
    for (target, batch), rows in table.groupby(SETTING, sort=False):
        top, chain = (rows.set_index("what").loc[what] for what in (RECOMMENDED, BEST_CHAIN))
        if not top["nodes"]:
            said.append(f"`{target}` at batch {batch}: plain decoding, which no tree beats")
            continue
        size = f"{top['nodes']} node" + ("s" if top["nodes"] != 1 else "")
        said.append(f"`{target}` at batch {batch}: `{top['drafter']}` with {size}, {top['speedup']:.2f} times plain "
                    f"decoding, the best chain reaches {chain['against']:.0%} of that "
                    f"[{chain['against_low']:.0%}, {chain['against_high']:.0%}]")
    return "; ".join(said)


def followed(table: pd.DataFrame) -> str:
    """What share of the recommendation's speed each formula's choice reaches, over all targets and batches; "" where
    the table has none.
    """
    said = []
    for what in FORMULAS:
        share = table.loc[table["what"] == what, "against"]
        if len(share):
            ends = dict.fromkeys(f"{end:.0%}" for end in (share.min(), share.max()))  # one where they are the same
            said.append(f"{what} {' to '.join(ends)}")
    return ", ".join(said)


def _with_interval(table: pd.DataFrame, name: str) -> list[str]:
    ends = table[[name, f"{name}_low", f"{name}_high"]]
    return stats.in_words(ends.set_axis(["value", "low", "high"], axis=1))


def _levels(tree: str) -> str:
    """The nodes of each level of a tree that is written as its paths."""
    depth = Tree.from_choices(ast.literal_eval(tree)).depth
    return ", ".join(map(str, np.bincount(depth)[1:]))
