"""The races of a recommendation at one batch size: finalists on the choosing prompts, then what was chosen on the
judging prompts (see `recommending` for the whole procedure).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pandas as pd
import torch

from lib.cost import judging, ways
from lib.cost.candidates import Candidate, Entrant, Limits
from lib.engines.settings import SAME, places, settings
from lib.cost.judging import measured
from lib.cost.recommendation import (CHAIN, GENERATE, NO_DRAFTER, NO_TREE, PLAIN, RECOMMENDED, TREE, ForBatch, Raced)
from lib.cost.round_cost import RoundCost
from lib.cost.ways import Deadline
from lib.drafters.drafter import ROOT_ALONE, NoDrafter
from lib.drafters.registry import make
from lib.lab import stats
from lib.models.prompts import PromptSet
from lib.replay.simulated import Recorded
from lib.trees.tree import Tree

MOST_ROWS = 128  # nodes of a whole batch that a shape may have on a CPU
FINALISTS, OF_ONE = 6, 2  # candidates that are timed again, and how many of them may have the same drafter
NEAR = 0.85  # of the fastest prediction, or of plain decoding: a slower candidate is not timed again
REPEATS = 3  # measurements of each way on each batch of prompts, at most
LEAST = 2  # batches of prompts that are measured, whatever they take
# Shares of all time by which replay and pricing begin no further part; of the time that is left then, for growth rules
# and after them for trees whose size costs decide; of the time of a batch size, for the race that chooses; and of the
# time that judges, for the finalists that are neither recommended nor the best chain or tree.
SHARES = {"replay": 0.2, "price": 0.4, "grow": 1 / 6, "automatic": 0.28, "choose": 0.35, "others": 0.35}


@dataclass(frozen=True)
class Task:
    """What is asked, as `recommend` takes it, with the drafters that compete; order, rng: of turns and of intervals;
    warnings: sentences that concern all batch sizes.
    """

    pairs: Sequence
    entrants: Sequence[Entrant]
    batches: Sequence[int]
    new_tokens: int
    limits: Limits
    seed: int
    generate: Callable
    clock: Callable[[], float]
    order: torch.Generator
    rng: np.random.Generator
    warnings: list[str] = field(default_factory=list)

    @property
    def pair(self):
        """The first pair; all have its target."""
        return self.pairs[0]

    def most_nodes(self, batch: int) -> int:
        """Nodes of the largest tree that is tried at a batch size."""
        on_cpu = torch.device(self.pair.target.device).type == "cpu"
        return min(self.limits.nodes, max(4, MOST_ROWS // batch)) if on_cpu else self.limits.nodes


@dataclass(frozen=True)
class Record:
    """What was recorded: the continuations of the choosing prompts; the choosing and the judging prompts whose text
    does not loop, and the share of the judging prompts that does; the static candidates.
    """

    recorded: Recorded
    choosing: PromptSet
    judging: PromptSet
    looping: float
    tried: Sequence[Candidate]


@dataclass(frozen=True)
class Contest:
    """What competes at a batch size: candidates, and the cost of rounds by drafter."""

    batch: int
    tried: Sequence[Candidate]
    prices: Mapping[str, RoundCost]

    def speed(self, candidate: Candidate) -> float:
        """The speed over plain decoding that is predicted of a candidate."""
        return candidate.speedup(self.prices[candidate.entrant.name], self.batch)

    def fastest_first(self, entrants: Iterable[Entrant]) -> list[Entrant]:
        """The drafters that have a price, by the highest speed that is predicted of them, 0 without a candidate."""
        priced = [entrant for entrant in entrants if entrant.name in self.prices]
        best = {entrant.name: max([0.0, *(self.speed(candidate) for candidate in self.tried
                                          if candidate.entrant is entrant)]) for entrant in priced}
        return sorted(priced, key=lambda entrant: -best[entrant.name])


@dataclass(frozen=True)
class Choice:
    """The race on the choosing prompts: its rows, its candidates by name, plain rounds per round of each, the estimated
    speeds, and the share of them that is left without the optimism of choosing. roles: the candidate of RECOMMENDED,
    None for plain decoding; of CHAIN; and of TREE, None without a tree.
    """

    rows: pd.DataFrame
    finalists: Mapping[str, Candidate]
    ratios: Mapping[str, float]
    speeds: Mapping[str, float]
    left: float
    roles: Mapping[str, Candidate | None]


def race(task: Task, choosing: PromptSet, contest: Contest, deadline: Deadline) -> Choice:
    """The finalists' race on the choosing prompts: of nearly the largest predicted speed, few of the same drafter and
    none with the tree of another; the fastest chain and the fastest tree that branches are always among them.
    """
    finalists = {candidate.name: candidate for candidate in finalists_of(contest)}
    rows = timed(task, finalists, ways.groups(choosing, contest.batch), contest.batch, deadline, repeats=1)
    tokens = np.array([candidate.tokens_on(choosing.names) for candidate in contest.tried])
    rates = np.array([contest.speed(candidate) / candidate.tokens for candidate in contest.tried])
    left = judging.optimism(tokens, rates, choosing.kinds, contest.batch, task.rng)
    turns = rows.pivot(index=["prompt", "repeat"], columns="way", values="round_ms")
    ratios = {way: float((turns[PLAIN] / turns[way]).median()) for way in turns.columns if way != PLAIN}
    speeds = {PLAIN: 1.0} | {name: finalists[name].tokens_in(choosing, contest.batch) * ratio
                             for name, ratio in ratios.items()}

    def fastest(names: Sequence[str]) -> Candidate | None:
        """What `judging.choose` takes of these ways; None for plain decoding."""
        nodes = [finalists[name].shape.budget if name in finalists else 0 for name in names]
        return finalists.get(names[judging.choose([speeds[name] for name in names], nodes)]) if names else None

    winner = fastest(list(speeds))
    roles: dict[str, Candidate | None] = {RECOMMENDED: winner}
    for role, kind in ((CHAIN, "is_chain"), (TREE, "branches")):
        fitting = [name for name, candidate in finalists.items() if getattr(candidate, kind)]
        roles[role] = winner if winner and getattr(winner, kind) else fastest(fitting)
    return Choice(rows, finalists, ratios, speeds, left, roles)


def finalists_of(contest: Contest) -> list[Candidate]:
    """The candidates that are timed again (see `race`). ValueError where no drafter drafted a chain."""
    ranked = sorted(contest.tried, key=lambda candidate: (-contest.speed(candidate), candidate.shape.budget))
    chain = next((candidate for candidate in ranked if candidate.is_chain), None)
    if chain is None:
        raise ValueError("no drafter drafted anything: give other drafters, more prompts, or larger limits")
    tree = next((candidate for candidate in ranked if candidate.branches), None)
    chosen: list[Candidate] = []
    for candidate in ranked:
        shapes = [other.shape for other in chosen if other.entrant is candidate.entrant]
        near = contest.speed(candidate) >= NEAR * max(1.0, contest.speed(ranked[0]))
        if near and len(chosen) < FINALISTS and len(shapes) < OF_ONE and candidate.shape not in shapes:
            chosen.append(candidate)
    return chosen + [best for best in (chain, tree) if best and not any(best is other for other in chosen)]


def timed(task: Task, named: Mapping[str, Candidate], asked: Sequence[ways.Group], batch: int, deadline: Deadline, *,
          generated: bool = False, warm: bool = False, **limits) -> pd.DataFrame:
    """`ways.race` of plain decoding, these candidates and, if wanted, transformers' `generate`; the rows of the table
    "advice_timed". warm: whether the drafters have decoded before.
    """
    runs = {PLAIN: ways.ours(task.pair, NoDrafter(), ROOT_ALONE, task.new_tokens, task.generate)}
    for name, candidate in named.items():
        drafter = make(candidate.entrant.spec, candidate.entrant.pair)
        runs[name] = ways.ours(candidate.entrant.pair, drafter, candidate.shape, task.new_tokens, task.generate)
    known = list(runs) if warm else []
    if generated:
        runs[GENERATE] = ways.theirs(task.pair, GENERATE, task.new_tokens, clock=task.clock)
    rows = ways.race(runs, asked, deadline, least=LEAST, device=task.pair.target.device, generator=task.order,
                     warm=known, sparing=[GENERATE], **limits)
    return rows.assign(batch=batch)


def judge(task: Task, record: Record, contest: Contest, choice: Choice,
          deadline: Deadline) -> tuple[ForBatch, pd.DataFrame, list[dict[str, object]]]:
    """The recommendation at a batch size, the timed calls on the judging prompts, and rows of the table
    "advice_errors".
    """
    batch, roles, rng = contest.batch, choice.roles, task.rng
    predicted = {name: speed * choice.left for name, speed in choice.speeds.items()}
    winner = roles[RECOMMENDED]
    way_of = {role: RECOMMENDED if candidate and candidate is winner else role for role, candidate in roles.items()}
    named = {role: candidate for role, candidate in roles.items() if candidate and way_of[role] == role}
    groups = ways.groups(record.judging, batch)
    enough = min(stats.FEWEST, len(groups)), deadline.share(1 - SHARES["others"])
    rows = timed(task, named, groups, batch, deadline, generated=True, warm=True, repeats=REPEATS, enough=enough)
    others = {name: candidate for name, candidate in choice.finalists.items()
              if not any(candidate is other for other in roles.values())}
    rest = rows[:0]
    if others and not deadline.over():
        asked = [group for group in groups if group[0] in set(rows["prompt"])]
        rest = timed(task, others, asked, batch, deadline, warm=True, repeats=1)
        rest["repeat"] += rows["repeat"].max() + 1
    errors = [error(part, way, candidate, choice, record.choosing, batch, rng) for part, ways_ in (
        (rows, named), (rest, others)) for way, candidate in ways_.items() if way in set(part["way"])]
    measured_on, warnings = int(rows["prompt"].nunique()), []
    for what, name in (("budget", "budget"), ("depth", "max_depth")):
        largest = max(getattr(candidate.shape, name) for candidate in contest.tried)
        if winner and not hasattr(winner.shape, "costs") and getattr(winner.shape, name) == largest:
            warnings.append(f"the best {what} is the largest tested, {largest}: a larger one may be faster")
    if measured_on < len(groups):
        warnings.append(f"{measured_on} of {len(groups)} batches of prompts were measured: the time was over (give "
                        "more seconds), or answers ended at their first token")
    if measured_on < stats.FEWEST:
        warnings.append(f"{measured_on} batches of prompts are too few for an interval: give {stats.FEWEST} or more")
    reason = ""
    if winner:  # and stays so where it is not slower than plain decoding
        speedup, calls = (measured(rows, RECOMMENDED, PLAIN, rng, whole) for whole in (False, True))
        times = [judging.call_times(rows, way, batch) for way in (RECOMMENDED, PLAIN)]
        tokens = (rows.loc[rows["way"] == PLAIN, "tokens"] / batch).mean()
        stays, reason = judging.upheld(winner.name, predicted[winner.name], speedup, calls, *times, tokens, measured_on)
        winner = winner if stays else None
    raced = beside(choice.rows, choice.finalists, choice.speeds, rng)
    best = RECOMMENDED if winner else PLAIN
    shown = {RECOMMENDED: best, PLAIN: PLAIN, CHAIN: way_of[CHAIN]}
    shown |= ({TREE: way_of[TREE]} if roles[TREE] else {}) | {GENERATE: GENERATE}
    facts = dict(
        batch=batch, chain=_named(roles[CHAIN]), best_tree=roles[TREE] and _named(roles[TREE]),
        speedup=measured(rows, best, PLAIN, rng), over_chain=measured(rows, best, shown[CHAIN], rng),
        tree_over_chain=roles[TREE] and measured(rows, shown[TREE], shown[CHAIN], rng),
        with_prefill=measured(rows, best, PLAIN, rng, whole=True),
        kinds={kind: measured(calls, best, PLAIN, rng) for kind, calls in rows.groupby("kind")},
        tokens_per_second={name: measured(rows, way, None, rng) for name, way in shown.items()},
        prompts=measured_on, repeats=int(rows["repeat"].nunique()), warnings=warnings, reason=reason, raced=raced,
        raced_on=int(choice.rows["prompt"].nunique()))
    if facts["speedup"].value < 1:
        warnings.append("on the prompts that judge it is slower than plain decoding: give more prompts or seconds")
    if winner is None:
        facts |= dict(drafter=NO_DRAFTER, pair=task.pair.name, tree=NO_TREE, choices=[], budget=0, depth=0,
                      predicted=1.0, settings=[])
    else:
        shape, costs, (lines, served) = winner.shape, getattr(winner.shape, "costs", None), for_engines(winner, contest)
        facts |= dict(
            drafter=winner.entrant.spec, pair=winner.entrant.pair.name, tree=winner.label, budget=shape.budget,
            choices=[list(path) for path in shape.choices()] if isinstance(shape, Tree) else None,
            depth=shape.max_depth, predicted=predicted[winner.name], settings=lines, served=served,
            costs=costs and asdict(costs))
    return ForBatch(**facts), pd.concat([rows, rest]), errors


def beside(rows: pd.DataFrame, finalists: Mapping[str, Candidate], speeds: Mapping[str, float],
           rng: np.random.Generator) -> list[Raced]:
    """Everything raced on the choosing prompts beside that of the highest estimated speed, which is first."""
    ordered = sorted(speeds, key=speeds.get, reverse=True)
    over = {name: measured(rows, name, ordered[0], rng) for name in ordered}
    return [Raced(name, finalists[name].shape.budget if name in finalists else 0, speeds[name], over[name],
                  not (over[name].is_known and over[name].is_below(1))) for name in ordered]


def error(rows: pd.DataFrame, way: str, candidate: Candidate, choice: Choice, choosing: PromptSet, batch: int,
          rng: np.random.Generator) -> dict[str, object]:
    """A candidate's row of the table "advice_errors": its prediction beside rows of calls on judging prompts."""
    speedup, tokens = measured(rows, way, PLAIN, rng), candidate.tokens_in(choosing, batch)
    tokens_judged, time_judged = judging.parts(rows, way, batch)
    ratio = choice.ratios[candidate.name]
    predicted = tokens * ratio * choice.left
    return dict(batch=batch, way=way, drafter=candidate.entrant.name, shape=candidate.label,
                budget=candidate.shape.budget, judged=rows.loc[rows["way"] == way, "prompt"].nunique(),
                predicted=predicted, measured=speedup.value, measured_low=speedup.low, measured_high=speedup.high,
                error=predicted / speedup.value - 1, optimism=choice.left, tokens=tokens, tokens_judged=tokens_judged,
                tokens_error=tokens / tokens_judged - 1, time=1 / ratio, time_judged=time_judged,
                time_error=time_judged * ratio - 1)


def for_engines(winner: Candidate, contest: Contest) -> tuple[list[dict[str, str]], dict[str, object] | None]:
    """`ForBatch.settings` and `ForBatch.served`."""
    def lines_of(candidate: Candidate) -> list[dict[str, str]]:
        """The settings of engines that run a candidate's drafter."""
        chains = [other for other in contest.tried if other.entrant is candidate.entrant and other.is_chain]
        chain = max(chains, key=contest.speed).shape if chains else ROOT_ALONE
        return settings(candidate.entrant.spec, candidate.shape, chain, places(candidate.entrant))

    if lines := lines_of(winner):
        return lines, None
    for candidate in sorted(contest.tried, key=contest.speed, reverse=True):
        if contest.speed(candidate) > 1 and (lines := [line for line in lines_of(candidate) if line["draft"] == SAME]):
            return lines, {"drafter": candidate.entrant.spec, "tree": candidate.label,
                           "predicted": contest.speed(candidate)}
    return [], None


def _named(candidate: Candidate) -> dict[str, str]:
    """`ForBatch.chain` or `ForBatch.best_tree`."""
    return {"drafter": candidate.entrant.spec, "pair": candidate.entrant.pair.name, "tree": candidate.label}
