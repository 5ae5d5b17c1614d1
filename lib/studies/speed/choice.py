"""The one drafter and tree that are chosen in advance: replay says what a round yields, a few rounds what it takes.

Drafters that no trace replays (look-up) are decoded live on the same prompts; plain decoding is a candidate too.
"""

import math
from typing import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
import torch

from lib import replay
from lib.cost import best_tree
from lib.decoding.records import Round
from lib.replay import acceptance
from lib.studies.speed.alternatives import NOBODY, OWN, Continued, made, ours
from lib.studies.speed.measure import groups, whole
from lib.trees.shapes import at_budget
from lib.trees.tree import Tree

PLAIN_DECODING = NOBODY, "plain"
FAMILIES = ("chain", "optimal")  # among which replay chooses
FINALISTS, MORE = 8, 4  # how many candidates are timed again, and how many times as often
LIVE_FAMILIES = ("chain", "independent:4")  # for drafters that fill a number of nodes and a depth with what they find


def candidates(
    recorded: replay.Trace, families: Iterable[str], budgets: Iterable[int], live: Iterable[str] = ()
) -> dict[tuple[str, str], Tree]:
    """Trees by drafter and label "family@budget": for those of the trace grown from its greedy continuations where a
    family is grown from data; LIVE_FAMILIES for the drafters `live`; and the root alone of plain decoding.
    """
    replayed = {
        (drafter, f"{family}@{budget}"): acceptance.grown(family, budget, recorded, drafter)
        for drafter in recorded.ranks
        for family in families
        for budget in budgets
    }
    decoded = {
        (drafter, f"{family}@{budget}"): at_budget(family, budget)
        for drafter in live
        for family in LIVE_FAMILIES
        for budget in budgets
    }
    return {PLAIN_DECODING: Tree([-1])} | replayed | decoded


def choose(
    pair, asked, recorded: replay.Trace, trees: dict[tuple[str, str], Tree], *, batch: int, new_tokens: int,
    generator: torch.Generator, repeats: int = 2,
) -> pd.DataFrame:
    """What replay and a short calibration promise of each drafter and tree, best first: drafter, label, tokens a round,
    turns, seconds, speed.

    Tokens a round come from replay of `recorded`, the asked prompts' greedy continuations (see `tokens_a_round`), or
    from decoding them all where the trace does not know the drafter; seconds from decoding groups of prompts, one a
    turn, the trees in shuffled order after an untimed run each, of the rounds in which all rows run; speed is tokens
    a second and row. All have `repeats` turns; the FINALISTS that these make the fastest have MORE times as many, and
    stand first: of many short timings the best is a lucky one. No prompt that is judged is looked at.
    """
    drafters = {name: made(pair, name) for name in dict.fromkeys(drafter for drafter, _ in trees)}
    runs = {key: ours(pair, drafters[key[0]], tree, new_tokens) for key, tree in trees.items()}
    prompts = [group for _, _, group in groups(asked, batch)]
    tokens = {(name, label): tokens_a_round(recorded, name, label) if name in recorded.ranks else
              live_tokens(runs[name, label], prompts) for name, label in trees}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in trees}

    def run(keys: Sequence[tuple[str, str]], turn: int) -> list[tuple[tuple[str, str], Sequence[Round]]]:
        """The turn's group of prompts decoded by each, in shuffled order."""
        shuffled = [keys[place] for place in torch.randperm(len(keys), generator=generator).tolist()]
        return [(key, runs[key](prompts[turn % len(prompts)]).rounds) for key in shuffled]

    def taken(key: tuple[str, str]) -> float:
        return float(np.median(seconds[key])) if seconds[key] else math.inf

    run([*trees], 0)
    turns, racing = dict.fromkeys(trees, 0), [*trees]
    for turn in range((1 + MORE) * repeats):
        if turn == repeats:
            racing = sorted(trees, key=lambda key: taken(key) / tokens[key])[:FINALISTS]
        for key, rounds in run(racing, turn):
            seconds[key] += [records[0].seconds for records in whole(rounds, batch)]
            turns[key] += 1
    said = pd.DataFrame([
        dict(pair=pair.name, batch=batch, drafter=key[0], shape=key[1], budget=tree.budget, tokens=tokens[key],
             turns=turns[key], round_seconds=taken(key)) for key, tree in trees.items()])
    said["speed"] = said["tokens"] / said["round_seconds"]
    return said.sort_values(["turns", "speed"], ascending=False, ignore_index=True)


def tokens_a_round(recorded: replay.Trace, drafter: str, label: str) -> float:
    """1 + the mean accepted length of "family@budget", grown from one half of the prompts and counted on the other,
    both ways: a tree is not praised for the text that it was grown from.
    """
    family, _, budget = label.partition("@")
    accepted = []
    for grow, judge in best_tree.folds(recorded):
        found = acceptance.rounds_of(judge, acceptance.grown(family, int(budget), grow, drafter), drafter)
        accepted.append(found.accepted[~np.asarray(found.cut)])
    accepted = np.concatenate(accepted)
    return 1 + (float(accepted.mean()) if len(accepted) else 0.0)


def live_tokens(run: Callable[[Sequence[torch.Tensor]], Continued], prompts: Sequence[Sequence[torch.Tensor]]) -> float:
    """1 + the mean accepted length of the rounds that decode these groups of prompts, cut ones left out."""
    accepted = [found.accepted for group in prompts for found in run(group).rounds if not found.cut]
    return 1 + (float(np.mean(accepted)) if accepted else 0.0)


def continued(pair, asked, new_tokens: int, drafters: Sequence[str] = (OWN,)) -> replay.Trace:
    """The pair's greedy continuations of the asked prompts, `new_tokens` a row with its root as `alternatives.ours`
    writes them, with what drafters thought of them: those that a trace can replay, its own model or heads.
    """
    return replay.record(
        pair.target,
        {name: pair.draft_model if name == OWN else made(pair, name) for name in drafters},
        asked.ids,
        names=asked.names,
        kinds=asked.kinds,
        max_new_tokens=new_tokens - 1,
        eos_token_id=pair.eos_token_ids,
        about={"protocol": acceptance.CONTINUATION, "target": pair.target_name},
    )


def replayable(pair, drafters: Sequence[str]) -> list[str]:
    """Of these drafters those that `continued` can record: the pair's own model, and heads."""
    return [name for name in drafters if name == OWN or hasattr(made(pair, name), "read_ahead")]
