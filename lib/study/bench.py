"""A backend at work on the prompts of a run: what all five steps share."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from lib.engines.driver import Engine, Running
from lib.engines.log import Log
from lib.engines.methods import PLAIN, Way
from lib.engines.own import Own
from lib.lab import stats
from lib.lab.chapter import Store
from lib.models import prompts as prompt_files
from lib.models.prompts import PromptSet, check_enough

Backend = Engine | Own | Log  # of one interface
CHOOSING, JUDGING = PARTS = ("choosing", "judging")
LOOPING = "looping"  # the part of prompts whose text repeats itself


@dataclass(frozen=True)
class Bench:
    """A backend with the prompts of a run, in the order of the table "prompts".

    target: the name of the model that verifies. parts: for each prompt CHOOSING or JUDGING; those whose text loops
    become LOOPING. new_tokens: of an answer at most. raced: by batch size the calls that are raced in each part.
    longest: draft tokens on a path at most. ends: the tokens that end an answer. writer: whose text is replayed where
    the backend writes none of its own.
    """

    backend: Backend
    store: Store
    target: str
    prompts: PromptSet
    parts: Sequence[str]
    new_tokens: int
    raced: Mapping[int, int]
    longest: int
    ends: Sequence[int]
    seed: int = 0
    writer: Backend | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def batches(self) -> list[int]:
        """The batch sizes, smallest first."""
        return sorted(self.raced)

    def say(self, line: str) -> None:
        """Prints a line of progress."""
        print(f"{time.monotonic() - self.began:4.0f} s: {self.backend.name}, {line}", flush=True)

    @contextmanager
    def running(self, *ways: Way) -> Iterator[dict[str, Running]]:
        """The backend started with each of these ways, by name, at the same time."""
        window = max(map(len, self.prompts.ids)) + self.new_tokens + 2 * self.longest + 2
        with ExitStack() as stack:
            yield {way.name: stack.enter_context(self.backend.start(
                way, window=window, batch=max(self.batches_of(way)),
                log=self.store.folder / "engines" / f"{self.backend.name}-{way.name}.log".replace(":", "-")))
                for way in ways}

    @property
    def source(self) -> dict[str, object]:
        """The columns of tables that say whose text a row is about; the first parts of their keys."""
        writer = self.writer or self.backend
        return dict(target=self.target, backend=writer.name, temperature=getattr(writer, "temperature", 0.0))

    def batches_of(self, way: Way) -> list[int]:
        """The batch sizes at which the backend decodes with a way."""
        together = way.name == PLAIN or self.backend.batches and not way.alone
        return [batch for batch in self.batches if batch == 1 or together]

    def rows(self, part: str) -> list[int]:
        """The prompts of a part, in the order in which they are raced."""
        return [row for row, its_part in enumerate(self.parts) if its_part == part]

    def calls(self, part: str, batch: int) -> list[list[int]]:
        """The prompts of each call of a part; the last one is filled with the first prompts."""
        rows = self.rows(part)
        return [[rows[(first + index) % len(rows)] for index in range(batch)] for first in range(0, len(rows), batch)]

    def ids(self, rows: Sequence[int]) -> list[list[int]]:
        """The token ids of prompts."""
        return [self.prompts.ids[row].tolist() for row in rows]

    def generator(self, *words: object) -> np.random.Generator:
        """Randomness of a part of the work, a function of the seed and its name."""
        return np.random.default_rng([self.seed, *" ".join(map(str, words)).encode()])

    def rows_of(self, name: str) -> pd.DataFrame:
        """The backend's rows of a table."""
        rows = self.store.open(name).frame()
        return rows[rows["backend"] == self.backend.name]


def of_pair(pair, store: Store, settings, limit: float | None, raced: Mapping[int, int], longest: int) -> Bench:
    """This project's loop with a pair, at work on prompts of at most `limit` tokens. Fills the table "prompts"."""
    prompts, parts = arranged(prompt_files.load(settings.prompts, pair.tokenizer, limit=limit), settings.choose_prompts,
                              settings.judge_prompts, np.random.default_rng(settings.seed),
                              prompt_files.HALVED if settings.prompts else 0)
    write_prompts(store, prompts, parts)
    judging = {stats.unit(name) for name, part in zip(prompts.names, parts) if part == JUDGING}
    if len(judging) < stats.FEWEST:
        print(f"{len(judging)} of {len({*map(stats.unit, prompts.names)})} prompts judge, too few for an interval, which "
              f"takes {stats.FEWEST}: give {2 * stats.FEWEST} prompts or more")
    return Bench(Own(pair, prompts.ids), store, pair.target_name, prompts, parts, settings.new_tokens, raced, longest,
                 list(pair.eos_token_ids), settings.seed)


def without_loops(bench: Bench) -> Bench:
    """The bench without the prompts whose text loops in the table "texts", unless all of a part do."""
    texts = bench.store.open("texts").frame()
    of_bench = (texts[list(bench.source)] == list(bench.source.values())).all(axis=1)
    looping = set(texts.loc[of_bench & texts["loops"], "prompt"])
    parts = [LOOPING if name in looping else part for name, part in zip(bench.prompts.names, bench.parts)]
    return replace(bench, parts=parts if {*PARTS} <= {*parts} else bench.parts)


def arranged(prompts: PromptSet, choose: int, judge: int, generator: np.random.Generator,
             halved: int = 0) -> tuple[PromptSet, list[str]]:
    """Prompts in the order in which they are raced, and the part of each: of each kind `choose` units that choose and
    `judge` that judge, alike in the share of later turns (see `spread`). A unit is a conversation, or equal prompts. Of
    2 to `halved` units in all, half choose and half judge.

    ValueError if a kind has fewer units.
    """
    unit_of: dict[tuple[int, ...], str] = {}
    units = [unit_of.setdefault(tuple(ids.tolist()), stats.unit(name)) for name, ids in zip(prompts.names, prompts.ids)]
    is_halved = 2 <= len({*units}) <= halved
    if not is_halved:
        check_enough(units, prompts.kinds, choose, judge)
    kind_of, by_kind = {}, {}  # of a unit: the kind of its first prompt
    for row, (kind, unit) in enumerate(zip(prompts.kinds, units)):
        by_kind.setdefault(kind_of.setdefault(unit, kind), {}).setdefault(unit, []).append(row)

    def shuffled(members: Sequence[list[int]]) -> list[list[int]]:
        """Units, each with its rows, in a random order that is even in kinds and later turns."""
        return spread(members, [(prompts.kinds[rows[0]], prompts.turns[rows[0]] > 1) for rows in members], generator)

    orders = [shuffled(list(members.values())) for members in by_kind.values()]
    if is_halved:
        orders = [shuffled([unit for order in orders for unit in order])]
        choose, judge = len(orders[0]) // 2, len(orders[0])
    chosen = {CHOOSING: [unit for order in orders for unit in order[:choose]],
              JUDGING: [unit for order in orders for unit in order[choose : choose + judge]]}
    order = [(row, part) for part, members in chosen.items() for unit in shuffled(members) for row in unit]
    return prompts.select([row for row, _ in order]), [part for _, part in order]


def write_prompts(store: Store, prompts: PromptSet, parts: Sequence[str]) -> None:
    """Adds prompts to the table "prompts", those that are missing."""
    store.open("prompts").add([
        dict(prompt=name, kind=kind, unit=stats.unit(name), turn=turn, part=part, tokens=len(ids))
        for name, kind, turn, part, ids in zip(prompts.names, prompts.kinds, prompts.turns, parts, prompts.ids)])


def spread(members: Sequence, strata: Sequence, generator: np.random.Generator) -> list:
    """Members in a random order in which each stratum is spread evenly: any beginning holds about its share of each
    (systematic sampling with a random start per stratum).
    """
    keys = np.empty(len(members))
    for stratum in dict.fromkeys(strata):
        rows = [row for row, its_stratum in enumerate(strata) if its_stratum == stratum]
        keys[generator.permutation(rows)] = (np.arange(len(rows)) + generator.random()) / len(rows)
    return [members[row] for row in np.argsort(keys, kind="stable")]
