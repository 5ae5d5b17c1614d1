"""The study of choices: all of `choices` and `stability` for some traces of a run, and what the table says."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.replay.acceptance import FREQUENT, REAL_TEXT
from lib.replay.trace import Trace
from lib.studies.acceptance import choices, measure, recording, stability

TOLERANCE = 0.1  # tokens a round: a loss, its interval included, that is next to nothing
FAMILIES = (FREQUENT, "optimal")  # whose need for text is compared: every path's frequency, or 16 numbers


def survey(
    traces: Sequence[Trace], budget: int, budgets: Sequence[int], generator: np.random.Generator
) -> pd.DataFrame:
    """The table `choices`: from real-text starts how much text a tree of `budget` nodes needs and what one tree for all
    kinds loses, from continuations what chained rounds change at each of `budgets`; for all drafters.
    """
    frames = []
    for recorded in traces:
        choosing, judged = recording.halves(recorded)
        for drafter in recorded.ranks:
            if recorded.about["protocol"] == REAL_TEXT:
                frames.append(stability.curve(choosing, judged, drafter, FAMILIES, budget, generator))
                frames.append(choices.by_kind(choosing, judged, drafter, budget, generator))
            else:
                frames.append(choices.by_objective(choosing, judged, drafter, budgets))
    return pd.concat(frames, ignore_index=True)


def by_text(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """For each pair and family: what a tree from fewer prompts loses against that from all (tokens a round, paired),
    with `positions`, the mean number it was chosen from, and `shared`, the mean share of the final tree.
    """
    asked = _of(rows, "prompts")
    found = choices.losses(asked, ["pair", "family"], "prompts", asked["prompts"].max(), generator)
    about = asked.groupby(["pair", "family", "prompts"], as_index=False)[["positions", "shared"]].mean()
    return found.merge(about, on=["pair", "family", "prompts"])


def by_kind(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """For each pair and kind of text, and over all kinds: what other trees lose against the one of its own kind."""
    asked = _of(rows, "kinds")
    each = choices.losses(asked, ["pair", "kind"], "arm", choices.OWN, generator)
    together = choices.losses(asked, ["pair"], "arm", choices.OWN, generator).assign(kind="all together")
    return pd.concat([each, together], ignore_index=True)


def by_objective(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """For each pair and budget: what a tree improved on chained rounds gains against the most frequent rank paths."""
    return choices.losses(_of(rows, "objective"), ["pair", "budget"], "arm", choices.UNIFORM, generator)


def stability_sentence(found: pd.DataFrame) -> str:
    """What `by_text` says of each pair and family: from how much text on the choice costs next to nothing."""
    said = []
    for (pair, family), lost in found.groupby(["pair", "family"], sort=False):
        enough = stability.stable_from(lost, TOLERANCE)
        first = lost.sort_values("prompts").iloc[0]
        loss = f"{-first['value']:.2f} [{-first['high']:.2f}, {-first['low']:.2f}]"
        start = f"{pair}, `{family}`: one prompt loses {loss}"
        end = "only all of them come"
        if enough is not None:
            positions = lost.loc[lost["prompts"] == enough, "positions"].iloc[0]
            end = f"from {positions:,.0f} positions on (prompts: {enough}) the choice stays"
        said.append(f"{start}, and {end} within {TOLERANCE} of all")
    return "; ".join(said)


def _of(rows: pd.DataFrame, question: str) -> pd.DataFrame:
    kept = measure.where(rows, question=question)
    return kept.assign(pair=kept["target"] + "/" + kept["drafter"])
