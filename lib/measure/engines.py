"""Serving engines on this machine: what replay and the cost curve (`engine_bench`) predict of their ways to draft, and
how fast they decode with them, in turns. Methods are found by the kinds of drafter that they run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.cost import in_engine, recommendation
from lib.cost.in_engine import Steps
from lib.cost.judging import measured
from lib.cost.recommendation import ONE, InEngine, Interval
from lib.drafters.registry import DRAFTERS
from lib.engines import registry
from lib.engines.driver import Running
from lib.engines.methods import PLAIN, Setting, Sizes, Way, sizes_of
from lib.engines.settings import scheduled
from lib.forward.load import load_pairs
from lib.lab import atomic_file
from lib.lab.chapter import Store
from lib.measure import parameters
from lib.measure.engine_bench import (
    FORCED_TOKENS, Bench, Written, after_prefill, answers, curve, of_engine, plain_texts, recorded)
from lib.models.load import Pair
from lib.models import prompts as prompt_files
from lib.models.prompts import PromptSet, split_rows
from lib.models.prompts import load as load_prompts
from lib.replay import logs

AT_ONCE = 3  # ways that are timed in turns with plain decoding, each in a process with weights of its own
ANSWERS, COSTS = "engine_answers.jsonl", "engine_costs.csv"  # in a run's folder
MODEL = "model"  # the kind of drafter that a draft model is


def measure(store: Store, *, engine: Sequence[str], target: str, drafters: Sequence[str], log: str, prompts: str,
            choose_prompts: int, judge_prompts: int, new_tokens: int, batches: Sequence[int], lengths: Sequence[int],
            threads: int, seed: int, device: str) -> None:
    """Writes the tables "engine_texts", "engine_costs", "engine_ways" and "engine_runs"; of the first engine the plain
    answers as a log, ANSWERS, and the curve as a table of costs, COSTS.

    engine: names of `registry.ENGINES`, with a number format and options behind colons. target, drafters: a pair's
    target, and kinds of drafter or draft models. log: whose prompts are taken in the place of a file of prompts.
    lengths: draft tokens per round that are tried. What an earlier call measured is kept.
    """
    names = [target if kind in DRAFTERS else f"{target}|{kind}" for kind in drafters]
    pair, *pairs = load_pairs([target, *names], device=device)
    limit = pair.window and pair.window - new_tokens - 2 * max(lengths) - 2
    texts = (of_log(log, pair, limit, choose_prompts + judge_prompts) if log else
             load_prompts(prompts, pair.tokenizer, limit=limit, first=choose_prompts + judge_prompts))
    chosen = {spec: registry.parse(spec) for spec in engine}
    ways = {spec: [way for kind, of in zip(drafters, pairs)
                   for method in one.methods(kind if kind in DRAFTERS else MODEL)
                   for way in (method.way(of, length) for length in lengths)] for spec, one in chosen.items()}
    rows = []
    for spec in engine:
        parts = split_rows(texts.names, texts.kinds, choose_prompts, judge_prompts)
        bench = Bench(spec, chosen[spec], pair.target, store, texts, *parts, new_tokens, batches, max(lengths),
                      threads or torch.get_num_threads(), pair.eos_token_ids)
        rows.append(study(bench, ways[spec], np.random.default_rng(seed)))
        store.write("engine_ways", pd.concat(rows))
        if spec == engine[0]:
            in_engine.as_costs(of_engine(store.open("engine_costs").frame(), bench), store.folder / COSTS,
                               [method.label for method in chosen[spec].methods(MODEL)])
            atomic_file.replace(store.folder / ANSWERS, "".join(answers(bench, plain_texts(bench))).encode())


def of_log(log: str, pair: Pair, limit: int | None, first: int) -> PromptSet:
    """The prompts of a log of so many tokens at most, the first ones of each kind. ValueError where there is none."""
    texts = logs.read(log, pair.tokenizer, eos_token_id=pair.eos_token_ids)
    known = PromptSet(texts.names, texts.kinds, texts.prompts)
    fit = [row for row, ids in enumerate(known.ids) if limit is None or len(ids) <= limit]
    if not fit:
        raise ValueError(f"{log} has no prompt of {limit} tokens at most, which fit beside the answer; generate less")
    known = known.select(fit)
    at = prompt_files.numbers_in_kind(known.names, known.kinds)
    return known.select([row for row, place in enumerate(at) if place < first])


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
    replayed = {(way.name, part): sizes_of(way, known, bench.new_tokens)
                for way in ways for part, known in of_part.items()}
    steps = Steps.of(curve(bench, ways, replayed, rng))
    foreseen = predicted(bench, ways, replayed, written, steps)
    by_name = {way.name: way for way in ways}
    race(bench, [by_name[name] for name in wanted(foreseen)], replayed, written, rng)
    return told(bench, foreseen, by_name, rng)


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
        if calls:
            bench.say(f"{', '.join(way.name for way in turn)} in turns, of {len(ways)} ways to draft")
        with bench.running(*turn if calls else []) as engines:
            for running in engines.values():
                running.decode(bench.ids(bench.judging[:1]), FORCED_TOKENS)  # warms up
            for batch, able, places, rows in calls:
                table.extend([run_row(bench, way, batch, first, rows, engines[way.name], written,
                                      [replayed[way.name, "judging"][place] for place in places] if way.drafter else [])
                              for way in rng.permutation(np.array(able, dtype=object))])


def run_row(bench: Bench, way: Way, batch: int, turn: int, rows: Sequence[int], running: Running,
            written: Written, own: Sequence[Sizes]) -> dict[str, object]:
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


def recommend(folder: Path, ways: pd.DataFrame) -> None:
    """Adds `advised` of rows of "engine_ways" to the recommendation in a run's folder, if there is one."""
    if (path := folder / recommendation.FILE).exists() and len(ways):
        replace(recommendation.load(path), engines=advised(ways)).save(path)


def advised(ways: pd.DataFrame) -> list[InEngine]:
    """Of rows of "engine_ways" what each engine should draft with at each batch size: the recommended way, unless it
    was measured to be slower than plain decoding. vLLM's settings have a schedule where the number of tokens differs.
    """
    told = []
    for engine, of_batches in ways.groupby("engine", sort=False):
        advice = []
        for batch, rows in of_batches.groupby("batch"):
            best = next(rows[rows["recommended"]].itertuples(), None)
            if best:
                speed = Interval(best.measured, best.low, best.high)
                way, setting = (PLAIN, "") if speed.is_below(1) else (best.way, best.setting)
                advice.append(InEngine(engine, batch, way, setting, best.predicted, speed, best.calls))
            else:
                advice.append(InEngine(engine, batch, PLAIN, "", 1.0, ONE, 0))
        lines = scheduled({one.batch: [{"setting": one.setting}] if one.setting else None for one in advice})
        told += [replace(one, setting=lines[one.batch][0]["setting"]) if one.setting else one for one in advice]
    return told
