"""The one procedure that recommends a drafter, a tree and a budget for a target: record, price, predict, race, judge.

1. `record`: the target continues all prompts greedily, once, and candidates are judged on the choosing prompts by
   replay (see `candidates`).
2. `price`: a calibration gives seconds per round by nodes and batch, which rank the candidates at each batch size.
3. `predict`: drafters with probabilities are tried with growth rules, and with a budget that these costs choose in
   each round. Tokens per round over the seconds of a round predict each candidate's speed.
4. `race`: the few of nearly the fastest prediction, with the fastest chain and tree, decode choosing prompts in turns.
   Tokens per round by replay over the measured seconds per round estimate each one's speed; less the optimism of
   choosing it is the prediction. The fastest wins, or that with the fewest nodes of those nearly as fast; plain
   decoding has none.
5. `judge`: the winner, the best chain and tree, plain decoding and transformers' `generate` decode the judging prompts
   in turns, then the other finalists, if time is left. A winner that is slower than plain decoding there, beyond its
   interval, in decoding or in whole calls, is not recommended. `generate` decides nothing, is slow, and misses turns.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pandas as pd
import torch

from lib.cost import candidates, judging, ways
from lib.cost.calibration import LEVELS, calibrate, dtype_of, falling, full_rounds, usual_prefix
from lib.cost.candidates import Candidate, Entrant, Limits
from lib.cost.engines import SAME, places, settings
from lib.cost.recommendation import (CHAIN, GENERATE, NO_DRAFTER, NO_TREE, ONE, PLAIN, RECOMMENDED, TREE, ForBatch,
                                     Interval, Raced, Recommendation, with_schedule)
from lib.cost.round_cost import CostTable, Curve, RoundCost
from lib.cost.ways import Deadline
from lib.decoding import loop
from lib.drafters.controls import RandomDrafter
from lib.drafters.drafter import ROOT_ALONE, NoDrafter
from lib.drafters.registry import make
from lib.lab import processor, provenance, stats
from lib.models.prompts import PromptSet
from lib.replay.simulated import Recorded
from lib.replay.trace import loops
from lib.trees.growth.registry import shape_or_growth
from lib.trees.tree import Tree

RULER = "random tokens"  # the drafter whose rounds tell what checking costs
MOST_ROWS = 128  # nodes of a whole batch that a shape may have on a CPU
PREFIX = 64  # committed tokens at which costs of drafting are taken; those of checks are taken at the text's own
FINALISTS, OF_ONE = 6, 2  # candidates that are timed again, and how many of them may have the same drafter
NEAR = 0.85  # of the fastest prediction, or of plain decoding: a slower candidate is not timed again
REPEATS = 3  # measurements of each way on each batch of prompts, at most
ALONE, ALONE_TOKENS = 4.0, 24  # seconds in which the drafting of an automatic budget is timed, and tokens of a prompt
LEAST = 2  # batches of prompts that are measured, whatever they take
LEAST_PRICED = 2  # drafters whose costs are measured, whatever that takes
# Shares of all time by which replay and pricing begin no further part; of the time that is left then, for growth rules
# and after them for automatic budgets; of the time of a batch size, for the race that chooses; and of the time that
# judges, for the finalists that are neither recommended nor the best chain or tree.
SHARES = {"replay": 0.2, "price": 0.4, "grow": 1 / 6, "automatic": 0.28, "choose": 0.35, "others": 0.35}


@dataclass(frozen=True)
class Found:
    """What `recommend` returns: the recommendation, and what it rests on.

    tried: every candidate but those of one batch size. prices: the cost of rounds, by batch size and drafter.
    candidates: the table "advice_candidates", a row for each batch and candidate. timed: the table "advice_timed", a
    row for each timed call. costs: the table "costs". errors: the table "advice_errors", a row for each batch and
    candidate that decoded judging prompts. judging: the prompts that judged.
    """

    recommendation: Recommendation
    tried: Sequence[Candidate]
    prices: Mapping[int, Mapping[str, RoundCost]]
    candidates: pd.DataFrame
    timed: pd.DataFrame
    costs: pd.DataFrame
    errors: pd.DataFrame
    judging: PromptSet


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
        best = {one.name: max([self.speed(each) for each in self.tried if each.entrant is one], default=0.0)
                for one in entrants if one.name in self.prices}
        return sorted((one for one in entrants if one.name in best), key=lambda one: -best[one.name])


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


def recommend(pairs: Sequence, choosing, judging, *, drafters: Sequence[str] = (), batches: Sequence[int] = (1,),
              new_tokens: int = 96, limits: Limits = Limits(), seconds: float = 600.0, seed: int = 0,
              report: Callable[[str], None] = print, generate: Callable = loop.generate,
              clock: Callable[[], float] = time.perf_counter) -> Found:
    """The fastest drafter and tree for the target of these pairs at each batch size.

    pairs: `models.Pair`s of one target, whose draft models compete. choosing, judging: prompts with names, kinds and
    ids (see `models.prompts.PromptSet`), those that choose and those that judge. drafters: specs of `drafters.make`;
    empty: all that the target can have. seconds: for everything; each stage does a least amount of work, whatever it
    takes. report: gets lines of progress. generate, clock: in place of the loop and the clock. ValueError where pairs
    or drafters cannot be used.
    """
    begin = clock()
    whole = Deadline(clock, begin + seconds)
    task = Task(pairs, candidates.entrants(pairs, drafters), tuple(batches), new_tokens,
                replace(limits, batches=tuple(batches)), seed, generate, clock, torch.Generator().manual_seed(seed),
                np.random.default_rng(seed))

    def say(line: str) -> None:
        report(f"{clock() - begin:4.0f} s: {line}")

    replaying, pricing = whole.share(SHARES["replay"]), whole.share(SHARES["price"])
    say(f"drafters: {', '.join(one.name for one in task.entrants)}")
    record_ = record(task, choosing, judging, replaying)
    say(f"{len(choosing.ids)} choosing prompts are recorded, {len(record_.tried)} candidates replayed or decoded")
    costs, prices = price(task, choosing, record_.tried, pricing)
    tried, contests = predict(task, choosing, record_, prices, whole)
    say("costs are calibrated")
    by_batch, timed, errors = [], [], []
    for place, contest in enumerate(contests):
        deadline = whole.share(1 / (len(contests) - place))
        choice = race(task, record_.choosing, contest, deadline.share(SHARES["choose"]))
        winner = choice.roles[RECOMMENDED]
        say(f"batch {contest.batch}: {winner.name if winner else PLAIN} is chosen")
        result, judged, rows = judge(task, record_, contest, choice, deadline)
        say(f"batch {contest.batch}: judged on {result.prompts} batches of prompts")
        by_batch.append(result)
        timed += [choice.rows.assign(part="choosing"), judged.assign(part="judging")]
        errors += rows
    machine = processor.machine(task.pair.target.device)
    made = Recommendation(
        target=task.pair.target_name,
        draft_models=[pair.drafter_name for pair in pairs if pair.draft_model is not None],
        drafters=[one.name for one in task.entrants], dtype=dtype_of(task.pair), device=machine["device"],
        processor=processor.title(machine), threads=machine["threads"], versions=provenance.versions(),
        new_tokens=new_tokens, choosing=len(choosing.ids), judging=len(record_.judging.ids), looping=record_.looping,
        by_batch=with_schedule(by_batch), warnings=task.warnings)
    facts = dict(target=made.target, dtype=made.dtype)
    listed = pd.DataFrame([row(each, contest.batch, contest.prices[each.entrant.name], task.rng)
                           for contest in contests for each in contest.tried])
    return Found(made, tried, prices, listed.assign(**facts),
                 pd.concat(timed, ignore_index=True).drop(columns="prefill").assign(**facts), costs,
                 pd.DataFrame(errors).assign(**facts), record_.judging)


# ------------------------------------------------------------------------------------------------ acceptance and costs


def record(task: Task, choosing, judging, deadline: Deadline) -> Record:
    """The continuations of all prompts, and the static candidates of all drafters: those of ranks, then in equal shares
    of the time those of drafters that draft again or decode live, smaller trees first.

    Judging prompts whose continuations loop are left out, unless all do.
    """
    recorded = candidates.record(task.pair, task.entrants, choosing, task.new_tokens, task.limits.depth)
    written = loop.continuations(task.pair.target, judging.ids, max_new_tokens=task.new_tokens,
                                 eos_token_id=task.pair.eos_token_ids)
    whole = [row for row, text in enumerate(written) if not loops(text)]
    if not whole:
        task.warnings.append("the target's text loops on every judging prompt; speeds are those of loops")
    usable = recorded.trace.without_loops
    ranked = [one for one in task.entrants if one.name in recorded.trace.ranks]
    tried = [each for one in ranked for each in candidates.static(one, recorded, task.limits)]
    others = [one for one in task.entrants if one not in ranked]
    for place, one in enumerate(others):
        found = candidates.replayed_or_live(one, recorded, task.limits, task.new_tokens, generate=task.generate)
        tried += in_time(found, deadline.share(1 / (len(others) - place)))
    return Record(recorded, choosing.select(usable) if usable else choosing,
                  judging.select(whole) if whole else judging, 1 - len(whole) / len(written) if whole else 0.0, tried)


def in_time(found: Iterable[Candidate], deadline: Deadline) -> Iterator[Candidate]:
    """Candidates as long as the time is not over, one at least where there is one."""
    for each in found:
        yield each
        if deadline.over():
            return


def in_turns(parts: Sequence[Iterator[Candidate]], deadline: Deadline) -> Iterator[Candidate]:
    """One candidate of each part after another, as long as the time is not over."""
    while parts and not deadline.over():
        left = []
        for part in parts:
            if not deadline.over() and (each := next(part, None)):
                left.append(part)
                yield each
        parts = left


def price(task: Task, choosing, tried: Sequence[Candidate],
          deadline: Deadline) -> tuple[pd.DataFrame, dict[int, dict[str, RoundCost]]]:
    """The table of costs, and by batch and drafter the cost of its rounds.

    The target's part is that of rounds with random tokens; drafters without forward passes cost nothing. The others are
    calibrated in the order of the speed that they would have if drafting cost nothing; those for which the time is over
    at the first batch size do not compete.
    """
    forwarding = [one for one in task.entrants if any(each.passes for each in tried if each.entrant is one)]
    costless = [one for one in task.entrants if one not in forwarding]
    seconds = deadline.left() / len(task.batches) / (2 + len(forwarding))
    prefix = max(PREFIX, usual_prefix(choosing.ids, task.new_tokens))  # committed tokens of the text's rounds
    vocabulary = task.pair.target.config.get_text_config().vocab_size
    on_cpu = torch.device(task.pair.target.device).type == "cpu"
    parts, prices = [], {}

    def calibrated(pair, drafter, name: str, shapes: Sequence[str], prefix: int, seconds: float) -> pd.DataFrame:
        most = task.most_nodes(batch)
        fitting = [shape for shape in shapes if not on_cpu or shape_or_growth(shape).budget <= most]
        return calibrate(pair, choosing.ids, batches=[batch], prefix=prefix, shapes=fitting, most=most, seconds=seconds,
                         generator=task.order, drafter=drafter, generate=task.generate, clock=task.clock
                         ).assign(drafter=name)

    for batch in task.batches:
        ruler = RandomDrafter(vocabulary, torch.Generator().manual_seed(task.seed))
        rows = calibrated(task.pair, ruler, RULER, (), prefix, 2 * seconds)
        if falling(rows):
            rows = calibrated(task.pair, ruler, RULER, (), prefix, 2 * seconds)
            if fall := falling(rows):
                task.warnings.append(f"{fall}, twice: something disturbed the measurement")
        parts.append(rows)
        check = CostTable(rows).at(task.pair.target_name, RULER, batch=batch)
        free = replace(check, once=0.0, level=Curve.through([1], [0.0]))
        if not prices:
            contest = Contest(batch, tried, {one.name: free for one in task.entrants})
            forwarding = contest.fastest_first(forwarding)
        for place, one in enumerate(forwarding):
            if not prices and place >= LEAST_PRICED and deadline.over():
                late = ", ".join(other.name for other in forwarding[place:])
                task.warnings.append(f"no time was left to measure the costs of {late}, which do not compete: give "
                                     "more seconds")
                forwarding = forwarding[:place]
                break
            rules = candidates.timed_rules(one.drafter, replace(task.limits, nodes=task.most_nodes(batch)))
            parts.append(calibrated(one.pair, one.drafter, one.name, [*LEVELS, *rules], PREFIX, seconds))
        table = CostTable(pd.concat(parts))
        own = {one.name: table.at(task.pair.target_name, one.name, batch=batch) for one in forwarding}
        own |= {one.name: free for one in costless}
        prices[batch] = {name: replace(cost, plain=check.plain, check=check.check) for name, cost in own.items()}
    return pd.concat(parts, ignore_index=True), prices


def predict(task: Task, choosing, record: Record, prices: Mapping[int, Mapping[str, RoundCost]],
            whole: Deadline) -> tuple[list[Candidate], list[Contest]]:
    """The candidates of all batch sizes, and what competes at each of them: with growth rules of the drafters in turns,
    those first whose static trees are fastest, and with automatic budgets, as long as time is left. A warning names the
    drafters whose trees were not grown.
    """
    first = task.batches[0]
    tried = [each for each in record.tried if each.entrant.name in prices[first]]
    growing = [one for one in Contest(first, tried, prices[first]).fastest_first(task.entrants)
               if candidates.timed_rules(one.drafter, task.limits)]
    trees = [candidates.grown(one, record.recorded, task.limits) for one in growing]
    grown = list(in_turns(trees, whole.share(SHARES["grow"])))
    if late := [one.name for one in growing if not any(each.entrant is one for each in grown)]:
        task.warnings.append(f"no time was left to grow trees with {', '.join(late)}: give more seconds")
    tried += grown
    sizing, contests = whole.share(SHARES["automatic"]), []
    for place, batch in enumerate(task.batches):
        deadline = sizing.share(1 / (len(task.batches) - place))
        contest = Contest(batch, tried, prices[batch])
        limits = replace(task.limits, nodes=task.most_nodes(batch))
        sized = [candidates.automatic(one, record.recorded, limits, prices[batch][one.name], batch)
                 for one in contest.fastest_first(task.entrants)]
        more = [replace(each, drafting=_drafting(task, choosing, each, batch)) for each in in_turns(sized, deadline)]
        contests.append(replace(contest, tried=tried + more))
    record.recorded.forget()
    return tried, contests


def _drafting(task: Task, choosing, candidate: Candidate, batch: int) -> float | None:
    """Mean seconds of drafting a candidate's trees in the rounds after the first, on some of the choosing prompts."""
    run = ways.ours(candidate.entrant.pair, make(candidate.entrant.spec, candidate.entrant.pair), candidate.shape,
                    ALONE_TOKENS, task.generate)
    seconds, asked, deadline = [], ways.groups(choosing, batch), Deadline(task.clock, task.clock() + ALONE)
    for at in torch.randperm(len(asked), generator=task.order).tolist():
        prompts = asked[at][2]
        seconds += [rows[0].draft_seconds for rows in full_rounds(run(prompts).rounds, len(prompts))[1:]]
        if deadline.over():
            break
    return float(np.mean(seconds)) if seconds else None


# ------------------------------------------------------------------------------------------------ choosing and judging


def race(task: Task, choosing: PromptSet, contest: Contest, deadline: Deadline) -> Choice:
    """The finalists' race on the choosing prompts: of nearly the largest predicted speed, few of the same drafter and
    none with the tree of another; the fastest chain and the fastest tree that branches are always among them.
    """
    fitting = [each for each in contest.tried if each.shape.budget <= task.most_nodes(contest.batch)]
    finalists = {each.name: each for each in finalists_of(replace(contest, tried=fitting))}
    rows = timed(task, finalists, ways.groups(choosing, contest.batch), contest.batch, deadline, repeats=1)
    known = [dict(zip(each.prompts, 1 + each.accepted / each.rounds)) for each in fitting]
    tokens = np.array([[own.get(name, float("nan")) for name in choosing.names] for own in known])
    rates = np.array([contest.speed(each) / each.tokens for each in fitting])
    left = judging.optimism(tokens, rates, choosing.kinds, contest.batch, task.rng)
    turns = rows.pivot(index=["prompt", "repeat"], columns="way", values="round_ms")
    ratios = {way: float((turns[PLAIN] / turns[way]).median()) for way in turns.columns if way != PLAIN}
    speeds = {PLAIN: 1.0} | {name: finalists[name].tokens_in(choosing, contest.batch) * ratio
                             for name, ratio in ratios.items()}

    def fastest(names: Sequence[str]) -> Candidate | None:
        nodes = [finalists[name].shape.budget if name in finalists else 0 for name in names]
        return finalists.get(names[judging.choose([speeds[name] for name in names], nodes)]) if names else None

    winner = fastest(list(speeds))
    roles = {RECOMMENDED: winner} | {
        role: winner if winner and fits(winner) else fastest([name for name, each in finalists.items() if fits(each)])
        for role, fits in ((CHAIN, lambda each: each.is_chain), (TREE, lambda each: each.branches))}
    return Choice(rows, finalists, ratios, speeds, left, roles)


def finalists_of(contest: Contest) -> list[Candidate]:
    """The candidates that are timed again (see `race`). ValueError where no drafter drafted a chain."""
    ranked = sorted(contest.tried, key=lambda each: (-contest.speed(each), each.shape.budget))
    chain = next((each for each in ranked if each.is_chain), None)
    if chain is None:
        raise ValueError("no drafter drafted anything: give other drafters, more prompts, or larger limits")
    tree = next((each for each in ranked if each.branches), None)
    chosen: list[Candidate] = []
    for each in ranked:
        shapes = [other.shape for other in chosen if other.entrant is each.entrant]
        near = contest.speed(each) >= NEAR * max(1.0, contest.speed(ranked[0]))
        if near and len(chosen) < FINALISTS and len(shapes) < OF_ONE and each.shape not in shapes:
            chosen.append(each)
    return chosen + [each for each in (chain, tree) if each and not any(each is one for one in chosen)]


def timed(task: Task, named: Mapping[str, Candidate], asked: Sequence[ways.Group], batch: int, deadline: Deadline, *,
          generated: bool = False, warm: bool = False, **limits) -> pd.DataFrame:
    """`ways.race` of plain decoding, these candidates and, if wanted, transformers' `generate`; the rows of the table
    "advice_timed". warm: whether the drafters have decoded before.
    """
    runs = {PLAIN: ways.ours(task.pair, NoDrafter(), ROOT_ALONE, task.new_tokens, task.generate)}
    runs |= {name: ways.ours(each.entrant.pair, make(each.entrant.spec, each.entrant.pair), each.shape, task.new_tokens,
                             task.generate) for name, each in named.items()}
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
    batch, roles, rng = contest.batch, dict(choice.roles), task.rng
    predicted = {name: speed * choice.left for name, speed in choice.speeds.items()}
    winner = roles[RECOMMENDED]
    named = {role: each for role, each in roles.items() if each and (role == RECOMMENDED or each is not winner)}
    groups = ways.groups(record.judging, batch)
    enough = min(stats.FEWEST, len(groups)), deadline.share(1 - SHARES["others"])
    rows = timed(task, named, groups, batch, deadline, generated=True, warm=True, repeats=REPEATS, enough=enough)
    others = {name: each for name, each in choice.finalists.items() if not any(each is one for one in roles.values())}
    rest = rows[:0]
    if others and not deadline.over():
        asked = [group for group in groups if group[0] in set(rows["prompt"])]
        rest = timed(task, others, asked, batch, deadline, warm=True, repeats=1)
        rest["repeat"] += rows["repeat"].max() + 1
    errors = [error(part, way, each, choice, record.choosing, batch, rng) for part, ways_ in (
        (rows, named), (rest, others)) for way, each in ways_.items() if way in set(part["way"])]
    measured_on = rows["prompt"].nunique()
    warnings = _warnings(winner, contest, task.most_nodes(batch), measured_on, len(groups))
    judged, reason = rows, ""
    if winner:  # and stays so where it is not slower than plain decoding
        speedup, calls = (measured(rows, RECOMMENDED, PLAIN, rng, whole) for whole in (False, True))
        times = [judging.call_times(rows, way, batch) for way in (RECOMMENDED, PLAIN)]
        tokens = (rows.loc[rows["way"] == PLAIN, "tokens"] / batch).mean()
        stays, reason = judging.upheld(winner.name, predicted[winner.name], speedup, calls, *times, tokens, measured_on)
        if not stays:
            role = next((role for role in (CHAIN, TREE) if roles[role] is winner), RECOMMENDED)
            judged, roles[RECOMMENDED], winner = rows.replace({"way": {RECOMMENDED: role}}), None, None
    raced = beside(choice.rows, choice.finalists, choice.speeds, rng)
    way_of = {role: RECOMMENDED if each and each is winner else role for role, each in roles.items()}
    best = RECOMMENDED if winner else PLAIN
    shown = {RECOMMENDED: best, PLAIN: PLAIN, CHAIN: way_of[CHAIN]}
    shown |= ({TREE: way_of[TREE]} if roles[TREE] else {}) | {GENERATE: GENERATE}
    facts = dict(
        batch=batch, chain=_named(roles[CHAIN]), best_tree=roles[TREE] and _named(roles[TREE]),
        speedup=measured(judged, best, PLAIN, rng), over_chain=measured(judged, best, shown[CHAIN], rng),
        tree_over_chain=roles[TREE] and measured(judged, shown[TREE], shown[CHAIN], rng),
        with_prefill=measured(judged, best, PLAIN, rng, whole=True),
        kinds={kind: measured(own, best, PLAIN, rng) for kind, own in judged.groupby("kind")},
        tokens_per_second={name: measured(judged, way, None, rng) for name, way in shown.items()},
        prompts=int(measured_on), repeats=int(rows["repeat"].nunique()), warnings=warnings, reason=reason, raced=raced,
        raced_on=int(choice.rows["prompt"].nunique()))
    if facts["speedup"].value < 1:
        warnings.append("on the prompts that judge it is slower than plain decoding: give more prompts or seconds")
    fields = setting_of(winner, contest, predicted[winner.name] if winner else 1.0, task)
    return ForBatch(**facts, **fields), pd.concat([rows, rest]), errors


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


def measured(rows: pd.DataFrame, way: str, base: str | None, rng: np.random.Generator, whole: bool = False) -> Interval:
    """The geometric mean over prompts of a way's speed, or of its ratio to another's in the same turns; of decoding
    alone, or of whole calls. rows: of one batch size and part of the table "advice_timed".
    """
    if way == base:
        return ONE
    speed = np.log(rows["tokens"] / rows["seconds"] if whole else rows["rate"])
    turns = rows.assign(speed=speed).pivot(index=["prompt", "repeat"], columns="way", values="speed")
    logs = (turns[way] - turns[base] if base else turns[way]).dropna()
    found = stats.of_repeats([own.to_numpy() for _, own in logs.groupby(level="prompt", sort=False)], rng)
    return Interval(*(float(np.exp(end)) for end in (found.value, found.low, found.high)))


def setting_of(winner: Candidate | None, contest: Contest, predicted: float, task: Task) -> dict[str, object]:
    """The fields of `ForBatch` that say what is recommended, with the settings of engines for it."""
    if winner is None:
        return dict(drafter=NO_DRAFTER, pair=task.pair.name, tree=NO_TREE, choices=[], budget=0, depth=0, predicted=1.0,
                    settings=[])
    lines, served = for_engines(winner, contest)
    costs = getattr(winner.shape, "costs", None)
    return dict(
        drafter=winner.entrant.spec, pair=winner.entrant.pair.name, tree=winner.label, budget=winner.shape.budget,
        choices=[list(path) for path in winner.shape.choices()] if isinstance(winner.shape, Tree) else None,
        depth=winner.shape.max_depth, predicted=predicted, settings=lines, served=served, costs=costs and asdict(costs))


def for_engines(winner: Candidate, contest: Contest) -> tuple[list[dict[str, str]], dict[str, object] | None]:
    """`ForBatch.settings` and `ForBatch.served`."""
    def lines_of(candidate: Candidate) -> list[dict[str, str]]:
        chains = [each for each in contest.tried if each.entrant is candidate.entrant and each.is_chain]
        chain = max(chains, key=contest.speed).shape if chains else ROOT_ALONE
        return settings(candidate.entrant.spec, candidate.shape, chain, places(candidate.entrant))

    if lines := lines_of(winner):
        return lines, None
    for each in sorted(contest.tried, key=contest.speed, reverse=True):
        if contest.speed(each) > 1 and (lines := [line for line in lines_of(each) if line["draft"] == SAME]):
            return lines, {"drafter": each.entrant.spec, "tree": each.label, "predicted": contest.speed(each)}
    return [], None


def _named(candidate: Candidate) -> dict[str, str]:
    """`ForBatch.chain` or `ForBatch.best_tree`."""
    return {"drafter": candidate.entrant.spec, "pair": candidate.entrant.pair.name, "tree": candidate.label}


def _warnings(winner: Candidate | None, contest: Contest, most: int, batches: int, asked: int) -> list[str]:
    """What the reader of a recommendation should know of its limits: the largest tree tested has `most` nodes, and so
    many of the batches of prompts were measured.
    """
    told = []
    fitting = [each.shape for each in contest.tried if each.shape.budget <= most]
    for what, name in (("budget", "budget"), ("depth", "max_depth")):
        largest = max(getattr(shape, name) for shape in fitting)
        if winner and not hasattr(winner.shape, "costs") and getattr(winner.shape, name) == largest:
            told.append(f"the best {what} is the largest tested, {largest}: a larger one may be faster")
    if batches < asked:
        told.append(f"{batches} of {asked} batches of prompts were measured: the time was over (give more seconds), "
                    "or answers ended at their first token")
    if batches < stats.FEWEST:
        told.append(f"{batches} batches of prompts are too few for an interval: give {stats.FEWEST} or more")
    return told


def row(candidate: Candidate, batch: int, price: RoundCost, rng: np.random.Generator) -> dict[str, object]:
    """A candidate's columns of the table "advice_candidates" at the costs of its drafter."""
    mean = stats.ratio(candidate.accepted, candidate.rounds, rng)
    seconds = candidate.seconds(price, batch)
    told = dict(batch=batch, drafter=candidate.entrant.name, shape=candidate.label, budget=candidate.shape.budget,
                depth=candidate.shape.max_depth, chain=candidate.is_chain, round_ms=1000 * seconds,
                level=float(price.once + price.level(1)) / price.plain, n_prompts=mean.n_prompts,
                n_rounds=mean.n_rounds)
    for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
        tokens = 1 + getattr(mean, end)
        told |= {f"tokens{suffix}": tokens, f"speedup{suffix}": tokens * price.plain / seconds}
    return told
