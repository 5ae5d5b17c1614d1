"""The one drafter and tree that are chosen in advance: replay says what a round yields, a few rounds what it takes."""

from typing import Iterable, Sequence

import numpy as np
import pandas as pd

from lib import acceptance, trace
from lib.decoding import NoDrafter
from lib.studies.alternatives import OWN, made, ours
from lib.studies.speed import groups
from lib.tree import Tree


def candidates(
    recorded: trace.Trace, families: Iterable[str], budgets: Iterable[int]
) -> dict[tuple[str, str], Tree]:
    """Trees by drafter of the trace and label "family@budget", grown from its greedy continuations where a family is
    grown from data.
    """
    return {
        (drafter, f"{family}@{budget}"): acceptance.grown(family, budget, recorded, drafter)
        for drafter in recorded.ranks
        for family in families
        for budget in budgets
    }


def choose(
    pair, asked, recorded: trace.Trace, trees: dict[tuple[str, str], Tree], *, batch: int, new_tokens: int,
    repeats: int = 2,
) -> pd.DataFrame:
    """What replay and a short calibration promise of each drafter and tree, best first: drafter, label, tokens a round,
    seconds, speed.

    Tokens a round come from replay of `recorded`, the asked prompts' greedy continuations; seconds a round from
    decoding the first group of prompts, the trees in turns; speed is tokens a second and row. No prompt that is judged
    is looked at.
    """
    prompts = next(groups(asked, batch))[2]
    drafters = {name: made(pair, name) for name in recorded.ranks}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in trees}
    for _ in range(repeats):
        for key, tree in trees.items():
            drafter = drafters[key[0]] if tree.budget else NoDrafter()
            seconds[key] += [found.seconds for found in ours(pair, drafter, tree, new_tokens)(prompts).rounds]
    rows = []
    for (name, label), tree in trees.items():
        found = acceptance.rounds_of(recorded, tree, name)
        whole = found.accepted[~np.asarray(found.cut)]
        tokens = 1 + (float(whole.mean()) if len(whole) else 0.0)
        rows.append((pair.name, batch, name, label, tree.budget, tokens, float(np.median(seconds[name, label]))))
    said = pd.DataFrame(rows, columns=["pair", "batch", "drafter", "shape", "budget", "tokens", "round_seconds"])
    said["speed"] = said["tokens"] / said["round_seconds"]
    return said.sort_values("speed", ascending=False, ignore_index=True)


def continued(pair, asked, new_tokens: int, drafters: Sequence[str] = (OWN,)) -> trace.Trace:
    """The pair's greedy continuations of the asked prompts, with what drafters thought of them: those that a trace can
    replay, its own model or heads.
    """
    return trace.record(
        pair.target,
        {name: pair.drafter.model if name == OWN else made(pair, name) for name in drafters},
        asked.ids,
        names=asked.names,
        kinds=asked.kinds,
        max_new_tokens=new_tokens,
        eos_token_id=pair.eos_token_ids,
        about={"protocol": acceptance.CONTINUATION, "target": pair.target_name},
    )


def replayable(pair, drafters: Sequence[str]) -> list[str]:
    """Of these drafters those that `continued` can record: the pair's own model, and heads."""
    return [name for name in drafters if name == OWN or hasattr(made(pair, name), "read_ahead")]
