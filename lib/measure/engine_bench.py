"""A serving engine with a target on this machine: its plain texts, and the cost curve of its steps.

Everything is judged by the engine's own text, so that replay is exact for it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from lib.cost import in_engine
from lib.cost.in_engine import Steps
from lib.engines import registry
from lib.engines.driver import Running
from lib.engines.methods import FORCED, PLAIN, Setting, Sizes, Way
from lib.lab.chapter import Store
from lib.models.prompts import PromptSet
from lib.replay.recording import Texts, read
from lib.replay.simulated import Recorded

NODES = (0, 1, 2, 4, 7, 8, 15, 16)  # draft tokens of forced rounds: both sides of the steps that checks may have. An
# engine whose rounds without a draft cost a plain step begins with 1.
FORCED_TOKENS = 24  # that a forced run writes for each prompt; each round gives one
REPEATS = 3  # of each point of the curve
CALIBRATED = 2  # choosing prompts on which the time of a method's drafting is measured


@dataclass(frozen=True)
class Bench:
    """An engine with a target, and its prompts, of which some choose and the others judge.

    spec: the engine's name in the tables. longest: the most draft tokens per round. ends: tokens that end an answer.
    """

    spec: str
    chosen: registry.Chosen
    target: object
    store: Store
    prompts: PromptSet
    choosing: Sequence[int]
    judging: Sequence[int]
    new_tokens: int
    batches: Sequence[int]
    longest: int
    threads: int
    ends: Sequence[int]
    began: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        """Prints a line on what is being done."""
        print(f"{time.monotonic() - self.began:4.0f} s: {self.spec}, {line}", flush=True)

    @contextmanager
    def running(self, *ways: Way) -> Iterator[dict[str, Running]]:
        """The engine with each of these ways, by name, in processes of their own at the same time."""
        window = max(map(len, self.prompts.ids)) + self.new_tokens + 2 * self.longest + 2
        with ExitStack() as stack:
            yield {way.name: stack.enter_context(self.chosen.start(
                self.target, way.setting, threads=self.threads, window=window, batch=max(self.batches_of(way)),
                log=self.store.folder / "engines" / f"{self.spec}-{way.name}.log".replace(":", "-").replace("/", "-")))
                for way in ways}

    @property
    def parts(self) -> dict[str, Sequence[int]]:
        """The rows of prompts by what they are for."""
        return {"choosing": self.choosing, "judging": self.judging}

    def batches_of(self, way: Way) -> Sequence[int]:
        """The batch sizes at which the engine can decode with a way."""
        together = way.label == PLAIN or self.chosen.engine.batches and not (way.method and way.method.alone)
        return [batch for batch in self.batches if batch == 1 or together]

    def names(self, rows: Sequence[int]) -> str:
        """The names of prompts, as one text."""
        return ", ".join(self.prompts.names[row] for row in rows)

    def ids(self, rows: Sequence[int]) -> list[list[int]]:
        """The token ids of prompts."""
        return [self.prompts.ids[row].tolist() for row in rows]


@dataclass(frozen=True)
class Written:
    """An engine's plain text of each prompt, past its end and past the limit; lengths: of the answers in it."""

    tokens: Sequence[Sequence[int]]
    lengths: Sequence[int]


def plain_texts(bench: Bench) -> Written:
    """Fills the table "engine_texts" with the plain text of each prompt, decoded alone. After an answer has ended, the
    engine is asked to continue it, so that the text decides every round. (An engine that is told to ignore ends may
    write another token in their place.)
    """
    table, plain = bench.store.open("engine_texts"), Way(Setting())
    missing = [row for row, name in enumerate(bench.prompts.names) if (bench.spec, name) not in table.keys()]
    if missing:
        bench.say(f"{len(missing)} plain texts")
    with bench.running(*[plain] if missing else []) as engines:
        for row in missing:
            (prompt,), tokens, wanted = bench.ids([row]), [], bench.new_tokens + bench.longest + 1
            while len(tokens) < wanted:
                tokens += engines[PLAIN].decode([prompt + tokens], wanted - len(tokens), bench.ends).tokens[0]
            table.append(engine=bench.spec, prompt=bench.prompts.names[row], kind=bench.prompts.kinds[row],
                         part="choosing" if row in bench.choosing else "judging", ids=" ".join(map(str, tokens)),
                         tokens=answer_length(tokens, bench.new_tokens, bench.ends))
    known = table.frame().set_index(["engine", "prompt"]).loc[bench.spec].loc[list(bench.prompts.names)]
    return Written([list(map(int, ids.split())) for ids in known["ids"]], known["tokens"].tolist())


def answers(bench: Bench, written: Written) -> Iterator[str]:
    """The plain answers as lines of a log that `replay.logs` reads."""
    for name, kind, ids, text, length in zip(*vars(bench.prompts).values(), written.tokens, written.lengths):
        ended = length < bench.new_tokens or text[length - 1] in bench.ends
        choice = {"token_ids": text[:length], "prompt_token_ids": ids.tolist(), "text": None,
                  "finish_reason": "stop" if ended else "length"}
        yield json.dumps({"id": name, "category": kind, "request": {"prompt": "", "temperature": 0},
                          "response": {"choices": [choice]}}) + "\n"


def answer_length(tokens: Sequence[int], limit: int, ends: Sequence[int]) -> int:
    """Tokens of the answer in a text that goes on past it: to its first end, which counts, or to the limit."""
    return next((place + 1 for place, token in enumerate(tokens[:limit]) if token in ends), min(limit, len(tokens)))


def recorded(bench: Bench, written: Written, rows: Sequence[int]) -> Recorded:
    """Some prompts' texts as a trace, in which rounds start as long as the answer goes on."""
    known = bench.prompts.select(rows)
    tokens = [written.tokens[row] for row in rows]
    trace = read(None, {}, Texts(known.names, known.kinds, known.ids, tokens, [False] * len(rows)))
    return Recorded(replace(trace, lengths=np.array([written.lengths[row] - 1 for row in rows])), known.ids)


def curve(bench: Bench, ways: Sequence[Way], replayed, rng: np.random.Generator) -> pd.DataFrame:
    """The engine's rows of the table "engine_costs": plain steps and forced rounds in shuffled turns, then the
    time that drafting with a model adds to a round.
    """
    plain, forced = Way(Setting()), Way(Setting(FORCED, max(NODES)))
    table = bench.store.open("engine_costs")
    points = [(batch, way.name, nodes)
              for way, counts in ((plain, (0,)), (forced, NODES[not bench.chosen.engine.idles :]))
              for batch in bench.batches_of(way) for nodes in counts]
    missing = [point for point in points if (bench.spec, *point) not in table.keys()]
    times = {point: [] for point in missing}
    if missing:
        bench.say(f"the cost curve, of {len(missing)} points, and what drafting costs")
    with bench.running(*[plain, forced] if missing else []) as engines:
        for turn in range(REPEATS + 1):
            for batch, name, nodes in rng.permutation(np.array(missing, dtype=object)):
                done = engines[name].decode(bench.ids(range(batch)), FORCED_TOKENS,
                                            drafted=nodes if name == FORCED else None)
                times[batch, name, nodes].append((done.seconds - done.prefill) / (FORCED_TOKENS - 1))
    table.extend(cost_row(bench, *point, seconds[1:]) for point, seconds in times.items())  # the first turn warms up
    steps = Steps.of(of_engine(table.frame(), bench))
    for way in calibrating(ways):
        untimed = [batch for batch in bench.batches_of(way) if (bench.spec, batch, way.label, way.tokens)
                   not in table.keys()]
        with bench.running(*[way] if untimed else []) as engines:
            for batch in untimed:
                table.append(**cost_row(bench, batch, way.label, way.tokens,
                                        drafting(bench, engines[way.name], way, batch, replayed, steps)))
    return of_engine(table.frame(), bench)


def calibrating(ways: Sequence[Way]) -> list[Way]:
    """Of each method that drafts with a model the ways with the fewest and with the most draft tokens; reading the text
    takes no time beside a step.
    """
    ordered = sorted((way for way in ways if not way.drafter.traits.reads_text), key=lambda way: way.tokens)
    ends = [{way.label: way for way in order} for order in (ordered[::-1], ordered)]
    return list({way.name: way for of_label in ends for way in of_label.values()}.values())


def drafting(bench: Bench, running: Running, way: Way, batch: int, replayed, steps: Steps) -> list[float]:
    """Seconds that drafting adds to a step, of each call on choosing prompts."""
    added = []
    running.decode(bench.ids(bench.choosing[:batch]), FORCED_TOKENS)  # warms up
    for places in in_engine.together(len(bench.choosing), batch)[:CALIBRATED]:
        own = after_prefill(way, [replayed[way.name, "choosing"][place] for place in places])
        done = running.decode(bench.ids([bench.choosing[place] for place in places]), bench.new_tokens, bench.ends)
        rest = done.seconds - done.prefill - in_engine.call_seconds(own, steps, FORCED)
        if drafts := in_engine.drafting_steps(own):
            added.append(rest / drafts)
    return added or [0.0]


def cost_row(bench: Bench, batch: int, method: str, nodes: int, seconds: Sequence[float]) -> dict[str, object]:
    """A row of "engine_costs"."""
    low, middle, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])
    return dict(engine=bench.spec, batch=batch, method=method, nodes=nodes, ms=middle, low=low, high=high,
                calls=len(seconds))


def of_engine(rows: pd.DataFrame, bench: Bench) -> pd.DataFrame:
    """The rows of an engine."""
    return rows[rows["engine"] == bench.spec]


def after_prefill(way: Way, own: Sequence[Sizes]) -> list[np.ndarray]:
    """By prompt the draft tokens of its rounds, but for one that is part of the prefill."""
    return [sizes[int(way.method.at_prompt) :, 0] for sizes in own]
