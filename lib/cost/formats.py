"""The recommendation, and beside it the fastest setting over all number formats that the machine and the model can
have, with its quality.

`recommend` makes the recommendation in the format of the given pairs first. The widest format that fits into the
memory then continues some of the judging prompts, and its logits are kept. The other formats are loaded one after
another, after the models before have been freed, and screened: plain decoding and checks of 8 and 16 rows, with the
candidates' tokens per round of the recommendation. At most two go on. Each is loaded again, and has a trace of its own
on which candidates of the leading drafters are replayed; the fastest few decode choosing prompts, and the winner and
plain decoding those judging prompts on which the recommendation was measured. Drafting by a model is taken to cost what
it costs in the recommendation's format, which only ranks candidates.

Since one format is in memory at a time, the two answers are not timed in turns: the recommendation's plain decoding is
timed again at the end, and its speed over that of before bounds the machine's drift.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from lib.cost import candidates, recommending, ways
from lib.cost.candidates import Candidate, Entrant, Limits
from lib.cost.quality import PROMPTS, Written, quality, written
from lib.cost.recommendation import (NO_DRAFTER, NO_TREE, PLAIN, RECOMMENDED, ForBatch, Formats, Interval,
                                     OtherFormat)
from lib.cost.recommending import Found, measured
from lib.cost.round_cost import Curve, RoundCost
from lib.decoding import loop
from lib.drafters.controls import RandomDrafter
from lib.drafters.drafter import ROOT_ALONE
from lib.drafters.registry import make
from lib.lab import processor, stats
from lib.models.checks import DTYPES, first_line, format_name
from lib.models.fused import release
from lib.models.load import load_again
from lib.models.quantize import INT8, STORED
from lib.replay.simulated import Recorded
from lib.trees import shapes
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

FORMATS, NONE = ("float32", "bfloat16", INT8, STORED), "none"
WIDTHS = ("float64", "float32", "float16", "bfloat16")  # widest first
SHARE = 0.25  # of all seconds, for the other formats
WRITTEN = 0.1  # share of that time in which the text is written that judges quality
SCREENED, RACED = 0.4, 0.9  # shares after which no format is screened, or raced, any more
SCREEN, REPEATS = 5.0, 10  # seconds of a format's screening, and calls with each number of rows, at most
ROWS, ROUNDS, COLD = (1, 8, 16), 8, 3  # rows of a forward pass; timed rounds per call; slow rounds after a prefill
GO_ON, NEAR = 2, 0.8  # formats that are raced at most, and the predicted share of the recommendation's speed they need
LEADING, FINALISTS, FEW = 3, 2, 8  # drafters, candidates that are timed, and choosing prompts, in another format
JUDGED, REPLAYED = 0.2, 0.4  # shares of a format's race for its quality, and after which no candidate is replayed
CHOICE = 0.4  # of a batch size's share, for the choice
AGAIN = "again"  # the part of the table "advice_formats" that tells the drift
Load = Callable[[Sequence, str | None], list]  # pairs once more, in a number format or in their own


def check(names: Sequence[str]) -> None:
    """ValueError for a name that is none of FORMATS, or NONE beside others."""
    if unknown := [name for name in names if name not in (*FORMATS, NONE)]:
        raise ValueError(f"formats have {unknown[0]!r}; give some of {', '.join(FORMATS)}, an empty list for all, or "
                         f"{NONE!r} for no second answer")
    if NONE in names and len(names) > 1:
        raise ValueError(f"formats are {', '.join(names)}; give {NONE!r} alone, or leave it out")


def recommend(pairs: Sequence, choosing, judging, *, formats: Sequence[str] = (), limits: Limits = Limits(),
              seconds: float = 600.0, seed: int = 0, report: Callable[[str], None] = print,
              generate: Callable = loop.generate, clock: Callable[[], float] = time.perf_counter,
              load: Load = load_again, **settings) -> tuple[Found, pd.DataFrame]:
    """`recommending.recommend`, with the fastest setting over all number formats in the recommendation's `formats`; and
    the table "advice_formats", the calls that were timed in other formats.

    formats: those that compete, of FORMATS; empty: all that the target can have; NONE: no other, and an empty table.
    seconds: for everything. load: in place of `load_again`. Where another format competes, the pairs' models are
    freed: they keep their configuration alone, and the candidates no drafter. Other arguments are those of
    `recommending.recommend`.
    """
    check(formats)
    until, share = clock() + seconds, 0.0 if NONE in formats else SHARE
    options = dict(limits=limits, seed=seed, report=report, generate=generate, clock=clock)
    found = recommending.recommend(pairs, choosing, judging, seconds=(1 - share) * seconds, **options, **settings)
    if NONE in formats:
        return found, pd.DataFrame()
    tried = [replace(each, entrant=replace(each.entrant, drafter=None)) for each in found.tried]
    found = replace(found, tried=tried)
    names = formats or [name for name in FORMATS if name != STORED or pairs[0].is_gguf]
    told, timed = _Formats(pairs, choosing, found, names, until, load, **options).run()
    return replace(found, recommendation=replace(found.recommendation, formats=told)), timed


@dataclass(frozen=True)
class _Setting:
    """A drafter and a shape, by their names and as they are."""

    drafter: str
    tree: str
    pair: object
    shape: Tree | Growth

    def alike(self, others: Iterable["_Setting"]) -> bool:
        """Whether one of these has the same drafter, of the same pair, and tree; plain decoding has any pair."""
        return any((self.drafter, self.tree) == (own.drafter, own.tree)
                   and (self.pair is own.pair or self.drafter == NO_DRAFTER) for own in others)


@dataclass(frozen=True)
class _Raced:
    """A format's winner at a batch size: its speed on choosing prompts, and rows of the judging prompts."""

    dtype: str
    drafter: str
    tree: str
    chosen: float
    judged: pd.DataFrame


class _Formats:
    """The state of one comparison of number formats."""

    def __init__(self, pairs, choosing, found: Found, names, until, load, *, limits, seed, report, generate, clock):
        self.pairs, self.found, self.names, self.load, self.limits = pairs, found, names, load, limits
        self.made, self.report, self.generate, self.clock = found.recommendation, report, generate, clock
        self.begin, self.until, self.device = clock(), until, pairs[0].target.device
        self.choosing = spread(choosing, FEW)
        self.order, self.rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        self.reference = self.widest = format_name(pairs[0].target)
        self.left_out: dict[str, str] = {}
        self.qualities: dict[str, dict[str, object]] = {}
        self.loading: dict[str, float] = {}  # seconds, by format
        self.timed: list[pd.DataFrame] = []

    def run(self) -> tuple[Formats, pd.DataFrame]:
        """The second answer, and the calls that were timed for it."""
        others = [name for name in self.names if name != self.reference]
        if others and self.clock() < self.at(SCREENED):
            self.base = self.writing(self.pairs[0])
            self.free(self.pairs)
            curves = self.screened(others)
            raced = self.raced(self.going_on(curves))
        else:
            raced = {}
            self.left_out |= dict.fromkeys(others, "no time was left; give more seconds")
        drift, again = self.drift() if raced else (Interval(float("nan")), 0)
        fastest = [self.fastest(batch, own) for batch, own in sorted(raced.items())]
        told = Formats(self.reference, self.widest, fastest, self.left_out, drift, again)
        return told, pd.concat(self.timed, ignore_index=True) if self.timed else pd.DataFrame()

    def at(self, share: float) -> float:
        """The time at which this share of the time is over."""
        return self.begin + share * max(0.0, self.until - self.begin)

    def say(self, line: str) -> None:
        """A line of progress with the time since the begin."""
        self.report(f"{self.clock() - self.begin:4.0f} s on number formats: {line}")

    def opened(self, name: str | None) -> list | None:
        """The pairs in a format, or in the recommendation's; None, with the reason kept, where they cannot be."""
        start = self.clock()
        if reason := name in DTYPES and processor.slow_dtype(DTYPES[name], self.device):
            self.left_out[name] = reason
            return None
        try:
            pairs = self.load(self.pairs, name)
        except ValueError as error:
            self.left_out[name or self.reference] = first_line(error)
            return None
        self.loading[name] = self.clock() - start
        return pairs

    def free(self, pairs: Sequence) -> None:
        """Frees the models of pairs, before others are loaded."""
        for model in {id(each): each for pair in pairs for each in (pair.target, pair.draft_model) if each}.values():
            release(model)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def writing(self, pair) -> Written:
        """`written` on judging prompts, evenly spread, for a tenth of the time."""
        until = self.clock() + WRITTEN * (self.at(1) - self.begin)
        return written(pair, spread(self.found.judging, PROMPTS).ids, until, self.clock)

    # ------------------------------------------------------------------------------------------------------- screening

    def screened(self, others: Sequence[str]) -> dict[str, Curve]:
        """Seconds of a forward pass by rows, for each format; the widest format also writes the text for the quality."""
        curves: dict[str, Curve] = {}
        wanted = sorted(others if self.reference in WIDTHS[:2] else {*others, WIDTHS[1]}, key=_width)
        for place, name in enumerate(wanted):
            wider, start = _width(name) < _width(self.widest), self.clock()
            if start > self.at(SCREENED):
                self.left_out[name] = "no time was left to screen it; give more seconds"
            elif pairs := self.opened(name):
                if wider:
                    self.base, self.widest = self.writing(pairs[0]), name
                if name in others:
                    share = (self.at(SCREENED) - start) / (len(wanted) - place)
                    curves[name] = self.screen(pairs[0], start + min(SCREEN, share))
                self.free(pairs)
        return curves

    def screen(self, pair, until: float) -> Curve:
        """Median seconds of a round for each of ROWS, after the prompt of median length; each is timed at least once."""
        prompt = sorted(self.choosing.ids, key=len)[len(self.choosing.ids) // 2]
        drafter = RandomDrafter(pair.target.config.get_text_config().vocab_size, self.order)
        seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for _ in range(REPEATS):
            start = self.clock()
            for rows, own in seconds.items():
                done = self.generate(pair.target, drafter, prompt[None], shape=shapes.chain(rows - 1),
                                     max_new_tokens=ROUNDS)
                own += [one.verify_seconds + one.commit_seconds for one in done.rounds[COLD:] or done.rounds[-1:]]
            if 2 * self.clock() - start > until:  # another turn would take too long
                break
        return Curve.through(ROWS, [np.median(own) for own in seconds.values()])

    def speed(self, each: Candidate, batch: int, curve: Curve | None) -> float:
        """Predicted tokens per second of a batch, in the format of these forward passes, or the recommendation's."""
        price = self.found.prices[batch][each.entrant.name]
        return batch * each.tokens / each.seconds(priced(price, curve, batch) if curve else price, batch)

    def going_on(self, curves: Mapping[str, Curve]) -> dict[str, Curve]:
        """The formats of the highest predicted speed at the first batch size; of the others the reason is kept."""
        batch, best = self.made.by_batch[0].batch, {}
        prices = self.found.prices[batch]
        for name, curve in {self.reference: None, **curves}.items():
            plain = float(curve(batch)) if curve else next(iter(prices.values())).plain
            drafted = [self.speed(each, batch, curve) for each in self.found.tried if each.entrant.name in prices]
            best[name] = max([batch / plain, *drafted])
        own = best.pop(self.reference)
        ranked = sorted(best, key=best.get, reverse=True)
        chosen = [name for name in ranked if best[name] >= NEAR * own][:GO_ON]
        for name in ranked:
            told = f"predicted to decode {best[name] / own:.2f} times as fast as {self.reference}"
            self.say(f"{name} is {told}")
            if name not in chosen:
                self.left_out[name] = told + (f", after {' and '.join(chosen)}" if best[name] >= NEAR * own else "")
        return {name: curves[name] for name in chosen}

    # ---------------------------------------------------------------------------------------------------------- racing

    def raced(self, chosen: Mapping[str, Curve]) -> dict[int, list[_Raced]]:
        """By batch size the winner of each of these formats, which are loaded one after another."""
        found: dict[int, list[_Raced]] = {}
        for place, (name, curve) in enumerate(chosen.items()):
            if self.clock() + self.loading[name] > self.at(RACED):
                self.left_out[name] = "no time was left to race it; give more seconds"
            elif pairs := self.opened(name):
                end = self.clock() + (self.at(RACED) - self.clock()) / (len(chosen) - place)
                try:
                    for batch, own in self.race(name, pairs, curve, end):
                        found.setdefault(batch, []).append(own)
                except (ValueError, MemoryError, torch.OutOfMemoryError) as error:
                    self.left_out[name] = first_line(error)
                self.free(pairs)
        return found

    def race(self, name: str, pairs: Sequence, curve: Curve, end: float) -> Iterator[tuple[int, _Raced]]:
        """At each batch size, as long as time is left, the winner of one format."""
        start = self.clock()
        self.qualities[name] = quality(self.base, pairs[0], self.rng, start + JUDGED * (end - start), self.clock)
        competing = self.leading(pairs, curve)
        recorded = candidates.record(pairs[0], competing, self.choosing, self.made.new_tokens, self.limits.depth)
        tried = self.replayed(competing, recorded, start + REPLAYED * (end - start))
        whole = recorded.trace.without_loops
        asked = self.choosing.select(whole) if whole else self.choosing
        self.say(f"{name}: {len(tried)} candidates of {', '.join(one.name for one in competing)}")
        for place, own in enumerate(self.made.by_batch):
            if place and self.clock() > end:
                self.left_out[f"{name} at batch {own.batch}"] = "no time was left to race it; give more seconds"
                continue
            until = self.clock() + max(0.0, end - self.clock()) / (len(self.made.by_batch) - place)
            yield own.batch, self.winner(name, pairs, self.finalists(own, pairs, tried, curve), asked, own.batch, until)

    def leading(self, pairs: Sequence, curve: Curve) -> list[Entrant]:
        """The drafters that are predicted to be fastest in a format, at any batch size, with these pairs."""
        ranked = [(self.speed(each, batch, curve) / batch, each.entrant) for batch, prices in self.found.prices.items()
                  for each in self.found.tried if each.entrant.name in prices]
        names = dict.fromkeys(one.name for _, one in sorted(ranked, key=lambda told: -told[0]))
        kept = list(names)[:LEADING]
        specs = [one.spec for _, one in ranked if one.name in kept]
        return [one for one in candidates.entrants(pairs, list(dict.fromkeys(specs))) if one.name in kept]

    def replayed(self, competing: Sequence[Entrant], recorded: Recorded, until: float) -> list[Candidate]:
        """The candidates of these drafters: as they are replayed on the format's own trace, while time is left, else
        as they were judged in the recommendation's format.
        """
        found = {each.name: replace(each, entrant=one) for one in competing for each in self.found.tried
                 if each.entrant.name == one.name}
        for place, one in enumerate(competing):
            end = self.clock() + max(0.0, until - self.clock()) / (len(competing) - place)
            for each in candidates.static(one, recorded, self.limits):
                found[each.name] = each
                if self.clock() > end:
                    break
        return list(found.values())

    def finalists(self, own: ForBatch, pairs: Sequence, tried: Sequence[Candidate],
                  curve: Curve) -> dict[str, _Setting]:
        """By name the settings that a format races: plain decoding, those of the highest predicted speed, and the
        recommended one.
        """
        known = [each for each in tried if each.entrant.name in self.found.prices[own.batch]]
        known.sort(key=lambda each: -self.speed(each, own.batch, curve))
        found = {PLAIN: _Setting(NO_DRAFTER, NO_TREE, pairs[0], ROOT_ALONE)}
        found |= {each.name: _Setting(each.entrant.spec, each.label, each.entrant.pair, each.shape)
                  for each in known[:FINALISTS]}
        pair = pairs[[each.name for each in self.pairs].index(own.pair)]
        recommended = _Setting(own.drafter, own.tree, pair, own.shape)
        return found if recommended.alike(found.values()) else found | {RECOMMENDED: recommended}

    def winner(self, name: str, pairs: Sequence, finalists: Mapping[str, _Setting], asked, batch: int,
               until: float) -> _Raced:
        """The fastest setting on choosing prompts, timed on the judging prompts of the recommendation."""
        middle = self.clock() + CHOICE * (until - self.clock())
        rows = self.timing(finalists, ways.groups(asked, batch), name, batch, "choosing", middle)
        speeds = {way: measured(rows, way, None, self.rng).value for way in finalists}
        best = max(speeds, key=speeds.get)
        known = set(self.recommended(batch).index)
        groups = [group for group in ways.groups(self.found.judging, batch) if group[0] in known]
        judged = self.timing({PLAIN: finalists[PLAIN], best: finalists[best]}, groups, name, batch, "judging", until)
        self.say(f"{name} at batch {batch}: {best} is chosen")
        own = finalists[best]
        return _Raced(name, own.drafter, own.tree, speeds[best], judged[judged["way"] == best])

    def timing(self, settings: Mapping[str, _Setting], groups: Sequence[ways.Group], name: str, batch: int, part: str,
               until: float) -> pd.DataFrame:
        """`ways.race` of these settings in a format; its rows are kept."""
        runs = {way: ways.ours(own.pair, make(own.drafter, own.pair), own.shape, self.made.new_tokens, self.generate)
                for way, own in settings.items()}
        rows = ways.race(runs, groups, until=until, repeats=1, least=recommending.LEAST, device=self.device,
                         generator=self.order, clock=self.clock)
        facts = dict(target=self.made.target, dtype=name, batch=batch, part=part)
        self.timed.append(rows.drop(columns="prefill").assign(**facts))
        return rows

    # ------------------------------------------------------------------------------------------------------- comparing

    def recommended(self, batch: int, way: str | None = None) -> pd.Series:
        """By judging prompt the mean log of the tokens per second of a way, as recommended if none is named."""
        way = way or (PLAIN if self.made.at(batch).is_plain else RECOMMENDED)
        rows = self.found.timed
        return logs(rows[(rows["part"] == "judging") & (rows["batch"] == batch) & (rows["way"] == way)])

    def fastest(self, batch: int, raced: Sequence[_Raced]) -> OtherFormat:
        """The second answer at a batch size: of the formats, the one that was fastest on choosing prompts."""
        best = max(raced, key=lambda own: own.chosen)
        for own in raced:
            if own is not best:
                self.left_out[f"{own.dtype} at batch {batch}"] = (
                    f"{own.chosen / best.chosen:.2f} times as fast as {best.dtype} on the prompts that choose")
        speeds = logs(best.judged)
        over = speeds - self.recommended(batch)
        return OtherFormat(batch=batch, dtype=best.dtype, drafter=best.drafter, tree=best.tree,
                           tokens_per_second=self.interval(speeds), over=self.interval(over),
                           prompts=len(over.dropna()), **self.qualities[best.dtype])

    def drift(self) -> tuple[Interval, int]:
        """The speed of the recommendation's plain decoding now, over that when it was judged; on so many prompts."""
        if not (pairs := self.opened(None)):
            return Interval(float("nan")), 0
        batch = self.made.by_batch[0].batch
        before = self.recommended(batch, PLAIN)
        groups = [group for group in ways.groups(self.found.judging, batch) if group[0] in before.index]
        plain = {PLAIN: _Setting(NO_DRAFTER, NO_TREE, pairs[0], ROOT_ALONE)}
        after = self.timing(plain, groups, self.made.dtype, batch, AGAIN, self.at(1))
        self.free(pairs)
        ratios = (logs(after) - before).dropna()
        return self.interval(ratios), len(ratios)

    def interval(self, own: pd.Series) -> Interval:
        """The geometric mean over prompts of what these are the logs of."""
        found = stats.of_repeats([[value] for value in own.dropna()], self.rng)
        return Interval(*(float(np.exp(end)) for end in (found.value, found.low, found.high)))


def spread(prompts, most: int):
    """So many of the prompts at most, evenly spread."""
    return prompts.select(np.unique(np.linspace(0, len(prompts.ids) - 1, most).astype(int)))


def priced(price: RoundCost, curve: Curve, batch: int) -> RoundCost:
    """A cost of rounds with these seconds of a forward pass by rows; a check of n nodes has batch (n + 1) of them."""
    check = Curve(curve.at / batch - 1, curve.seconds)
    return replace(price, plain=check(0), check=check)


def logs(rows: pd.DataFrame) -> pd.Series:
    """By prompt the mean log of the tokens per second of decoding alone."""
    return np.log(rows["rate"]).groupby(rows["prompt"]).mean()


def _width(name: str) -> int:
    """A format's place among those that are wide, widest first; those of fewer bits share the last."""
    return WIDTHS.index(name) if name in WIDTHS else len(WIDTHS)
