"""Serving engines on this machine: what they write plainly, what their steps cost, what replay predicts of their ways
to draft, and how fast they decode with them, in turns.

Everything is judged by the engine's own text, so that replay is exact for it. A way is one of the engine's methods with
a number of draft tokens, as "ngram:4"; methods are found by the kinds of drafter that they run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.cost import in_engine, recommendation
from lib.cost.in_engine import Steps
from lib.cost.judging import measured
from lib.cost.recommendation import InEngine, Interval
from lib.drafters.registry import DRAFTERS
from lib.engines import registry
from lib.engines.driver import FORCED, PLAIN, Running, Setting, Way
from lib.forward.load import load_pairs
from lib.lab import atomic_file
from lib.lab.chapter import Store
from lib.measure import parameters
from lib.models.load import Pair
from lib.models.prompts import PromptSet, split_rows
from lib.models.prompts import load as load_prompts
from lib.replay import log_lines
from lib.replay.logs import tokenised
from lib.replay.recording import read
from lib.replay.simulated import Recorded, rounds

NODES = (0, 1, 2, 4, 7, 8, 15, 16)  # draft tokens of forced rounds: both sides of the steps that checks may have. An
# engine whose rounds without a draft cost a plain step begins with 1.
FORCED_TOKENS = 24  # of each prompt in a forced run, each from a round of its own
REPEATS = 3  # of each point of the curve
AT_ONCE = 3  # ways that are timed in turns with plain decoding, each in a process with weights of its own
ANSWERS, COSTS = "engine_answers.jsonl", "engine_costs.csv"  # in a run's folder
MODEL = "model"  # the kind of drafter that a draft model is
CALIBRATED = 2  # choosing prompts on which the time of a method's drafting is measured


@dataclass(frozen=True)
class Bench:
    """An engine with a target, and its prompts, of which some choose and the others judge.

    spec: the engine's name in the tables. longest: draft tokens of a round at most. ends: tokens that end an answer.
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


def measure(store: Store, *, engine: Sequence[str], target: str, drafters: Sequence[str], log: str, prompts: str,
            choose_prompts: int, judge_prompts: int, new_tokens: int, batches: Sequence[int], lengths: Sequence[int],
            threads: int, seed: int, device: str) -> None:
    """Writes the tables "engine_texts", "engine_costs", "engine_ways" and "engine_runs", and into the recommendation of
    the run, if it has one, what each engine should draft with; of the first engine the plain answers as a log, ANSWERS,
    and the curve as a table of costs, COSTS.

    engine: names of `registry.HOMES`, with a number format and options behind colons. target, drafters: a pair's
    target, and kinds of drafter or draft models. log: whose prompts are taken in the place of a file of prompts.
    lengths: draft tokens per round that are tried. What an earlier call measured is kept.
    """
    names = [target if kind in DRAFTERS else f"{target}|{kind}" for kind in drafters]
    pair, *pairs = load_pairs([target, *names], device=device)
    limit = pair.window and pair.window - new_tokens - 2 * max(lengths) - 2
    texts = (of_log(log, pair, choose_prompts + judge_prompts) if log else
             load_prompts(prompts, pair.tokenizer, limit=limit, first=choose_prompts + judge_prompts))
    chosen = {spec: registry.parse(spec) for spec in engine}
    ways = {spec: [way for kind, of in zip(drafters, pairs)
                   for method in one.methods(kind if kind in DRAFTERS else MODEL)
                   for way in registry.ways(method, of, lengths)] for spec, one in chosen.items()}
    rows = []
    for spec in engine:
        bench = Bench(spec, chosen[spec], pair.target, store, texts,
                      *split_rows(texts.kinds, choose_prompts, judge_prompts), new_tokens, batches, max(lengths),
                      threads or torch.get_num_threads(), pair.eos_token_ids)
        rows.append(study(bench, ways[spec], np.random.default_rng(seed)))
        store.write("engine_ways", pd.concat(rows))
        if spec == engine[0]:
            in_engine.as_costs(of_engine(store.open("engine_costs").frame(), bench), store.folder / COSTS)
            atomic_file.replace(store.folder / ANSWERS, "".join(answers(bench, plain_texts(bench))).encode())
    if (path := store.folder / recommendation.FILE).exists():
        replace(recommendation.load(path), engines=advised(pd.concat(rows))).save(path)


def of_log(log: str, pair: Pair, first: int) -> PromptSet:
    """The prompts of a log, the first ones of each kind."""
    texts = tokenised(log_lines.read(log), pair.tokenizer, eos_token_id=pair.eos_token_ids)
    known = PromptSet(texts.names, texts.kinds, texts.prompts)
    places = pd.Series(texts.kinds).groupby(list(texts.kinds)).cumcount()
    return known.select(np.flatnonzero(places < first))


def files_of(target: str, drafters: Sequence[str], log: str, prompts: str) -> list[Path]:
    """The files that decide what `measure` measures: of local models, of heads and tables, of prompts and log."""
    pairs = [target, *(f"{target}|{name}" for name in drafters if name not in DRAFTERS)]
    return [*parameters.files_of(pairs, prompts), *([Path(log)] if log else [])]


def study(bench: Bench, ways: Sequence[Way], rng: np.random.Generator) -> pd.DataFrame:
    """The rows of "engine_ways" of one engine: its plain texts, its curve, what is predicted, and the ways that are
    timed.
    """
    written = plain_texts(bench)
    of_part = {part: recorded(bench, written, rows) for part, rows in bench.parts.items()}
    replayed = {(way.name, part): rounds_of(way, known, bench.new_tokens)
                for way in ways for part, known in of_part.items()}
    steps = Steps.of(curve(bench, ways, replayed, rng))
    foreseen = predicted(bench, ways, replayed, written, steps)
    by_name = {way.name: way for way in ways}
    race(bench, [by_name[name] for name in wanted(foreseen)], replayed, written, rng)
    return told(bench, foreseen, by_name, rng)


def plain_texts(bench: Bench) -> Written:
    """The table "engine_texts": each prompt alone, written on past its end so that every round is decided."""
    table, plain = bench.store.open("engine_texts"), Way(Setting())
    missing = [row for row, name in enumerate(bench.prompts.names) if (bench.spec, name) not in table.keys()]
    with bench.running(*[plain] if missing else []) as engines:
        for row in missing:
            done = engines[PLAIN].decode(bench.ids([row]), bench.new_tokens + bench.longest + 1)
            (tokens,) = done.tokens
            table.append(engine=bench.spec, prompt=bench.prompts.names[row], kind=bench.prompts.kinds[row],
                         part="choosing" if row in bench.choosing else "judging", ids=" ".join(map(str, tokens)),
                         tokens=answer_length(tokens, bench.new_tokens, bench.ends))
    known = table.frame().set_index(["engine", "prompt"]).loc[bench.spec].loc[list(bench.prompts.names)]
    return Written([list(map(int, ids.split())) for ids in known["ids"]], known["tokens"].tolist())


def answers(bench: Bench, written: Written) -> Iterator[str]:
    """The plain answers as lines of a log that `log_lines` reads."""
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
    trace = read(None, {}, known.ids, [written.tokens[row] for row in rows], names=known.names, kinds=known.kinds)
    return Recorded(replace(trace, lengths=np.array([written.lengths[row] - 1 for row in rows])), known.ids)


def rounds_of(way: Way, known: Recorded, new_tokens: int) -> list[np.ndarray]:
    """By prompt int64[R, 2]: the draft tokens and the accepted ones of each round, by replay of the plain text.

    new_tokens: the limit of an answer, for which engines shorten drafts; an earlier end of the text shortens none.
    """
    method = way.method
    if method.at_prompt:  # the prompt's last token is the first root
        last = np.array([prompt[-1:].tolist() for prompt in known.prompts])
        known = Recorded(replace(known.trace, tokens=np.concatenate([last, known.trace.tokens], axis=1),
                                 lengths=known.trace.lengths + 1), [prompt[:-1] for prompt in known.prompts])
    walk = rounds(known, way.drafter, method.shape(way.tokens))
    room = new_tokens - (2 - method.at_prompt) - walk.starts
    drafted = np.minimum(walk.drafted, room) if method.shortens else walk.drafted * (room > 0 if method.cuts else 1)
    kept = known.trace.lengths[walk.rows] - walk.starts - 1
    accepted = np.minimum(walk.accepted, kept) if method.shortens or method.cuts else walk.accepted
    both = np.stack([drafted, accepted], axis=1)
    return [both[walk.rows == row] for row in range(len(known.prompts))]


def after_prefill(way: Way, own: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By prompt the draft tokens of its rounds, but for one that is part of the prefill."""
    return [sizes[int(way.method.at_prompt) :, 0] for sizes in own]


# ------------------------------------------------------------------------------------------------------------ the curve


def curve(bench: Bench, ways: Sequence[Way], replayed, rng: np.random.Generator) -> pd.DataFrame:
    """The engine's rows of the table "engine_costs": plain steps and forced rounds in shuffled turns, then what
    drafting with a model adds to a round.
    """
    plain, forced = Way(Setting()), Way(Setting(FORCED, max(NODES)))
    table = bench.store.open("engine_costs")
    points = [(batch, way.name, nodes)
              for way, counts in ((plain, (0,)), (forced, NODES[not bench.chosen.engine.idles :]))
              for batch in bench.batches_of(way) for nodes in counts]
    missing = [point for point in points if (bench.spec, *point) not in table.keys()]
    times = {point: [] for point in missing}
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


# ------------------------------------------------------------------------------------------------- prediction and race


def predicted(bench: Bench, ways: Sequence[Way], replayed, written: Written, steps: Steps) -> pd.DataFrame:
    """By batch and way the predicted speed over plain decoding, on the prompts that choose and on those that judge."""
    rows = []
    for way in ways:
        for batch in bench.batches_of(way):
            speeds = [in_engine.speedup(after_prefill(way, replayed[way.name, part]),
                                        [written.lengths[row] for row in places], steps, way.label, way.tokens, batch)
                      for part, places in bench.parts.items()]
            own = np.concatenate(replayed[way.name, "choosing"])
            rows.append(dict(engine=bench.spec, batch=batch, way=way.name, method=way.label, tokens=way.tokens,
                             accepted=float(own[:, 1].mean()), predicted=speeds[0], replayed=speeds[1]))
    return pd.DataFrame(rows)


def wanted(foreseen: pd.DataFrame) -> list[str]:
    """The names of ways that are timed: at each batch size the recommended one and its neighbours, and the best of each
    other method.
    """
    names = []
    for _, rows in foreseen.groupby("batch"):
        best = in_engine.recommended(rows)
        of_methods = rows.loc[rows.groupby("method", sort=False)["predicted"].idxmax(), "way"]
        names += [best, *in_engine.beside(rows, best), *of_methods]
    return [name for name in dict.fromkeys(names) if name != PLAIN]


def race(bench: Bench, ways: Sequence[Way], replayed, written: Written, rng: np.random.Generator) -> None:
    """Adds to the table "engine_runs": the judging prompts, decoded by AT_ONCE ways and by plain decoding in turns."""
    table, plain = bench.store.open("engine_runs"), Way(Setting())
    for first in range(0, len(ways), AT_ONCE):
        turn, calls = [plain, *ways[first : first + AT_ONCE]], []
        for batch in bench.batches:
            able = [way for way in turn if batch in bench.batches_of(way)]
            for places in in_engine.together(len(bench.judging), batch):
                rows = [bench.judging[place] for place in places]
                if (bench.spec, batch, able[-1].name, bench.names(rows), first) not in table.keys():
                    calls.append((batch, able, places, rows))
        with bench.running(*turn if calls else []) as engines:
            for running in engines.values():
                running.decode(bench.ids(bench.judging[:1]), FORCED_TOKENS)  # warms up
            for batch, able, places, rows in calls:
                table.extend([run_row(bench, way, batch, first, rows, engines[way.name], written,
                                      [replayed[way.name, "judging"][place] for place in places] if way.drafter else [])
                              for way in rng.permutation(np.array(able, dtype=object))])


def run_row(bench: Bench, way: Way, batch: int, turn: int, rows: Sequence[int], running: Running,
            written: Written, own: Sequence[np.ndarray]) -> dict[str, object]:
    """Decodes prompts, and gives the row of "engine_runs" with what the engine counted and what replay counts.

    written: the plain texts with which answers are compared; own: of each prompt its rounds by replay.
    """
    done = running.decode(bench.ids(rows), bench.new_tokens, bench.ends)
    both = np.concatenate([*own, np.zeros((0, 2), dtype=np.int64)])
    places = {row: place for row, tokens in zip(rows, done.tokens)
              if (place := first_difference(tokens, written.tokens[row][: written.lengths[row]])) is not None}
    return dict(engine=bench.spec, batch=batch, way=way.name, call=bench.names(rows), turn=turn,
                tokens=sum(map(len, done.tokens)), seconds=done.seconds, prefill=done.prefill, drafts=done.drafts,
                drafted=done.drafted, accepted=" ".join(map(str, done.accepted)),
                replay_drafts=int((both[:, 0] > 0).sum()), replay_drafted=int(both[:, 0].sum()),
                replay_accepted=" ".join(str((both[:, 1] > place).sum()) for place in range(way.tokens)),
                apart=", ".join(f"{bench.prompts.names[row]}@{place}" for row, place in places.items()),
                gap=max((gap(bench, row, written.tokens[row][:place]) for row, place in places.items()),
                        default=float("nan")))


@torch.inference_mode()
def gap(bench: Bench, row: int, text: Sequence[int]) -> float:
    """The difference of the two best logits after a prompt and the begin of its answer, by this project's target."""
    tokens = torch.tensor([*bench.ids([row])[0], *text], device=bench.target.device)
    best = bench.target(tokens[None], logits_to_keep=1).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first place at which two texts differ, or where one ends; None where they are the same."""
    shorter = min(len(tokens), len(others))
    place = next((at for at, (one, other) in enumerate(zip(tokens, others)) if one != other), shorter)
    return None if len(tokens) == len(others) == place else place


def told(bench: Bench, foreseen: pd.DataFrame, ways: Mapping[str, Way], rng: np.random.Generator) -> pd.DataFrame:
    """What was predicted with what was measured, the recommended way of each batch size, and its setting as text."""
    runs = of_engine(bench.store.open("engine_runs").frame(), bench)
    runs = runs.assign(prompt=runs["call"], repeat=runs["turn"],
                       rate=(runs["tokens"] - runs["batch"]) / (runs["seconds"] - runs["prefill"]))
    best = {batch: in_engine.recommended(rows) for batch, rows in foreseen.groupby("batch")}
    rows = []
    for row in foreseen.itertuples(index=False):
        own = runs[(runs["batch"] == row.batch) & runs["way"].isin([row.way, PLAIN])]
        value, low, high = measured(own, row.way, PLAIN, rng) if (own["way"] == row.way).any() else (np.nan,) * 3
        rows.append(row._asdict() | dict(measured=value, low=low, high=high, calls=int((own["way"] == row.way).sum()),
                                         recommended=best[row.batch] == row.way,
                                         setting=bench.chosen.line(ways[row.way].setting)))
    return pd.DataFrame(rows)


def advised(ways: pd.DataFrame) -> list[InEngine]:
    """Of rows of "engine_ways" what each engine should draft with at each batch size: the recommended way, unless it
    was measured to be slower than plain decoding.
    """
    told = []
    for (engine, batch), rows in ways.groupby(["engine", "batch"], sort=False):
        best = next(rows[rows["recommended"]].itertuples(), None)
        speed = Interval(best.measured, best.low, best.high) if best else None
        told.append(InEngine(engine, batch, best.way, best.setting, best.predicted, speed, best.calls)
                    if best and not speed.is_below(1) else InEngine(engine, batch, PLAIN, "", 1.0, Interval(1.0), 0))
    return told
