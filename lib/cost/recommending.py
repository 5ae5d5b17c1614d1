"""The one procedure that recommends a drafter, a tree and a budget for a target: acceptance by replay, costs by
calibration, the fastest few timed again, and the winner judged on other prompts.

1. The target continues all prompts greedily, once. Candidates are judged on the choosing prompts (see `candidates`).
2. A calibration gives seconds per round by nodes and batch, which rank the candidates at each batch size. Drafters with
   probabilities are then tried with growth rules, and with a budget that these costs choose in each round.
3. The few of nearly the fastest prediction, with the fastest chain and tree, decode choosing prompts in turns. Tokens
   per round by replay over the measured seconds per round estimate each one's speed; less the optimism of choosing it
   is the prediction. The fastest wins, or that with the fewest nodes of those nearly as fast; plain decoding has none.
4. The winner, the best chain and tree, plain decoding and transformers' `generate` decode the judging prompts in turns,
   then the other finalists, if time is left. A winner that is slower than plain decoding there, beyond its interval, in
   decoding or in whole calls, is not recommended. `generate`, which decides nothing and is slow, misses turns.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from lib.cost import candidates, judging, ways
from lib.cost.calibration import LEVELS, calibrate, dtype_of, falling, full_rounds, usual_prefix
from lib.cost.candidates import Candidate, Entrant, Limits
from lib.cost.engines.registry import SAME, settings
from lib.cost.engines.schedule import scheduled
from lib.cost.engines.weights import places
from lib.cost.recommendation import (CHAIN, GENERATE, NO_DRAFTER, NO_TREE, ONE, PLAIN, RECOMMENDED, TREE, ForBatch,
                                     Interval, Raced, Recommendation)
from lib.cost.round_cost import Costs, Curve, RoundCost
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
# Shares of the time after which a stage begins no further part, of what is left where it starts late; the races divide
# the rest.
TRIED, PRICED, GREW, SIZED, CHOICE = 0.2, 0.4, 0.5, 0.64, 0.35
OTHERS = 0.35  # of the time that judges, for finalists that are neither recommended nor the best chain or tree


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
    return _Procedure(pairs, choosing, judging, drafters, batches, new_tokens, limits, seconds, seed, report, generate,
                      clock).run()


class _Procedure:
    """The state of one recommendation."""

    def __init__(self, pairs, choosing, judging, drafters, batches, new_tokens, limits, seconds, seed, report, generate,
                 clock):
        self.clock, self.begin, self.seconds = clock, clock(), seconds
        self.pairs, self.pair, self.choosing, self.judging = pairs, pairs[0], choosing, judging
        self.entrants = candidates.entrants(pairs, drafters)
        self.batches, self.new_tokens, self.report = batches, new_tokens, report
        self.limits = replace(limits, batches=tuple(batches))
        self.generate, self.seed = generate, seed
        self.prefix = max(PREFIX, usual_prefix(choosing.ids, new_tokens))  # committed tokens of the text's rounds
        self.order, self.rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        self.warnings: list[str] = []
        self.timed: list[pd.DataFrame] = []
        self.errors: list[dict[str, object]] = []

    def run(self) -> Found:
        """All stages."""
        self.say(f"drafters: {', '.join(one.name for one in self.entrants)}")
        recorded = candidates.record(self.pair, self.entrants, self.choosing, self.new_tokens, self.limits.depth)
        looping = self.leave_out_loops()
        self.raced = self.choosing.select(whole) if (whole := recorded.trace.without_loops) else self.choosing
        self.say(f"{len(self.choosing.ids)} choosing prompts are recorded")
        tried = self.tried(recorded)
        self.say(f"{len(tried)} candidates are replayed or decoded")
        costs, prices = self.priced(tried)
        tried = [each for each in tried if each.entrant.name in prices[self.batches[0]]]
        tried += self.grown(tried, prices, recorded)
        sized = self.stage(GREW, SIZED)
        at_batch = {batch: tried + self.automatic(tried, prices[batch], recorded, batch, place, sized)
                    for place, batch in enumerate(self.batches)}
        recorded.forget()
        self.say("costs are calibrated")
        by_batch = [self.at(batch, own, prices[batch], at) for at, (batch, own) in enumerate(at_batch.items())]
        rows = scheduled({own.batch: None if own.is_plain else own.settings for own in by_batch})
        by_batch = [replace(own, settings=rows[own.batch]) for own in by_batch]
        machine = processor.machine(self.pair.target.device)
        made = Recommendation(
            target=self.pair.target_name,
            draft_models=[pair.drafter_name for pair in self.pairs if pair.draft_model is not None],
            drafters=[one.name for one in self.entrants], dtype=dtype_of(self.pair), device=machine["device"],
            processor=processor.title(machine), threads=machine["threads"],
            versions=provenance.versions(), new_tokens=self.new_tokens, choosing=len(self.choosing.ids),
            judging=len(self.judging.ids), looping=looping, by_batch=by_batch, warnings=self.warnings)
        facts = dict(target=self.pair.target_name, dtype=made.dtype)
        listed = pd.DataFrame([row(each, batch, prices[batch][each.entrant.name], self.rng)
                               for batch, own in at_batch.items() for each in own])
        timed = pd.concat(self.timed, ignore_index=True)
        return Found(made, tried, prices, listed.assign(**facts), timed.assign(**facts), costs,
                     pd.DataFrame(self.errors).assign(**facts), self.judging)

    def say(self, line: str) -> None:
        """A line of progress with the time since the begin."""
        self.report(f"{self.clock() - self.begin:4.0f} s: {line}")

    def until(self, share: float) -> float:
        """The time at which this share of the seconds is over."""
        return self.begin + share * self.seconds

    def stage(self, begin: float, end: float) -> float:
        """The time at which a stage ends that starts now and has the seconds between these shares: fewer, in proportion,
        where earlier stages took longer than their shares.
        """
        now = self.clock()
        return now + (end - begin) / (1 - begin) * max(0.0, self.until(1) - now)

    # ------------------------------------------------------------------------------------------ acceptance and costs

    def leave_out_loops(self) -> float:
        """Leaves out the judging prompts whose continuations loop, unless all do; returns the share left out."""
        written = loop.continuations(self.pair.target, self.judging.ids, max_new_tokens=self.new_tokens,
                                     eos_token_id=self.pair.eos_token_ids)
        kept = [row for row, text in enumerate(written) if not loops(text)]
        if not kept:
            self.warnings.append("the target's text loops on every judging prompt; speeds are those of loops")
            return 0.0
        self.judging = self.judging.select(kept)
        return 1 - len(kept) / len(written)

    def tried(self, recorded: Recorded) -> list[Candidate]:
        """The static candidates of all drafters: those of ranks, then in equal shares of the stage's time those of
        drafters that draft again or decode live, smaller trees first.
        """
        ranked = [one for one in self.entrants if one.name in recorded.trace.ranks]
        found = [each for one in ranked for each in candidates.static(one, recorded, self.limits)]
        others = [one for one in self.entrants if one not in ranked]
        for place, one in enumerate(others):
            share = max(0.0, self.until(TRIED) - self.clock()) / (len(others) - place)
            each = candidates.replayed_or_live(one, recorded, self.limits, self.new_tokens, generate=self.generate)
            found += self.in_time(each, self.clock() + share)
        return found

    def in_time(self, found: Iterable[Candidate], until: float) -> Iterator[Candidate]:
        """Candidates as long as the time is not over, one at least where there is one."""
        for each in found:
            yield each
            if self.clock() > until:
                return

    def priced(self, tried: Sequence[Candidate]) -> tuple[pd.DataFrame, dict[int, dict[str, RoundCost]]]:
        """The table of costs, and by batch and drafter the cost of its rounds.

        The target's part is that of rounds with random tokens; drafters without forward passes cost nothing. The others
        are calibrated in the order of the speed that they would have if drafting cost nothing; those for which the time
        is over at the first batch size do not compete.
        """
        forwarding = [one for one in self.entrants if any(each.passes for each in tried if each.entrant is one)]
        each_seconds = max(0.0, self.until(PRICED) - self.clock()) / len(self.batches) / (2 + len(forwarding))
        vocabulary = self.pair.target.config.get_text_config().vocab_size
        costless = [one for one in self.entrants if one not in forwarding]
        parts, prices = [], {}
        for batch in self.batches:
            ruler = RandomDrafter(vocabulary, torch.Generator().manual_seed(self.seed))
            rows = self.calibrated(self.pair, ruler, RULER, (), batch, 2 * each_seconds, self.prefix)
            if fall := falling(rows):
                rows = self.calibrated(self.pair, ruler, RULER, (), batch, 2 * each_seconds, self.prefix)
                if fall := falling(rows):
                    self.warnings.append(f"{fall}, twice: something disturbed the measurement")
            check = Costs(rows).at(self.pair.target_name, RULER, batch=batch)
            free = replace(check, once=0.0, level=Curve.through([1], [0.0]))
            if not prices:
                forwarding.sort(key=lambda one: -_fastest(one, tried, free, batch))
            parts.append(rows)
            for place, one in enumerate(forwarding):
                if not prices and place >= LEAST_PRICED and self.clock() > self.until(PRICED):
                    late = ", ".join(one.name for one in forwarding[place:])
                    self.warnings.append(f"no time was left to measure the costs of {late}, which do not compete: give "
                                         "more seconds")
                    forwarding = forwarding[:place]
                    break
                limits = replace(self.limits, nodes=self.most_nodes(batch))
                timed = [*LEVELS, *candidates.timed_rules(one.drafter, limits)]
                parts.append(self.calibrated(one.pair, one.drafter, one.name, timed, batch, each_seconds, PREFIX))
            known = Costs(pd.concat(parts))
            own = {one.name: known.at(self.pair.target_name, one.name, batch=batch) for one in forwarding}
            own |= {one.name: free for one in costless}
            prices[batch] = {name: replace(price, plain=check.plain, check=check.check) for name, price in own.items()}
        return pd.concat(parts, ignore_index=True), prices

    def calibrated(self, pair, drafter, name: str, shapes: Sequence[str], batch: int, seconds: float,
                   prefix: int) -> pd.DataFrame:
        """The rows of `calibrate` for one drafter and batch; without shapes, those of a check of up to `most_nodes`."""
        on_cpu = torch.device(pair.target.device).type == "cpu"
        fitting = [shape for shape in shapes
                   if not on_cpu or shape_or_growth(shape).budget <= self.most_nodes(batch)]
        rows = calibrate(pair, self.choosing.ids, batches=[batch], prefix=prefix, shapes=fitting,
                         most=self.most_nodes(batch), seconds=seconds, generator=self.order, drafter=drafter,
                         generate=self.generate, clock=self.clock)
        return rows.assign(drafter=name)

    def most_nodes(self, batch: int) -> int:
        """Nodes of the largest tree that is tried at a batch size."""
        if torch.device(self.pair.target.device).type != "cpu":
            return self.limits.nodes
        return min(self.limits.nodes, max(4, MOST_ROWS // batch))

    def grown(self, tried: Sequence[Candidate], prices, recorded: Recorded) -> list[Candidate]:
        """Growth rules of the drafters in turns, those first whose static trees are fastest, as long as time is left;
        a warning names the drafters that were left out.
        """
        first = self.batches[0]
        growing = [one for one in _by_speed(self.entrants, tried, prices[first], first)
                   if candidates.timed_rules(one.drafter, self.limits)]
        trees = [candidates.grown(one, recorded, self.limits) for one in growing]
        found = list(self.in_turns(trees, self.stage(PRICED, GREW)))
        if late := [one.name for one in growing if not any(each.entrant is one for each in found)]:
            self.warnings.append(f"no time was left to grow trees with {', '.join(late)}: give more seconds")
        return found

    def automatic(self, tried: Sequence[Candidate], price, recorded: Recorded, batch: int, place: int,
                  until: float) -> list[Candidate]:
        """Automatic budgets at a batch size, the `place`-th of all, in the same way and in equal shares of the time."""
        limits = replace(self.limits, nodes=self.most_nodes(batch))
        share = max(0.0, until - self.clock()) / (len(self.batches) - place)
        sized = [candidates.automatic(one, recorded, limits, price[one.name], batch)
                 for one in _by_speed(self.entrants, tried, price, batch)]
        return [replace(each, drafting=self.drafting(each, batch))
                for each in self.in_turns(sized, self.clock() + share)]

    def drafting(self, each: Candidate, batch: int) -> float | None:
        """Mean seconds of drafting a candidate's trees in the rounds after the first, on some of the choosing prompts."""
        run = ways.ours(each.entrant.pair, make(each.entrant.spec, each.entrant.pair), each.shape, ALONE_TOKENS,
                        self.generate)
        seconds, asked, until = [], ways.groups(self.choosing, batch), self.clock() + ALONE
        for at in torch.randperm(len(asked), generator=self.order).tolist():
            prompts = asked[at][2]
            seconds += [rows[0].draft_seconds for rows in full_rounds(run(prompts).rounds, len(prompts))[1:]]
            if self.clock() > until:
                break
        return float(np.mean(seconds)) if seconds else None

    def in_turns(self, parts: Sequence[Iterator[Candidate]], until: float) -> Iterator[Candidate]:
        """One candidate of each part after another, as long as the time is not over."""
        while parts and self.clock() < until:
            left = []
            for part in parts:
                if self.clock() < until and (each := next(part, None)):
                    left.append(part)
                    yield each
            parts = left

    # ------------------------------------------------------------------------------------------- choosing and judging

    def at(self, batch: int, tried: Sequence[Candidate], price: Mapping[str, RoundCost], place: int) -> ForBatch:
        """The recommendation at a batch size, the `place`-th of all."""
        slice_ = max(0.0, self.until(1) - self.clock()) / (len(self.batches) - place)
        start, fitting = self.clock(), [each for each in tried if each.shape.budget <= self.most_nodes(batch)]
        finalists = {each.name: each for each in _finalists(fitting, price, batch)}
        raced = self.race(finalists, ways.groups(self.raced, batch), batch, "choosing", until=start + CHOICE * slice_,
                          repeats=1)
        left = judging.optimism(*_by_prompt(fitting, price, batch, self.raced), self.raced.kinds, batch, self.rng)
        ratios = _round_ratios(raced)
        speeds = {PLAIN: 1.0} | {name: finalists[name].tokens_in(self.raced, batch) * ratio
                                 for name, ratio in ratios.items()}
        roles, predicted = _roles(finalists, speeds), {name: speed * left for name, speed in speeds.items()}
        winner = roles[RECOMMENDED]
        self.say(f"batch {batch}: {winner.name if winner else PLAIN} is chosen")

        groups, end = ways.groups(self.judging, batch), start + slice_
        rows = self.race(_by_way(roles), groups, batch, "judging", until=end, repeats=REPEATS, generated=True,
                         enough=(min(stats.FEWEST, len(groups)), end - OTHERS * (1 - CHOICE) * slice_))
        self.say(f"batch {batch}: judged on {rows['prompt'].nunique()} of {len(groups)} batches of prompts")
        rest = self.judge_others(finalists, roles, groups, batch, rows, end)
        self.errors += [self.error(own, way, each, batch, ratios[each.name], left) for own, ways_ in (
            (rows, _by_way(roles)), (rest, finalists)) for way, each in ways_.items() if way in set(own["way"])]
        warnings = _warnings(winner, fitting, rows["prompt"].nunique(), len(groups))
        kept, reason, rows = self.kept(roles, rows, predicted, batch)
        beside = dict(raced=self.beside(raced, finalists, speeds), raced_on=int(raced["prompt"].nunique()))
        return self.told(batch, kept, fitting, price, rows, predicted, warnings, beside | dict(reason=reason))

    def race(self, named: Mapping[str, Candidate], asked: Sequence[ways.Group], batch: int, part: str, *,
             generated: bool = False, again: int = 0, **settings) -> pd.DataFrame:
        """`ways.race` of plain decoding, these candidates and, if wanted, transformers' `generate`. The ways of the
        race that chooses are warm in those that judge; repeats count from `again`.
        """
        runs = {PLAIN: ways.ours(self.pair, NoDrafter(), ROOT_ALONE, self.new_tokens, self.generate)}
        runs |= {name: ways.ours(each.entrant.pair, make(each.entrant.spec, each.entrant.pair), each.shape,
                                 self.new_tokens, self.generate) for name, each in named.items()}
        warm = list(runs) if part == "judging" else []
        if generated:
            runs[GENERATE] = ways.theirs(self.pair, ways.GENERATE, self.new_tokens, clock=self.clock)
        rows = ways.race(runs, asked, least=LEAST, device=self.pair.target.device, generator=self.order, warm=warm,
                         sparing=[GENERATE], clock=self.clock, **settings)
        rows["repeat"] += again
        self.timed.append(rows.drop(columns="prefill").assign(batch=batch, part=part))
        return rows

    def judge_others(self, finalists: Mapping[str, Candidate], roles: Mapping[str, Candidate | None],
                     groups: Sequence[ways.Group], batch: int, rows: pd.DataFrame, until: float) -> pd.DataFrame:
        """Races the finalists without a role on the judging prompts of these rows, if time is left; none else."""
        others = {name: each for name, each in finalists.items() if not any(each is one for one in roles.values())}
        if not others or self.clock() > until:
            return rows[:0]
        asked = [group for group in groups if group[0] in set(rows["prompt"])]
        return self.race(others, asked, batch, "judging", until=until, repeats=1, again=int(rows["repeat"].max()) + 1)

    def beside(self, raced: pd.DataFrame, finalists: Mapping[str, Candidate],
               speeds: Mapping[str, float]) -> list[Raced]:
        """Everything raced on the choosing prompts beside that of the highest estimated speed, which is first."""
        ordered = sorted(speeds, key=speeds.get, reverse=True)
        over = {name: self.interval(raced, name, ordered[0]) for name in ordered}
        return [Raced(name, finalists[name].shape.budget if name in finalists else 0, speeds[name], over[name],
                      not (over[name].is_known and over[name].is_below(1))) for name in ordered]

    def error(self, rows: pd.DataFrame, way: str, each: Candidate, batch: int, ratio: float,
              left: float) -> dict[str, object]:
        """A candidate's row of the table "advice_errors"; ratio: plain rounds per round on the choosing prompts."""
        found, tokens = self.interval(rows, way, PLAIN), each.tokens_in(self.raced, batch)
        tokens_judged, time_judged = judging.parts(rows, way, batch)
        predicted = tokens * ratio * left
        return dict(batch=batch, way=way, drafter=each.entrant.name, shape=each.label, budget=each.shape.budget,
                    judged=rows.loc[rows["way"] == way, "prompt"].nunique(), predicted=predicted, measured=found.value,
                    measured_low=found.low, measured_high=found.high, error=predicted / found.value - 1, optimism=left,
                    tokens=tokens, tokens_judged=tokens_judged, tokens_error=tokens / tokens_judged - 1,
                    time=1 / ratio, time_judged=time_judged, time_error=time_judged * ratio - 1)

    def kept(self, roles: Mapping[str, Candidate | None], rows: pd.DataFrame, predicted: Mapping[str, float],
             batch: int) -> tuple[Mapping[str, Candidate | None], str, pd.DataFrame]:
        """The roles, `ForBatch.reason`, and the rows of a race on the judging prompts; without a winner where it was
        slower there than plain decoding, whose rows are then those of its other role.
        """
        winner = roles[RECOMMENDED]
        if winner is None:
            return roles, "", rows
        speedup, whole = (self.interval(rows, RECOMMENDED, PLAIN, each) for each in (False, True))
        calls = [judging.call_times(rows, way, batch) for way in (RECOMMENDED, PLAIN)]
        plain = rows[rows["way"] == PLAIN]
        stays, reason = judging.upheld(winner.name, predicted[winner.name], speedup, whole, *calls,
                                       (plain["tokens"] / batch).mean(), plain["prompt"].nunique())
        if stays:
            return roles, reason, rows
        role = next((role for role in (CHAIN, TREE) if roles[role] is winner), RECOMMENDED)
        return {**roles, RECOMMENDED: None}, reason, rows.replace({"way": {RECOMMENDED: role}})

    def told(self, batch: int, roles: Mapping[str, Candidate | None], tried: Sequence[Candidate], price, rows,
             predicted: Mapping[str, float], warnings: list[str], beside: Mapping[str, object]) -> ForBatch:
        """The result of a race on the judging prompts."""
        winner, tree = roles[RECOMMENDED], roles[TREE]
        speeds = {name: _way(roles, name) for name in (RECOMMENDED, PLAIN, CHAIN, *([TREE] if tree else []), GENERATE)}
        best = speeds[RECOMMENDED]
        judged = dict(
            batch=batch, chain=_named(roles[CHAIN]), best_tree=tree and _named(tree),
            speedup=self.interval(rows, best, PLAIN), over_chain=self.interval(rows, best, speeds[CHAIN]),
            tree_over_chain=tree and self.interval(rows, speeds[TREE], speeds[CHAIN]),
            with_prefill=self.interval(rows, best, PLAIN, whole=True),
            kinds={kind: self.interval(own, best, PLAIN) for kind, own in rows.groupby("kind")},
            tokens_per_second={name: self.interval(rows, way) for name, way in speeds.items()},
            prompts=int(rows["prompt"].nunique()), repeats=int(rows["repeat"].nunique()), warnings=warnings, **beside)
        if judged["speedup"].value < 1:
            warnings.append("on the prompts that judge it is slower than plain decoding: give more prompts or seconds")
        if winner is None:
            return ForBatch(drafter=NO_DRAFTER, pair=self.pair.name, tree=NO_TREE, choices=[], budget=0, depth=0,
                            predicted=1.0, settings=[], **judged)
        static, costs = isinstance(winner.shape, Tree), getattr(winner.shape, "costs", None)
        set_so, served = _for_engines(winner, tried, price, batch)
        return ForBatch(
            drafter=winner.entrant.spec, pair=winner.entrant.pair.name, tree=winner.label,
            choices=[list(path) for path in winner.shape.choices()] if static else None, budget=winner.shape.budget,
            depth=winner.shape.max_depth, predicted=predicted[winner.name],
            settings=set_so, served=served, costs=costs and asdict(costs), **judged)

    def interval(self, rows: pd.DataFrame, way: str, base: str | None = None, whole: bool = False) -> Interval:
        """`measured` of one race."""
        return measured(rows, way, base, self.rng, whole)


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


def _fastest(one: Entrant, tried: Sequence[Candidate], price: RoundCost, batch: int) -> float:
    """The highest speed over plain decoding that is predicted of a drafter; 0 without a candidate."""
    return max([each.speedup(price, batch) for each in tried if each.entrant is one], default=0.0)


def _speed(each: Candidate, price: Mapping[str, RoundCost], batch: int) -> float:
    """The speed over plain decoding that is predicted of a candidate."""
    return each.speedup(price[each.entrant.name], batch)


def _by_speed(entrants: Sequence[Entrant], tried: Sequence[Candidate], price: Mapping[str, RoundCost],
              batch: int) -> list[Entrant]:
    """The drafters that have a price, by the highest speed that is predicted of them."""
    return sorted((one for one in entrants if one.name in price),
                  key=lambda one: -_fastest(one, tried, price[one.name], batch))


def _finalists(tried: Sequence[Candidate], price: Mapping[str, RoundCost], batch: int) -> list[Candidate]:
    """The candidates of nearly the largest predicted speed, few of the same drafter and none with the tree of another;
    the fastest chain and the fastest tree that branches are always among them.
    """
    speed = partial(_speed, price=price, batch=batch)

    ranked = sorted(tried, key=lambda each: (-speed(each), each.shape.budget))
    chain = next((each for each in ranked if each.is_chain), None)
    if chain is None:
        raise ValueError("no drafter drafted anything: give other drafters, more prompts, or larger limits")
    tree = next((each for each in ranked if each.branches), None)
    chosen: list[Candidate] = []
    for each in ranked:
        own = [other.shape for other in chosen if other.entrant is each.entrant]
        near = speed(each) >= NEAR * max(1.0, speed(ranked[0]))
        if near and len(chosen) < FINALISTS and len(own) < OF_ONE and each.shape not in own:
            chosen.append(each)
    return chosen + [each for each in (chain, tree) if each and not any(each is one for one in chosen)]


def _by_prompt(tried: Sequence[Candidate], price: Mapping[str, RoundCost], batch: int,
               prompts) -> tuple[np.ndarray, np.ndarray]:
    """float[C, P], tokens per round of these candidates on these prompts, NaN where one has no rounds; and float[C],
    rounds per plain round.
    """
    own = [dict(zip(each.prompts, 1 + each.accepted / each.rounds)) for each in tried]
    tokens = [[known.get(name, float("nan")) for name in prompts.names] for known in own]
    return np.array(tokens), np.array([_speed(each, price, batch) / each.tokens for each in tried])


def _roles(finalists: Mapping[str, Candidate], speeds: Mapping[str, float]) -> dict[str, Candidate | None]:
    """What is recommended, None for plain decoding; the best chain and the best tree, of which it is one if it is of
    that kind, None where no tree is among the finalists.
    """
    def chosen(names: Sequence[str]) -> Candidate | None:
        nodes = [finalists[name].shape.budget if name in finalists else 0 for name in names]
        return finalists.get(names[judging.choose([speeds[name] for name in names], nodes)]) if names else None

    winner = chosen(list(speeds))
    chains, trees = ([name for name, each in finalists.items() if of_kind(each)]
                     for of_kind in (lambda each: each.is_chain, lambda each: each.branches))
    return {RECOMMENDED: winner, CHAIN: winner if winner and winner.is_chain else chosen(chains),
            TREE: winner if winner and winner.branches else chosen(trees)}


def _way(roles: Mapping[str, Candidate | None], role: str) -> str:
    """The way that decodes for a role in a race on the judging prompts."""
    if roles.get(role) is None:
        return PLAIN if role == RECOMMENDED else role
    return RECOMMENDED if roles[role] is roles[RECOMMENDED] else role


def _by_way(roles: Mapping[str, Candidate | None]) -> dict[str, Candidate]:
    """The candidates that decode for these roles, by their ways."""
    return {_way(roles, role): each for role, each in roles.items() if each is not None}


def _named(each: Candidate) -> dict[str, str]:
    """`ForBatch.chain` or `ForBatch.best_tree`."""
    return {"drafter": each.entrant.spec, "pair": each.entrant.pair.name, "tree": each.label}


def _for_engines(winner: Candidate, tried: Sequence[Candidate], price: Mapping[str, RoundCost],
                 batch: int) -> tuple[list[dict[str, str]], dict[str, object] | None]:
    """`ForBatch.settings` and `ForBatch.served`."""
    speed = partial(_speed, price=price, batch=batch)

    def of(each: Candidate) -> list[dict[str, str]]:
        chains = [other for other in tried if other.entrant is each.entrant and other.is_chain]
        chain = max(chains, key=speed).shape if chains else ROOT_ALONE
        return settings(each.entrant.spec, each.shape, chain, places(each.entrant))

    if found := of(winner):
        return found, None
    for each in sorted(tried, key=speed, reverse=True):
        if speed(each) > 1 and (found := [one for one in of(each) if one["draft"] == SAME]):
            return found, {"drafter": each.entrant.spec, "tree": each.label, "predicted": speed(each)}
    return [], None


def _round_ratios(rows: pd.DataFrame) -> dict[str, float]:
    """By way: the median over turns of a plain round's time over that of its own rounds, in the same turn."""
    times = rows.pivot(index=["prompt", "repeat"], columns="way", values="round_ms")
    return {way: float((times[PLAIN] / times[way]).median()) for way in times.columns if way != PLAIN}


def _warnings(winner: Candidate | None, tried: Sequence[Candidate], measured: int, asked: int) -> list[str]:
    """What the reader of a recommendation should know of its limits."""
    told = []
    for what, name in (("budget", "budget"), ("depth", "max_depth")):
        largest = max(getattr(each.shape, name) for each in tried)
        if winner and not hasattr(winner.shape, "costs") and getattr(winner.shape, name) == largest:
            told.append(f"the best {what} is the largest tested, {largest}: a larger one may be faster")
    if measured < asked:
        told.append(f"{measured} of {asked} batches of prompts were measured: the time was over (give more seconds), "
                    "or answers ended at their first token")
    if measured < stats.FEWEST:
        told.append(f"{measured} batches of prompts are too few for an interval: give {stats.FEWEST} or more")
    return told


def row(each: Candidate, batch: int, own: RoundCost, rng: np.random.Generator) -> dict[str, object]:
    """A candidate's columns of the table "advice_candidates" at the costs of its drafter."""
    mean = stats.ratio(each.accepted, each.rounds, rng)
    seconds = each.seconds(own, batch)
    told = dict(batch=batch, drafter=each.entrant.name, shape=each.label, budget=each.shape.budget,
                depth=each.shape.max_depth, chain=each.is_chain, round_ms=1000 * seconds,
                level=float(own.once + own.level(1)) / own.plain, n_prompts=mean.n_prompts, n_rounds=mean.n_rounds)
    for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
        tokens = 1 + getattr(mean, end)
        told |= {f"tokens{suffix}": tokens, f"speedup{suffix}": tokens * own.plain / seconds}
    return told
