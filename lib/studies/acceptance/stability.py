"""How much text the choice of a tree needs: grown from ever more prompts, judged on others."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.studies.acceptance.choices import choosing_positions, judged_rows, of_prompts, shared


def curve(
    choosing: Trace,
    judged: Trace,
    drafter: str,
    families: Sequence[str],
    budget: int,
    generator: np.random.Generator,
    *,
    draws: int = 5,
) -> pd.DataFrame:
    """Rows of every family's tree grown from 1, 2, 4, ... and all choosing prompts, `draws` nested draws of them each.

    A draw puts the prompts in random order, and its subsets are the beginnings; all prompts are one tree alone. The
    column `shared` says how much of the tree of all prompts is there already. Rows of one judged prompt belong
    together whatever the draw, so that intervals from resampling prompts hold for the mean of the draws.
    """
    names = sorted(set(choosing.prompts))
    whole = {family: acceptance.grown(family, budget, choosing, drafter) for family in families}
    frames = []
    for draw, order in enumerate(generator.permutation(names) for _ in range(draws)):
        for count in sizes(len(names)) if draw == 0 else sizes(len(names))[:-1]:
            text = of_prompts(choosing, order[:count])
            for family in families:
                tree = acceptance.grown(family, budget, text, drafter)
                about = dict(family=family, prompts=count, positions=choosing_positions(text), draw=draw)
                frames.append(judged_rows(judged, drafter, tree, shared=shared(tree, whole[family]), **about))
    found = pd.concat(frames, ignore_index=True)
    return found.assign(question="prompts", arm=found["prompts"].astype(str))


def sizes(prompts: int) -> list[int]:
    """1, 2, 4, ... below the number of prompts, and that number."""
    return [2**step for step in range(prompts.bit_length()) if 2**step < prompts] + [prompts]


def stable_from(losses: pd.DataFrame, tolerance: float) -> int | None:
    """The fewest prompts from which on the loss against all prompts stays above -`tolerance` tokens a round, its
    interval too; None where only all prompts do.

    losses: `choices.losses` of one family, by the column `prompts`.
    """
    ordered = losses.sort_values("prompts", ascending=False)
    near = (ordered["low"] > -tolerance).cumprod().astype(bool)
    return int(ordered.loc[near, "prompts"].min()) if near.any() else None
