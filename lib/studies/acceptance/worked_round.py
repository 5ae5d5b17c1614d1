"""One round with real tokens, as rows of the table "worked_round", and its picture: the tree and its mask."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab.findings import Finding
from lib.studies.explorers.round_figures import FONTS, visible
from lib.studies.explorers.walkthrough import Step
from lib.trees import drawing
from lib.trees.tree import ROOT, Tree

CONTEXT = 60  # characters of the text before the root that are kept


def rows_of(step: Step, pair: str, drafter: str, shape: str) -> pd.DataFrame:
    """The round of a step: a row for each node in order, and one for the bonus token, whose parent is the last accepted
    node. Tokens and context show white space by signs.
    """
    tree, end = step.tree, step.accepted[-1] if step.accepted else ROOT
    before = visible("".join(text for text, _ in step.text[: len(step.text) - step.fresh])[-CONTEXT:], CONTEXT)
    return pd.DataFrame({
        "pair": pair, "drafter": drafter, "shape": shape, "node": range(tree.size + 1),
        "parent": [*tree.parents.tolist(), end], "rank": [*tree.rank.tolist(), 0],
        "token": [visible(token) for token in (*step.tokens, step.bonus)], "role": [*_roles(step), "bonus"],
        "context": before})


def _roles(step: Step) -> list[str]:
    return ["root", *("accepted" if node in step.accepted else "rejected" for node in range(1, step.tree.size))]


def drawn(rows: pd.DataFrame) -> Finding:
    """The round as a figure, and in words. rows: the table "worked_round"."""
    nodes, first = rows[rows["role"] != "bonus"], rows.iloc[0]
    kept, bonus = nodes.loc[nodes["role"] == "accepted", "token"], rows["token"].iloc[-1]
    tree = Tree(nodes["parent"].to_numpy(), nodes["rank"].to_numpy())
    accepted = nodes.loc[nodes["role"] == "accepted", "node"].tolist()
    words = " ".join(f"`{token}`" for token in kept)
    return Finding(
        f"A round that yields {len(kept) + 1} tokens.", f"`{first.drafter}` drafts `{first['shape']}` for "
        f"`{first.pair.partition('/')[0]}` after the text “…{first.context}”. The target accepts "
        f"{words or 'no draft token'} and adds `{bonus}`. Right: the mask of the forward pass; a filled cell means "
        "that the node of the row attends to the node of the column.",
        picture(tree, nodes["token"].tolist(), accepted, bonus), "worked_round")


def picture(tree: Tree, tokens: list[str], accepted: list[int], bonus: str) -> Figure:
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
