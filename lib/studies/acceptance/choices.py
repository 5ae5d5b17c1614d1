"""What the choice of a tree costs: chosen from little text, for all kinds of text at once, or for another objective.

Every tree is chosen on the choosing prompts and judged on the others; rows are by judged prompt, so that differences
can be paired and come with intervals.
"""

from typing import Iterator, Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.replay import acceptance
from lib.replay.acceptance import FREQUENT
from lib.replay.chained_search import improve
from lib.replay.frequent_paths import frequent
from lib.replay.trace import Trace
from lib.trees.tree import Tree

OWN, ALL, AS_FEW = "its own kind", "all kinds", "all kinds, as few prompts"
UNIFORM, CHAINED = "uniform starts", "chained rounds"  # what a tree was chosen for


def judged_rows(judged: Trace, drafter: str, tree: Tree, **columns) -> pd.DataFrame:
    """`acceptance.tally` of one chosen tree, with these columns."""
    return acceptance.tally(judged, tree, acceptance.rounds_of(judged, tree, drafter)).assign(
        drafter=drafter,
        budget=tree.budget,
        **{key: judged.about[key] for key in ("target", "protocol", "temperature")},
        **columns,
    )


def of_prompts(trace: Trace, prompts: Sequence[str]) -> Trace:
    """The rows of a trace that belong to these prompts."""
    return trace.select(np.isin(np.array(trace.prompts), list(prompts)))


def choosing_positions(trace: Trace) -> int:
    """Transitions before a loop: what a tree is chosen from."""
    return int(np.minimum(trace.loops, trace.lengths).sum())


def shared(tree: Tree, other: Tree) -> float:
    """The share of a tree's nodes that another has too."""
    return len(set(tree.choices()) & set(other.choices())) / max(1, tree.budget)


def by_kind(
    choosing: Trace, judged: Trace, drafter: str, budget: int, generator: np.random.Generator, draws: int = 5
) -> pd.DataFrame:
    """One tree of most frequent rank paths for each kind of text, against one for all kinds, judged on that kind.

    The tree for all kinds has seen more text. So a third arm draws as many prompts as a kind has from all kinds,
    `draws` times: what it loses against the tree of its own kind is due to the mixture alone.
    """
    everything = frequent(choosing, budget, drafter)
    frames = []
    for kind in sorted(set(judged.kinds)):
        own = choosing.select(np.array(choosing.kinds) == kind)
        ours = judged.select(np.array(judged.kinds) == kind)
        arms = [(OWN, 0, own), (ALL, 0, choosing)]
        count = len(set(own.prompts))
        arms += [(AS_FEW, draw, drawn) for draw, drawn in enumerate(_drawn(choosing, count, draws, generator))]
        for arm, draw, text in arms:
            tree = frequent(text, budget, drafter)
            about = _about(text) | dict(arm=arm, draw=draw, shared=shared(tree, everything))
            frames.append(judged_rows(ours, drafter, tree, **about))
    return pd.concat(frames, ignore_index=True).assign(question="kinds")


def by_objective(choosing: Trace, judged: Trace, drafter: str, budgets: Sequence[int]) -> pd.DataFrame:
    """The most frequent rank paths, best for uniform starts, against the same tree improved on chained rounds."""
    about = _about(choosing) | dict(draw=0)
    frames = []
    for budget in budgets:
        uniform = frequent(choosing, budget, drafter)
        for arm, tree in ((UNIFORM, uniform), (CHAINED, improve(choosing, uniform, drafter))):
            frames.append(judged_rows(judged, drafter, tree, arm=arm, shared=shared(tree, uniform), **about))
    return pd.concat(frames, ignore_index=True).assign(question="objective")


def losses(
    rows: pd.DataFrame, by: Sequence[str], between: str, base: object, generator: np.random.Generator
) -> pd.DataFrame:
    """The paired difference in acceptance length of every choice from the choice `base`, before loops, with intervals.
    """
    return stats.compare(rows[rows["stretch"] == "before"], by, between, base, "accepted", "rounds", generator)


def _about(text: Trace) -> dict[str, object]:
    """What a tree of most frequent rank paths was chosen from."""
    return dict(family=FREQUENT, prompts=len(set(text.prompts)), positions=choosing_positions(text))


def _drawn(trace: Trace, prompts: int, draws: int, generator: np.random.Generator) -> Iterator[Trace]:
    names = sorted(set(trace.prompts))
    for _ in range(draws):
        yield of_prompts(trace, generator.choice(names, prompts, replace=False))
