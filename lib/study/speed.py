"""Notebook 5: the backends of a run, each taken through the five steps (see `answer.measure`).

The first backend is this project's loop in the number format of the pairs, the reference. Beside it stand the same loop
at a temperature, other number formats, and serving engines.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from lib.drafters.registry import DRAFTERS
from lib.engines import registry
from lib.engines.methods import FORCED, PLAIN, Way
from lib.engines.own import Own
from lib.forward.load import load_pair, load_pairs
from lib.forward.packed import STORED
from lib.forward.passes import release
from lib.lab import processor
from lib.lab.chapter import Store
from lib.models.checks import AUTO, PairError, first_line
from lib.models.prompts import load as load_prompts
from lib.models.registry import GGUF, sources
from lib.replay.simulated import Recorded
from lib.study import answer, costs, costs_files, quality, schedule, served
from lib.study.acceptance import record
from lib.study.answer import CHAIN, RECOMMENDED
from lib.study.bench import CHOOSING, JUDGING, Bench, arranged, without_loops, write_prompts
from lib.study.candidates import Limits, drafters_of, engine_ways, grown_ways, static_ways, timed_ways
from lib.study.race import race
from lib.study.settings import Speed


def measure(store: Store, settings: Speed) -> None:
    """Writes the tables prompts, texts, rounds, costs, predictions, timed, answers, settings and quality, row by row, and
    recommendation.json. ValueError for prompts, pairs, drafters or engines that do not fit.
    """
    mark = f"{store.mark} {settings.added}"
    if len(store.open("answers").frame()) and answer.mark_of(store.folder) == mark:
        return
    if settings.logs or settings.endpoint:
        measure_served(store, settings, mark)
        return
    pairs = load_pairs(settings.pairs, settings.dtype, settings.device)
    bench = of_pairs(store, settings, pairs)
    drafters = drafters_of(pairs, settings.drafters, max(map(len, bench.prompts.ids)) + settings.new_tokens + bench.longest)
    limits = Limits(settings.most_nodes, settings.most_depth, bench.backend.chains)
    recorded = record(bench, drafters)
    ways = answer.measure(bench, recorded, partial(static_ways, drafters, limits), partial(grown_ways, drafters, limits),
                          partial(timed_costs, bench, limits.nodes), settings.most_raced)
    write_settings(bench)
    if settings.sampled_temperature:
        sample(bench, settings.sampled_temperature, {way.name: way for way in ways})
    beside = replace(bench, raced={1: settings.raced_beside})
    for format_name in settings.formats:
        measure_format(beside, settings, format_name, recorded, ways)
    for spec in settings.engines:
        measure_engine(beside, settings, spec)
    if settings.costs:
        predict_elsewhere(bench, settings.costs, recorded, ways)
    if settings.lengths:
        names = {*bench.rows_of("answers")["way"]}
        judged = [way for way in ways if way.name in names]
        room = (pairs[0].window or np.inf) - settings.new_tokens - 2 * settings.most_depth - 2
        schedule.measure(bench, pairs[0].tokenizer, [length for length in settings.lengths if length < 0.9 * room],
                         partial(measure_after_length, judged, limits.nodes))
    machine = processor.machine(pairs[0].target.device.type)
    save(bench, mark, f"{machine['processor']}, {machine['threads']} threads")


def measure_served(store: Store, settings: Speed, mark: str) -> None:
    """Answers from logged texts, at the costs of each backend of a file."""
    benches = served.measure(store, settings)
    for bench in benches:
        write_settings(bench)
    save(benches[0], mark, f"the machine of {Path(settings.costs).stem}")


def measure_after_length(ways: Sequence[Way], most_nodes: int, bench: Bench) -> None:
    """The judged ways of the reference on prompts of one length, with costs that are timed after them."""
    drafters = {way.method: way.drafter for way in ways}
    answer.measure(bench, record(bench, drafters), lambda trace: list(ways), lambda leading: [],
                   partial(timed_costs, bench, most_nodes), len(ways))


def of_pairs(store: Store, settings: Speed, pairs: Sequence) -> Bench:
    """The reference: this project's loop with the prompts of the run, whose split and order the table "prompts" keeps."""
    longest = settings.most_depth
    room = pairs[0].window and pairs[0].window - settings.new_tokens - 2 * longest - 2
    prompts, parts = arranged(load_prompts(settings.prompts, pairs[0].tokenizer, limit=room), settings.choose_prompts,
                              settings.judge_prompts, np.random.default_rng(settings.seed))
    bench = Bench(Own(pairs[0], prompts.ids), store, pairs[0].target_name, prompts, parts, settings.new_tokens,
                  dict(zip(settings.batches, settings.raced)), longest, list(pairs[0].eos_token_ids), settings.seed)
    write_prompts(store, prompts, parts)
    return bench


def timed_costs(bench: Bench, most_nodes: int, ways: Sequence[Way]) -> pd.DataFrame:
    """The costs of the backend's steps, and of drafting by these ways, timed here."""
    costs.measure(bench, most_nodes)
    return costs.measure_drafting(bench, timed_ways(ways))


def sample(bench: Bench, temperature: float, ways: Mapping[str, Way]) -> None:
    """The judged ways of the reference at the smallest batch size, raced in sampled decoding, which replay of its greedy
    text does not decide.
    """
    batch, answers = bench.batches[0], bench.rows_of("answers")
    answers = answers[answers["batch"] == batch].set_index("role")["way"]
    roles = {role: name for role, name in answers.items() if name in ways and role in answer.ROLES[:3]}
    if not roles:
        return
    sampled = replace(without_loops(bench), raced={batch: bench.raced[batch]},
                      backend=replace(bench.backend, temperature=temperature))
    judged = {name: ways[name] for name in roles.values()}
    race(sampled, list(judged.values()), batch, JUDGING)
    answer.answer(sampled, judged, {}, batch, {RECOMMENDED: PLAIN} | roles)


def measure_format(bench: Bench, settings: Speed, format_name: str, recorded: Recorded, ways: Sequence[Way]) -> None:
    """The loop in another number format: its checks are timed. Where it is raced, it writes and drafts a text of its own;
    else the reference's text and drafting stand for its own.
    """
    reference = bench.backend.pair
    draft_model = sources(settings.pairs[0])[1]
    is_mixed = format_name == STORED and draft_model is not None and draft_model.kind != GGUF
    try:
        pair = load_pair(settings.pairs[0], f"{STORED}|{AUTO}" if is_mixed else format_name, settings.device)
    except PairError as error:
        bench.say(f"{format_name} is left out: {first_line(error)}")
        return
    beside = replace(bench, backend=Own(pair, bench.prompts.ids))
    quality.measure(bench.store, bench.backend, [beside.backend], *judging_texts(bench, recorded),
                    bench.generator("quality", format_name))
    is_missing = not answer.is_complete(beside)
    if is_missing and bench.raced[1]:
        drafters = drafters_of([pair], settings.drafters, 0)
        limits = Limits(settings.most_nodes, settings.most_depth, beside.backend.chains)
        answer.measure(beside, record(beside, drafters), partial(static_ways, drafters, limits),
                       partial(grown_ways, drafters, limits), partial(timed_costs, beside, limits.nodes),
                       settings.most_raced)
    elif is_missing:
        rows = bench.rows_of("costs")
        drafting = rows[~rows["method"].isin([PLAIN, FORCED])]
        answer.measure(beside, recorded, lambda trace: list(ways), lambda leading: [],
                       lambda some: pd.concat([costs.measure(beside, settings.most_nodes), drafting]),
                       settings.most_raced, text_bench=bench)
    for model in {*pair.models} - {*reference.models}:
        release(model)
    gc.collect()


def judging_texts(bench: Bench, recorded: Recorded) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The judging prompts and what the reference wrote after them."""
    rows = bench.rows(JUDGING)
    tokens = [recorded.trace.tokens[row] for row in rows]
    return [recorded.prompts[row] for row in rows], [torch.from_numpy(line[line >= 0]).long() for line in tokens]


def measure_engine(bench: Bench, settings: Speed, spec: str) -> None:
    """A serving engine with its own methods, on its own text."""
    pairs = {name: bench.backend.pair if name in DRAFTERS else load_pair(f"{settings.pairs[0].partition('|')[0]}|{name}")
             for name in settings.engine_drafters}
    backend = replace(registry.parse(spec), target=bench.backend.pair.target, threads=settings.threads)
    beside = replace(bench, backend=backend, longest=max(settings.engine_lengths),
                     raced=dict.fromkeys(bench.batches if backend.batches else [1], settings.raced_beside))
    ways = engine_ways(backend, pairs, settings.engine_lengths)
    if not answer.is_complete(beside):
        answer.measure(beside, record(beside, {}), lambda trace: ways, lambda leading: [],
                       partial(timed_costs, beside, max(settings.engine_lengths)), settings.most_raced)


def predict_elsewhere(bench: Bench, costs_name: str, recorded: Recorded, ways: Sequence[Way]) -> None:
    """Answers for the backends of a file of costs, by the reference's rounds. Drafting that the file lacks is taken to
    be as large a part of a plain step as here.
    """
    here = bench.rows_of("costs")
    drafting, plain_here = here[~here["method"].isin([PLAIN, FORCED])], here[here["method"] == PLAIN].set_index("batch")["ms"]
    all_rows = costs_files.read(costs_name)
    for name in costs_files.of_backends(all_rows):
        rows = all_rows[all_rows["backend"] == name]
        scale = rows.loc[rows["method"] == PLAIN, "ms"].min() / plain_here.min()
        there = pd.concat([rows, drafting[~drafting["method"].isin(rows["method"])].assign(ms=lambda part: part["ms"] * scale)])
        backend = SimpleNamespace(name=f"{name} ({Path(costs_name).stem})", batches=True, padded=True, at_once=1,
                                  line=lambda way: "")
        batches = sorted(set(rows.loc[rows["method"] == FORCED, "batch"]))
        beside = replace(bench, backend=backend, raced=dict.fromkeys(batches, 0))
        if not answer.is_complete(beside):
            answer.measure(beside, recorded, lambda trace: list(ways), lambda leading: [], lambda some: there, 1,
                           text_bench=bench)


def write_settings(bench: Bench) -> None:
    """Adds to the table "settings" what a user of each serving engine sets to draft as recommended, or as the best chain
    of the recommended drafter, since engines take no static tree that branches; vLLM also by batch size.
    """
    answers = bench.rows_of("answers")
    drafted: dict[int, tuple[str, int]] = {}
    for batch in bench.batches:
        by_role = answers[answers["batch"] == batch].set_index("role")
        winner = by_role.loc[RECOMMENDED]
        same_drafter = CHAIN in by_role.index and by_role.loc[CHAIN, "drafter"] == winner["drafter"]
        drafted[batch] = winner["drafter"], int(by_role.loc[CHAIN, "nodes"] if same_drafter else winner["nodes"])
    for batch, (drafter, tokens) in drafted.items():
        lengths = {other: count for other, (name, count) in drafted.items() if name in (drafter, "none")}
        bench.store.open("settings").add([dict(backend=bench.backend.name, batch=batch, **line) for line
                                          in registry.lines(bench.backend.pair, drafter, tokens, lengths)])


def save(bench: Bench, mark: str, machine: str) -> None:
    """Writes recommendation.json; mark: of everything that was measured for it."""
    facts = dict(mark=mark, target=bench.target, new_tokens=bench.new_tokens, machine=machine,
                 choosing=len(bench.rows(CHOOSING)), judging=len(bench.rows(JUDGING)))
    answer.save(bench.store.folder, bench.store.open("answers").frame(), bench.store.open("settings").frame(), facts)
