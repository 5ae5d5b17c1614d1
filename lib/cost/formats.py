"""The recommendation, and beside it the fastest setting over all number formats that the machine and the model can
have, with its quality.

`recommend` makes the recommendation in the format of the given pairs first. The other formats are loaded one after
another, the widest first, after the models before have been freed; the widest that fits into the memory continues some
of the judging prompts, and its logits are kept. Plain decoding and checks of 8 and 16 rows, with the candidates' tokens
per round of the recommendation, predict a format's speed. One that is near the recommendation's has a trace of its own,
on which candidates of the leading drafters are replayed; the fastest few decode choosing prompts, and the winner and
plain decoding those judging prompts on which the recommendation was measured. Drafting by a model is taken to cost what
it costs in the recommendation's format, which only ranks candidates.

Since one format is in memory at a time, the two answers are not timed in turns: the recommendation's plain decoding is
timed again at the end, and its speed over that of before bounds the machine's drift.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch

from lib.cost import candidates, recommending, ways
from lib.cost.candidates import Candidate, Entrant, Limits
from lib.cost.judging import measured
from lib.cost.quality import PROMPTS, Written, quality, written
from lib.cost.racing import Contest, Task, timed
from lib.cost.recommendation import NO_DRAFTER, NO_TREE, PLAIN, RECOMMENDED, Formats, Interval, OtherFormat
from lib.cost.recommending import Evidence, in_time
from lib.cost.round_cost import Curve
from lib.cost.ways import Deadline
from lib.decoding import loop
from lib.drafters.controls import ExcerptDrafter
from lib.forward.load import load_pairs
from lib.forward.passes import release
from lib.forward.packed import INT8, STORED
from lib.lab import processor, stats
from lib.models import registry
from lib.models.checks import AUTO, DTYPES, first_line
from lib.trees import shapes

FORMATS, NONE = ("float32", "bfloat16", INT8, STORED), "none"
WIDTHS = ("float64", "float32", "float16", "bfloat16")  # widest first
SHARE = 0.25  # of all seconds, for the other formats
# Shares of that time: for the text that judges quality, and by which the last format is raced; of a format's time, for
# its quality, and by which no candidate is replayed any more; of a batch size's time, for the choice.
SHARES = {"write": 0.1, "race": 0.9, "quality": 0.2, "replay": 0.4, "choose": 0.4}
SCREEN, REPEATS = 5.0, 10  # seconds of a format's screening, and calls with each number of rows, at most
ROWS, ROUNDS, COLD = (1, 8, 16), 8, 3  # rows of a forward pass; timed rounds per call; slow rounds after a prefill
NEAR = 0.8  # the predicted share of the recommendation's speed that a format needs to be raced
LEADING, FINALISTS, FEW = 3, 2, 8  # drafters, candidates that are timed, and choosing prompts, in another format
AGAIN = "again"  # the part of the table "advice_formats" that tells the drift
LATE = "no time was left to race it; give more seconds"
Load = Callable[[Sequence, str | None], list]  # pairs once more, in a number format or in their own


def check(names: Sequence[str]) -> None:
    """ValueError for a name that is none of FORMATS, or NONE beside others."""
    if unknown := [name for name in names if name not in (*FORMATS, NONE)]:
        raise ValueError(f"formats have {unknown[0]!r}; give some of {', '.join(FORMATS)}, an empty list for all, or "
                         f"{NONE!r} for no second answer")
    if NONE in names and len(names) > 1:
        raise ValueError(f"formats are {', '.join(names)}; give {NONE!r} alone, or leave it out")


@dataclass(frozen=True)
class Comparison:
    """What is compared: the recommendation with its evidence, its task, number format and device, choosing prompts, and
    the time for all formats.

    left_out: why a format was not raced or is not the fastest; rows: tables of timed calls.
    """

    evidence: Evidence
    task: Task
    reference: str
    device: torch.device
    choosing: object
    load: Load
    whole: Deadline
    say: Callable[[str], None]
    left_out: dict[str, str] = field(default_factory=dict)
    rows: list[pd.DataFrame] = field(default_factory=list)

    def opened(self, name: str | None) -> list | None:
        """The pairs in a format, or in the recommendation's; None, with the reason kept, where they cannot be."""
        reason = name in DTYPES and processor.slow_dtype(DTYPES[name], self.device)
        try:
            if not reason:
                return self.load(self.task.pairs, name)
        except ValueError as error:
            reason = first_line(error)
        self.left_out[name or self.reference] = reason
        return None

    def contest(self, batch: int, curve: Curve | None, tried: Sequence[Candidate]) -> Contest:
        """What competes at a batch size where forward passes take these seconds by rows; a check of n nodes has
        batch (n + 1) of them. Without a curve, in the recommendation's format.
        """
        prices = self.evidence.prices[batch]
        if curve:
            checks = Curve(curve.at / batch - 1, curve.seconds)
            prices = {name: replace(price, plain=checks(0), check=checks) for name, price in prices.items()}
        return Contest(batch, [candidate for candidate in tried if candidate.entrant.name in prices], prices)

    def raced(self, task: Task, named: Mapping[str, Candidate], groups: Sequence[ways.Group], name: str, batch: int,
              part: str, deadline: Deadline) -> pd.DataFrame:
        """`racing.timed` in a format; its rows are kept."""
        rows = timed(task, named, groups, batch, deadline, repeats=1).assign(
            target=self.evidence.recommendation.target, dtype=name, part=part)
        self.rows.append(rows.drop(columns="prefill"))
        return rows

    def recommended(self, batch: int, way: str | None = None) -> pd.Series:
        """By judging prompt the mean log of the tokens per second of a way, as recommended if none is named."""
        way = way or (PLAIN if self.evidence.recommendation.at(batch).is_plain else RECOMMENDED)
        rows = self.evidence.timed
        return logs(rows[(rows["part"] == "judging") & (rows["batch"] == batch) & (rows["way"] == way)])

    def judging(self, batch: int) -> list[ways.Group]:
        """The judging prompts on which the recommendation was measured."""
        known = set(self.recommended(batch).index)
        return [group for group in ways.groups(self.evidence.judging, batch) if group[0] in known]

    def interval(self, values: pd.Series) -> Interval:
        """The geometric mean over prompts of what these are the logs of."""
        mean = stats.of_repeats([[value] for value in values.dropna()], self.task.rng)
        return Interval(*(float(np.exp(end)) for end in (mean.value, mean.low, mean.high)))


def load_again(pairs: Sequence, dtype: str | None = None) -> list:
    """Loads pairs of one call of `load_pairs` once more, in another number format if one is given.

    dtype: as there; for "stored", a draft model that is no GGUF file is loaded as "auto".
    """
    _, names, (dtype_before, *_), (device, *_) = zip(*(pair.made_by for pair in pairs))
    drafters = [drafter for _, drafter in map(registry.sources, names) if drafter]
    if dtype == STORED and not all(drafter.kind == registry.GGUF for drafter in drafters):
        dtype = f"{STORED}|{AUTO}"
    return load_pairs(names, dtype or dtype_before, device)


def recommend(pairs: Sequence, choosing, judging, *, formats: Sequence[str] = (), limits: Limits = Limits(),
              seconds: float = 600.0, seed: int = 0, report: Callable[[str], None] = print,
              generate: Callable = loop.generate, clock: Callable[[], float] = time.perf_counter,
              load: Load = load_again, **settings) -> tuple[Evidence, pd.DataFrame]:
    """`recommending.recommend`, with the fastest setting over all number formats in the recommendation's `formats`; and
    the table "advice_formats", the calls that were timed in other formats.

    formats: those that compete, of FORMATS; empty: all that the target can have; NONE: no other, and an empty table.
    seconds: for everything. load: in place of `load_again`. Where another format competes, the pairs' models are
    freed: they keep their configuration alone, and the candidates no drafter. Other arguments are those of
    `recommending.recommend`.
    """
    check(formats)
    end, share = clock() + seconds, 0.0 if NONE in formats else SHARE
    evidence = recommending.recommend(pairs, choosing, judging, seconds=(1 - share) * seconds, limits=limits, seed=seed,
                                   report=report, generate=generate, clock=clock, **settings)
    if NONE in formats:
        return evidence, pd.DataFrame()
    evidence = replace(evidence, tried=[replace(candidate, entrant=replace(candidate.entrant, drafter=None))
                                        for candidate in evidence.tried])
    begin, advised = clock(), evidence.recommendation
    task = Task(pairs, (), tuple(choice.batch for choice in advised.by_batch), advised.new_tokens, limits, seed,
                generate, clock, torch.Generator().manual_seed(seed), np.random.default_rng(seed))
    reference = pairs[0].dtype.partition("|")[0]
    comparison = Comparison(evidence, task, reference, pairs[0].target.device, spread(choosing, FEW), load,
                            Deadline(clock, end),
                            lambda line: report(f"{clock() - begin:4.0f} s on number formats: {line}"))
    from_file = getattr(pairs[0].target, "gguf_file", "")
    answer = compare(comparison, formats or [name for name in FORMATS if name != STORED or from_file])
    rows = pd.concat(comparison.rows, ignore_index=True) if comparison.rows else pd.DataFrame()
    return replace(evidence, recommendation=replace(advised, formats=answer)), rows


def compare(comparison: Comparison, names: Sequence[str]) -> Formats:
    """The second answer, over these formats. The reference's models are freed."""
    task, left_out, whole, reference = comparison.task, comparison.left_out, comparison.whole, comparison.reference
    others, racing = [name for name in names if name != reference], whole.share(SHARES["race"])
    if not others or whole.left() == 0:
        left_out |= dict.fromkeys(others, LATE)
        return Formats(reference, reference, [], left_out, Interval(float("nan")))

    def writing(pair) -> Written:
        """What a pair's target writes after judging prompts, in its share of the time."""
        return written(pair, spread(comparison.evidence.judging, PROMPTS).ids, whole.share(SHARES["write"]))

    def width(name: str) -> int:
        """The place of a number format among WIDTHS; one that is narrower than all of them is last."""
        return WIDTHS.index(name) if name in WIDTHS else len(WIDTHS)

    base, widest = writing(task.pair), reference
    free(task.pairs)
    wanted = sorted(others if reference in WIDTHS[:2] else {*others, WIDTHS[1]}, key=width)
    winners: dict[int, list[tuple[float, OtherFormat]]] = {}
    for place, name in enumerate(wanted):
        if racing.over():
            left_out[name] = LATE
        elif pairs := comparison.opened(name):
            share = racing.share(1 / (len(wanted) - place))
            if width(name) < width(widest):
                base, widest = writing(pairs[0]), name
            try:
                for speed, winner in race(comparison, name, pairs, base, share) if name in others else ():
                    winners.setdefault(winner.batch, []).append((speed, winner))
            except (ValueError, MemoryError, torch.OutOfMemoryError) as error:
                left_out[name] = first_line(error)
            free(pairs)
    fastest = []
    for batch, raced in sorted(winners.items()):
        speed, winner = max(raced, key=lambda entry: entry[0])
        fastest.append(winner)
        left_out |= {f"{other.dtype} at batch {batch}": f"{slower / speed:.2f} times as fast as {winner.dtype} on the "
                     "prompts that choose" for slower, other in raced if other is not winner}
    drift, batch = pd.Series(dtype=float), task.batches[0]
    if winners and (pairs := comparison.opened(None)):
        again = comparison.raced(replace(task, pairs=pairs), {}, comparison.judging(batch), reference, batch, AGAIN,
                                 whole)
        drift = (logs(again) - comparison.recommended(batch, PLAIN)).dropna()
        free(pairs)
    bound = comparison.interval(drift) if len(drift) else Interval(float("nan"))
    return Formats(reference, widest, fastest, left_out, bound, len(drift))


def free(pairs: Sequence) -> None:
    """Frees the models of pairs, before others are loaded."""
    for model in {id(model): model for pair in pairs for model in (pair.target, pair.draft_model) if model}.values():
        release(model)
    gc.collect()
    torch.cuda.empty_cache()  # nothing without a GPU


def spread(prompts, most: int):
    """So many of the prompts at most, evenly spread."""
    return prompts.select(np.unique(np.linspace(0, len(prompts.ids) - 1, most).astype(int)))


def screen(comparison: Comparison, pair, end: float) -> Curve:
    """Median seconds of a round for each of ROWS, after the prompt of median length; each is timed at least once."""
    task, prompts = comparison.task, sorted(comparison.choosing.ids, key=len)
    drafter = ExcerptDrafter(prompts, pair.target.config.get_text_config().vocab_size, task.order)
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(REPEATS):
        start = task.clock()
        for rows, times in seconds.items():
            rounds = task.generate(pair.target, drafter, prompts[len(prompts) // 2][None],
                                   shape=shapes.chain(rows - 1), max_new_tokens=ROUNDS).rounds
            times += [record.verify_seconds + record.commit_seconds for record in rounds[COLD:] or rounds[-1:]]
        if 2 * task.clock() - start > end:  # another turn would take too long
            break
    return Curve.through(ROWS, [np.median(times) for times in seconds.values()])


def race(comparison: Comparison, name: str, pairs: Sequence, base: Written,
         deadline: Deadline) -> Iterator[tuple[float, OtherFormat]]:
    """At each batch size, as long as time is left, the winner of one format, with its speed on the choosing prompts;
    nothing where its predicted speed is too low.
    """
    evidence, choosing = comparison.evidence, comparison.choosing
    task, advised = replace(comparison.task, pairs=pairs), evidence.recommendation
    curve = screen(comparison, pairs[0], min(deadline.share(0.5).end, task.clock() + SCREEN))
    here, there = (comparison.contest(task.batches[0], seconds, evidence.tried) for seconds in (curve, None))
    ratio = fastest_of(here) / fastest_of(there)
    predicted = f"predicted to decode {ratio:.2f} times as fast as {comparison.reference}"
    comparison.say(f"{name} is {predicted}")
    if ratio < NEAR:
        comparison.left_out[name] = predicted
        return
    judged_by, replaying = deadline.share(SHARES["quality"]), deadline.share(SHARES["replay"])
    qualities = quality(base, pairs[0], task.rng, judged_by)
    competing = leading(comparison, pairs, curve)
    recorded = candidates.record(pairs[0], competing, choosing, task.new_tokens, task.limits.depth)
    tried = {candidate.name: replace(candidate, entrant=entrant)  # as in the recommendation's format, if time runs out
             for entrant in competing for candidate in evidence.tried if candidate.entrant.name == entrant.name}
    for place, entrant in enumerate(competing):
        share = replaying.share(1 / (len(competing) - place))
        replayed = in_time(candidates.static(entrant, recorded, task.limits), share)
        tried |= {candidate.name: candidate for candidate in replayed}
    whole = recorded.trace.without_loops
    asked = choosing.select(whole) if whole else choosing
    comparison.say(f"{name}: {len(tried)} candidates of {', '.join(entrant.name for entrant in competing)}")
    for place, choice in enumerate(advised.by_batch):
        batch = choice.batch
        if place and deadline.over():
            comparison.left_out[f"{name} at batch {batch}"] = LATE
            continue
        share = deadline.share(1 / (len(advised.by_batch) - place))
        contest = comparison.contest(batch, curve, list(tried.values()))
        ranked = sorted(contest.tried, key=lambda candidate: -contest.speed(candidate))[:FINALISTS]
        finalists = {candidate.name: candidate for candidate in ranked}
        settings = [(one.entrant.spec, one.label, one.entrant.pair.name) for one in ranked]
        if not choice.is_plain and (choice.drafter, choice.tree, choice.pair) not in settings:
            pair, unknown = next(pair for pair in pairs if pair.name == choice.pair), np.zeros(0)
            finalists[RECOMMENDED] = Candidate(Entrant(choice.drafter, choice.drafter, pair, None), choice.tree,
                                               choice.shape, (), unknown, unknown, unknown)
        rows = comparison.raced(task, finalists, ways.groups(asked, batch), name, batch, "choosing",
                                share.share(SHARES["choose"]))
        speeds = {way: measured(rows, way, None, task.rng).value for way in (PLAIN, *finalists)}
        best = max(speeds, key=speeds.get)
        winner = finalists.get(best)
        judged = comparison.raced(task, {best: winner} if winner else {}, comparison.judging(batch), name, batch,
                                  "judging", share)
        comparison.say(f"{name} at batch {batch}: {best} is chosen")
        rates = logs(judged[judged["way"] == best])
        over = rates - comparison.recommended(batch)
        yield speeds[best], OtherFormat(
            batch=batch, dtype=name, drafter=winner.entrant.spec if winner else NO_DRAFTER,
            tree=winner.label if winner else NO_TREE, tokens_per_second=comparison.interval(rates),
            over=comparison.interval(over), prompts=len(over.dropna()), **qualities)


def fastest_of(contest: Contest) -> float:
    """The highest predicted speed at a batch size, in batches' tokens per second; plain decoding's at least."""
    return max([1.0, *map(contest.speed, contest.tried)]) / next(iter(contest.prices.values())).plain


def leading(comparison: Comparison, pairs: Sequence, curve: Curve) -> list[Entrant]:
    """The drafters that are predicted to be fastest in a format, at any batch size, with these pairs."""
    contests = [comparison.contest(batch, curve, comparison.evidence.tried) for batch in comparison.evidence.prices]
    ranked = [(contest.speed(candidate) / contest.prices[candidate.entrant.name].plain, candidate.entrant)
              for contest in contests for candidate in contest.tried]
    names = list(dict.fromkeys(entrant.name for _, entrant in sorted(ranked, key=lambda entry: -entry[0])))[:LEADING]
    specs = dict.fromkeys(entrant.spec for _, entrant in ranked if entrant.name in names)
    return [entrant for entrant in candidates.entrants(pairs, list(specs)) if entrant.name in names]


def logs(rows: pd.DataFrame) -> pd.Series:
    """By prompt the mean log of the tokens per second of decoding alone."""
    return np.log(rows["rate"]).groupby(rows["prompt"]).mean()
