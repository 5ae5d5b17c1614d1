"""The choice of a drafter and a tree by replay and by timing: replay counts the tokens per round, a few timed rounds
give the seconds.

Drafters that no trace replays (look-up) are decoded live on the same prompts; plain decoding is a candidate too.
"""

import math
from typing import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.cost import best_tree
from lib.cost.calibration import full_rounds
from lib.decoding.records import Round
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.trees.shapes import at_budget
from lib.trees.tree import Tree

Candidate = tuple[str, str]  # drafter, label of its tree: "family@budget"
Run = Callable[[Sequence[Tensor]], Sequence[Round]]  # decodes a group of prompts int64[T] as one batch
PLAIN_DECODING: Candidate = ("none", "plain")
FAMILIES = ("chain", "optimal")  # among which replay chooses
FINALISTS, MORE = 8, 4  # how many candidates are timed again, and how many times as often
LIVE_FAMILIES = ("chain", "independent:4")  # for drafters that fill a number of nodes and a depth with what they find


def candidates(recorded: Trace, families: Iterable[str], budgets: Iterable[int],
               live: Iterable[str] = ()) -> dict[Candidate, Tree]:
    """Trees by drafter and label "family@budget": for the drafters of the trace, grown from its greedy continuations
    where a family is grown from data; LIVE_FAMILIES for the drafters `live`; and the root alone of plain decoding.
    """
    replayed = {(drafter, f"{family}@{budget}"): acceptance.family_tree(family, budget, recorded, drafter)
                for drafter in recorded.ranks for family in families for budget in budgets}
    decoded = {(drafter, f"{family}@{budget}"): at_budget(family, budget)
               for drafter in live for family in LIVE_FAMILIES for budget in budgets}
    return {PLAIN_DECODING: Tree([-1])} | replayed | decoded


def choose(runs: Mapping[Candidate, Run], trees: Mapping[Candidate, Tree], recorded: Trace,
           groups: Sequence[Sequence[Tensor]], *, batch: int, generator: torch.Generator,
           repeats: int = 2) -> pd.DataFrame:
    """What replay and a short calibration promise for each candidate, best first: drafter, shape (its label), budget,
    tokens (per round), turns, round_seconds, speed.

    runs: each candidate as a function that decodes; groups: prompts int64[T], `batch` per group, none of which judges
    the choice. Tokens per round come from replay of `recorded`, the prompts' greedy continuations (see
    `tokens_per_round`), or from decoding all groups where the trace lacks the drafter; seconds from decoding one group
    per turn, the candidates in shuffled order after an untimed run each, of the rounds in which all rows run; speed is
    tokens per second and row. All have `repeats` turns; the FINALISTS that are then fastest have MORE times as many,
    and stand first: the best of many short timings is partly luck.
    """
    tokens = {(drafter, label): tokens_per_round(recorded, drafter, label) if drafter in recorded.ranks else
              live_tokens(runs[drafter, label], groups) for drafter, label in trees}
    seconds: dict[Candidate, list[float]] = {key: [] for key in trees}

    def turn_of(keys: Sequence[Candidate], turn: int) -> list[tuple[Candidate, Sequence[Round]]]:
        """One group of prompts decoded by each candidate, in shuffled order."""
        shuffled = [keys[place] for place in torch.randperm(len(keys), generator=generator).tolist()]
        return [(key, runs[key](groups[turn % len(groups)])) for key in shuffled]

    def median(key: Candidate) -> float:
        return float(np.median(seconds[key])) if seconds[key] else math.inf

    turn_of([*trees], 0)
    turns, racing = dict.fromkeys(trees, 0), [*trees]
    for turn in range((1 + MORE) * repeats):
        if turn == repeats:
            racing = sorted(trees, key=lambda key: median(key) / tokens[key])[:FINALISTS]
        for key, rounds in turn_of(racing, turn):
            seconds[key] += [rows[0].seconds for rows in full_rounds(rounds, batch)
                             if not any(record.cut for record in rows)]
            turns[key] += 1
    promised = pd.DataFrame([
        dict(drafter=drafter, shape=label, budget=tree.budget, tokens=tokens[drafter, label],
             turns=turns[drafter, label], round_seconds=median((drafter, label)))
        for (drafter, label), tree in trees.items()])
    promised["speed"] = promised["tokens"] / promised["round_seconds"]
    return promised.sort_values(["turns", "speed"], ascending=False, ignore_index=True)


def tokens_per_round(recorded: Trace, drafter: str, label: str) -> float:
    """1 + the mean accepted length of "family@budget", grown from one half of the prompts and counted on the other,
    both ways: no tree is judged on the text that it was grown from.
    """
    family, _, budget = label.partition("@")
    accepted = []
    for grow, judge in best_tree.folds(recorded):
        rounds = acceptance.rounds_of(judge, acceptance.family_tree(family, int(budget), grow, drafter), drafter)
        accepted.append(rounds.accepted[~np.asarray(rounds.cut)])
    accepted = np.concatenate(accepted)
    return 1 + (float(accepted.mean()) if len(accepted) else 0.0)


def live_tokens(run: Run, groups: Sequence[Sequence[Tensor]]) -> float:
    """1 + the mean accepted length of the rounds that decode these groups of prompts, without cut rounds."""
    accepted = [record.accepted for group in groups for record in run(group) if not record.cut]
    return 1 + (float(np.mean(accepted)) if accepted else 0.0)
