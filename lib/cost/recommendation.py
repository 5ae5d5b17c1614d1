"""The recommendation as data: the drafter, tree and budget that are fastest for a target on this text and hardware,
their speed, and the settings for serving engines; as JSON and as lines of text.

`recommending.recommend` makes it. Its file, recommendation.json in a run's folder, is what everything else quotes: one
object with the fields of `Recommendation`, and in `by_batch` a list of objects with the fields of `ForBatch`. An
interval is a list [value, low, high] of a value and the ends of its 95 % interval; null is an end that is not known.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import NamedTuple

from lib.engines import methods
from lib.engines.settings import why_none
from lib.engines.settings import scheduled
from lib.lab import atomic_file, json_text, stats
from lib.trees import named
from lib.trees.growth import Costs, Growth
from lib.trees.tree import Tree

FILE = "recommendation.json"
RECOMMENDED, PLAIN, CHAIN, TREE, GENERATE = "recommended", "plain decoding", "best chain", "best tree", "generate"
TREE_PAYS, NO_TREE_PAYS = "a tree pays", "no tree pays"
UNTOLD, TOO_FEW = "they cannot be told apart", "too few to tell them apart"
NO_DRAFTER, NO_TREE = "none", "chain:0"  # of plain decoding


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval, NaN where they are not known."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    def is_below(self, value: float) -> bool:
        """Whether all of the interval is below a value; without an interval, whether its own value is."""
        return self.value < value and not self.high >= value

    def is_above(self, value: float) -> bool:
        """Whether all of the interval is above a value; without an interval, whether its own value is."""
        return self.value > value and not self.low <= value

    @property
    def is_known(self) -> bool:
        """Whether there were prompts enough for the interval."""
        return not isnan(self.low)

    def __str__(self) -> str:
        if self == ONE:
            return "1"
        return stats.format_estimate(self, ".3g" if abs(self.value) >= 10 else ".2f")


ONE = Interval(1.0, 1.0, 1.0)


def about_trees(over: Interval) -> str:
    """What the speed of the best tree over the best chain, paired by prompt, tells."""
    if not over.is_known:
        return TOO_FEW
    return NO_TREE_PAYS if over.is_below(1) else TREE_PAYS if over.is_above(1) else UNTOLD


@dataclass(frozen=True)
class Raced:
    """A candidate of the race on the choosing prompts, or plain decoding. name: drafter and tree; nodes: its budget.
    estimate: its speed over plain decoding, of which the optimism of choosing is not taken off; that of the highest is
    called the fastest. over_fastest: its measured speed over that of the fastest, paired by prompt. tied: whether it
    cannot be told to be slower than the fastest.
    """

    name: str
    nodes: int
    estimate: float
    over_fastest: Interval
    tied: bool


@dataclass(frozen=True)
class ForBatch:
    """The recommendation at one batch size.

    drafter: a spec of `drafters.make`, "none" for plain decoding; pair: the pair for which it is made. tree: the name
    of its shape or growth rule; choices: a static tree as paths of ranks, null for a growth rule; costs: the arguments
    of `growth.Costs` for a rule that chooses the budget of each round by them, else null. budget: drafted nodes
    at most; depth: levels at most. chain: drafter and name of the fastest chain.
    predicted: speedup over plain decoding in the same loop, on the prompts that chose, less the optimism of choosing.
    Measured on other prompts, while all rows of a batch run and without prefill: speedup, over_chain (over the fastest
    chain) and kinds (the speedup by kind of text); with_prefill: the speedup of whole calls. tokens_per_second: of a
    batch, without prefill, by way: "recommended", "plain decoding", "best chain", "best tree" and "generate", that of
    transformers. best_tree, tree_over_chain: drafter and name of the fastest tree that branches, and its speed over
    that of the fastest chain; None where none was raced. raced: everything that decoded choosing prompts, the fastest
    first; raced_on: batches of prompts that it decoded. From logged answers nothing is timed: these speeds are then
    predicted on the answers that did not choose, with_prefill is null and tokens_per_second empty, and raced are each
    drafter's fastest candidate.
    prompts: batches of prompts that were measured, `batch` prompts each; repeats: measurements of each at most.
    settings: of serving engines that can run the drafter, as `settings.scheduled` gives them. served: drafter, tree and
    predicted speedup of the fastest candidate that an engine can run, where none can run the drafter: the settings are
    then its own; else null. reason: why plain decoding is recommended, or which gain is not shown; empty else.
    warnings: sentences.
    """

    batch: int
    drafter: str
    pair: str
    tree: str
    choices: Sequence[Sequence[int]] | None
    budget: int
    depth: int
    chain: Mapping[str, str]
    predicted: float
    speedup: Interval
    over_chain: Interval
    with_prefill: Interval | None
    kinds: Mapping[str, Interval]
    tokens_per_second: Mapping[str, Interval]
    prompts: int
    repeats: int
    settings: Sequence[Mapping[str, str]]
    warnings: Sequence[str]
    costs: Mapping[str, object] | None = None
    served: Mapping[str, object] | None = None
    best_tree: Mapping[str, str] | None = None
    tree_over_chain: Interval | None = None
    raced: Sequence[Raced] = ()
    raced_on: int = 0
    reason: str = ""

    @property
    def trees(self) -> str:
        """A sentence on the best tree beside the best chain, on the prompts that judge."""
        if not self.best_tree:
            return "no branching tree was judged"
        tree, chain = (f"({named['drafter']}, {named['tree']})" for named in (self.best_tree, self.chain))
        return (f"the best tree {tree} is {self.tree_over_chain} times as fast as the best chain {chain} "
                f"(n = {self.prompts}): {about_trees(self.tree_over_chain)}")

    @property
    def ties(self) -> str:
        """A sentence on what cannot be told apart from the fastest candidate, on the prompts that choose."""
        tied = [way for way in self.raced if way.tied]
        if not tied:
            return "no race is known"
        if 0 < self.raced_on < stats.FEWEST:
            return f"{len(self.raced)} ways were raced on n = {self.raced_on}, {TOO_FEW}"
        others = "; ".join(f"{way.name} {way.over_fastest}" for way in tied[1:])
        return (f"{tied[0].name} has the highest estimate; " + (f"tied with it: {others}" if others else
                f"each of {len(self.raced) - 1} others is slower") + f" (n = {self.raced_on})")

    @property
    def for_engines(self) -> str:
        """A sentence on what engines run where none runs the drafter or can read its weights; empty else."""
        if self.is_plain or self.settings and not self.served:
            return ""
        if self.served is None:
            return why_none(self.drafter)
        return (f"{why_none(self.drafter)}; the fastest that one runs is {self.served['drafter']} with "
                f"{self.served['tree']}, predicted to decode {self.served['predicted']:.2f} times as fast as plain "
                "decoding")

    @property
    def shape(self) -> Tree | Growth:
        """The tree, or the growth rule, as the loop takes it."""
        if self.choices is not None:
            return Tree.from_choices(map(tuple, self.choices))
        return named(self.tree, costs=Costs(**self.costs) if self.costs else None)

    @property
    def sentence(self) -> str:
        """What is recommended, and its measured speedup with that predicted, or the predicted one alone."""
        if self.is_plain:
            return f"plain decoding, since {self.reason or 'no candidate was faster'}"
        predicted = f" (predicted {self.predicted:.2f})" if self.with_prefill else ""
        return (f"{self.drafter} with {self.tree} (budget {self.budget}, depth {self.depth}), {self.speedup} times "
                f"plain decoding{predicted}")

    @property
    def is_plain(self) -> bool:
        """Whether plain decoding is recommended."""
        return self.drafter == NO_DRAFTER

    @property
    def lines(self) -> list[str]:
        """The recommendation in lines of text."""
        chain = f"the best chain ({self.chain['drafter']}, {self.chain['tree']})"
        beside = [f"it is {chain}" if self.over_chain == ONE else f"{self.over_chain} times {chain}"]
        if self.with_prefill and not self.is_plain:
            beside.append(f"{self.with_prefill} times plain decoding with prefill")
        lines = [f"batch {self.batch}: {self.sentence}", f"  {'; '.join(beside)}"]
        if self.tokens_per_second:
            speeds = ", ".join(f"{speed} {way}" for way, speed in self.tokens_per_second.items())
            lines.append(f"  tokens per second: {speeds} ({self.prompts} x {self.batch} prompts)")
        lines += [f"  {self.reason}"] if self.reason and not self.is_plain else []
        lines += [f"  {self.trees}", f"  {self.ties}"]
        if self.choices and not self.tree.startswith("chain"):
            lines.append(f"  tree: {[list(path) for path in self.choices]}")
        lines += [f"  {self.for_engines}"] if self.for_engines else []
        lines += [f"  {row['engine']} ({row['versions']}; {row['draft']}): {row['setting']}" for row in self.settings]
        return lines + [f"  note: {sentence}" for sentence in self.warnings]


def with_schedule(by_batch: Sequence[ForBatch]) -> list[ForBatch]:
    """The same recommendations with `settings.scheduled`."""
    rows = scheduled({choice.batch: None if choice.is_plain else choice.settings for choice in by_batch})
    return [replace(choice, settings=rows[choice.batch]) for choice in by_batch]


@dataclass(frozen=True)
class OtherFormat:
    """The fastest setting in another number format than the recommendation's, at one batch size.

    dtype: the format. drafter, tree: as in `ForBatch`. Measured on the prompts that judge, without prefill:
    tokens_per_second, of a batch; over: over the recommendation, paired by prompt; prompts: batches of prompts that
    both decoded. Where the widest format that fits into the memory wrote the text: agreement, the share of its tokens
    at which the most likely next token is the same; divergence: the mean Kullback-Leibler divergence of this format
    from that one, in nats per token; judged: prompts of this comparison.
    """

    batch: int
    dtype: str
    drafter: str
    tree: str
    tokens_per_second: Interval
    over: Interval
    prompts: int
    agreement: Interval
    divergence: Interval
    judged: int

    @property
    def sentence(self) -> str:
        """The setting, its speed beside the recommendation's, and whether the two can be told apart."""
        setting = "plain decoding" if self.drafter == NO_DRAFTER else f"{self.drafter} with {self.tree}"
        lead = ("too few prompts tell the recommendation apart from" if isnan(self.over.low) else
                "the fastest is" if self.over.is_above(1) else
                "the recommendation is fastest; next is" if self.over.is_below(1) else
                "the recommendation cannot be told apart from")
        return (f"{lead} {setting} in {self.dtype}, {self.tokens_per_second} tokens per second, {self.over} times the "
                f"recommendation ({self.prompts} {'prompts' if self.batch == 1 else 'batches of prompts'})")


@dataclass(frozen=True)
class Formats:
    """The recommendation beside other number formats.

    reference: the target's format in the recommendation; widest: the one with which the others' quality is compared.
    fastest: by batch size, of the formats that were raced. left_out: by format, or by format and batch size, why it
    was not raced or is not the fastest. drift: the speed of plain decoding in the reference after all formats were
    timed, over that of before, on so many prompts, or batches of them.
    """

    reference: str
    widest: str
    fastest: Sequence[OtherFormat]
    left_out: Mapping[str, str]
    drift: Interval
    drift_prompts: int = 0

    @property
    def lines(self) -> list[str]:
        """The second answer in lines of text."""
        lines = []
        for other in self.fastest:
            share, divergence = (stats.format_estimate(value, ".3g") for value in (
                Interval(*(100 * end for end in other.agreement)), other.divergence))
            lines += [f"batch {other.batch}, over all number formats: {other.sentence}",
                      f"  its most likely next token is that of {self.widest} at {share} % of places, with a mean KL "
                      f"divergence of {divergence} nats per token ({other.judged} prompts)"]
        if self.fastest:
            lines.append(f"  the formats were timed one after another: plain decoding in {self.reference} was "
                         f"{self.drift} times as fast after all of them as before (n = {self.drift_prompts})")
        return lines + [f"  not raced, or slower: {name} ({reason})" for name, reason in self.left_out.items()]


@dataclass(frozen=True)
class InEngine:
    """What a serving engine should draft with at one batch size, by its own costs and replay of its own text.

    way: its method with a number of draft tokens, or plain; setting: what a user sets. predicted, measured: speed over
    the engine's plain decoding, prefill excluded; measured on other prompts, in so many calls. Where that is slower,
    plain decoding is recommended.
    """

    engine: str
    batch: int
    way: str
    setting: str
    predicted: float
    measured: Interval
    calls: int

    @property
    def line(self) -> str:
        """The recommendation as a line of text."""
        if self.way == methods.PLAIN:
            why = (f"what is predicted to be fastest is {self.measured} times as fast, in {self.calls} calls"
                   if self.calls else "no way to draft is predicted to be faster")
            return f"{self.engine}, batch {self.batch}: plain decoding; {why}"
        return (f"{self.engine}, batch {self.batch}: {self.way}, {self.measured} times its plain decoding (predicted "
                f"{self.predicted:.2f}, {self.calls} calls): {self.setting}")


@dataclass(frozen=True)
class Recommendation:
    """The recommendation for a target, by batch size.

    draft_models: those that competed; drafters: names of all that competed. versions: of packages. new_tokens: per
    prompt. choosing, judging: numbers of prompts that were used; looping: the share of the judging prompts whose text
    repeats itself to its end, which were left out. warnings: sentences that concern all batch sizes. formats: the
    fastest setting over all number formats; null where none was compared. engines: of serving engines that were run.
    """

    target: str
    draft_models: Sequence[str]
    drafters: Sequence[str]
    dtype: str
    device: str
    processor: str
    threads: int
    versions: Mapping[str, str]
    new_tokens: int
    choosing: int
    judging: int
    looping: float
    by_batch: Sequence[ForBatch]
    warnings: Sequence[str] = ()
    formats: Formats | None = None
    engines: Sequence[InEngine] = ()

    def at(self, batch: int) -> ForBatch:
        """The recommendation at a batch size. KeyError where that was not measured."""
        return {choice.batch: choice for choice in self.by_batch}[batch]

    def save(self, path: str | Path) -> None:
        """Writes the file in one step, in a new folder if need be."""
        write(path, self)

    def text(self) -> str:
        """The recommendation in lines of text."""
        lines = [f"{self.target} ({self.dtype}; {self.processor}, {self.threads} threads): chosen on {self.choosing} "
                 f"prompts, measured on others, {self.new_tokens} tokens each"]
        lines += [line for choice in self.by_batch for line in choice.lines]
        lines += self.formats.lines if self.formats else []
        lines += [engine.line for engine in self.engines]
        return "\n".join([*lines, *(f"note: {sentence}" for sentence in self.warnings)])


def write(path: str | Path, value) -> None:
    """Writes a dataclass as JSON in one step, in a new folder if need be; null stands for NaN."""
    def plain(part):
        """The part as JSON has it."""
        if isinstance(part, Mapping):
            return {key: plain(inner) for key, inner in part.items()}
        if isinstance(part, (list, tuple)):
            return [plain(inner) for inner in part]
        return None if isinstance(part, float) and isnan(part) else part

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(Path(path), json.dumps(plain(asdict(value)), indent=1, allow_nan=False).encode() + b"\n")


def load(path: str | Path) -> Recommendation:
    """Reads a file that `save` wrote. FileNotFoundError without it, ValueError where it holds something else."""
    def interval(ends: Sequence[float | None]) -> Interval:
        """The interval of a list [value, low, high]."""
        return Interval(*(float("nan") if end is None else end for end in ends))

    def with_intervals(row: Mapping[str, object], *names: str) -> dict[str, object]:
        """The row with intervals in the place of the lists under these names."""
        return row | {name: interval(row[name]) for name in names if row.get(name) is not None}

    try:
        fields = json_text.loads(Path(path).read_text(encoding="utf-8"))
        by_batch = [ForBatch(**with_intervals(row, "speedup", "over_chain", "with_prefill", "tree_over_chain") | {
            name: {key: interval(ends) for key, ends in row[name].items()} for name in ("kinds", "tokens_per_second")
        } | {"raced": [Raced(**with_intervals(way, "over_fastest")) for way in row.get("raced", ())]})
            for row in fields["by_batch"]]
        formats = fields.get("formats")
        if formats is not None:
            fastest = [OtherFormat(**with_intervals(row, "tokens_per_second", "over", "agreement", "divergence"))
                       for row in formats["fastest"]]
            formats = Formats(**with_intervals(formats, "drift") | {"fastest": fastest})
        engines = [InEngine(**with_intervals(row, "measured")) for row in fields.get("engines", ())]
        return Recommendation(**fields | {"by_batch": by_batch, "formats": formats, "engines": engines})
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise ValueError(f"{path} is no recommendation ({reason}); delete it, and run 06_advice again") from None
