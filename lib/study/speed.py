"""Notebook 5: the backends of a run, each taken through the five steps (see `answer.measure`).

The first backend is this project's loop in the number format of the pairs, the reference. Beside it stand the same loop
at a temperature, other number formats, and serving engines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
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
from lib.models.registry import GGUF, sources
from lib.replay.simulated import Recorded
from lib.study import adapting, answer, costs, costs_files, quality, schedule, served
from lib.study.acceptance import record
from lib.study.answer import CHAIN, RECOMMENDED, ROLES
from lib.study.bench import CHOOSING, JUDGING, Bench, of_pair, without_loops
from lib.study.candidates import drafters_of, engine_ways, grown_ways, static_ways
from lib.study.predict import predict
from lib.study.race import race
from lib.study.settings import Speed


def measure(store: Store, settings: Speed) -> None:
    """Writes the tables prompts, texts, rounds, costs, predictions, timed, answers, settings, adapting and quality, row
    by row, and recommendation.json. ValueError for prompts, pairs, drafters or engines that do not fit.
    """
    if settings.logs or settings.endpoint:
        bench, recorded, ways = served.measure(store, settings)
        for elsewhere in predict_elsewhere(bench, settings, recorded, ways):
            write_settings(elsewhere)
        answer.save(bench, f"the machine of {Path(settings.costs).stem}")
        return
    pairs = load_pairs(settings.pairs, settings.dtype, settings.device)
    room = pairs[0].room(settings.new_tokens + 2 * settings.most_depth + 1)
    bench = of_pair(pairs[0], store, settings, room, dict(zip(settings.batches, settings.raced)), settings.most_depth)
    recorded, ways = measure_loop(bench, settings, pairs)
    write_settings(bench)
    adapting.measure(bench, recorded, ways)
    if settings.sampled_temperature:
        sample(bench, settings.sampled_temperature, {way.name: way for way in ways})
    beside = replace(bench, raced={1: settings.raced_beside})
    if settings.formats:
        reference = quality.log_probabilities(bench, recorded)
        for format_name in settings.formats:
            measure_format(beside, settings, format_name, recorded, ways, reference)
    for spec in settings.engines:
        measure_engine(beside, settings, spec)
    if settings.costs:
        predict_elsewhere(bench, settings, recorded, ways)
    if settings.lengths:
        names = {*bench.rows_of("answers")["way"]}
        judged = [way for way in ways if way.name in names]
        schedule.measure(bench, pairs[0].tokenizer, [length for length in settings.lengths if length < 0.9 * room],
                         partial(measure_ways, ways=judged, most_nodes=settings.most_nodes, most_raced=len(judged)))
    machine = processor.machine(pairs[0].target.device.type)
    answer.save(bench, f"{machine['processor']}, {machine['threads']} threads")


def measure_loop(bench: Bench, settings: Speed, pairs: Sequence) -> tuple[Recorded, list[Way]]:
    """This project's loop with each drafter of a target: static trees, and of the fastest drafters trees that a rule
    grows. Returns the recorded text, and the ways that competed.
    """
    longest = max(map(len, bench.prompts.ids)) + settings.new_tokens + bench.longest
    drafters = drafters_of(pairs, settings.drafters, longest)
    recorded, most_nodes = record(bench, drafters), settings.most_nodes
    ways = static_ways(without_loops(bench), recorded, drafters, most_nodes)
    logs = predict(without_loops(bench), recorded, ways, costs.measure(bench, ways, most_nodes), CHOOSING)
    ways += grown_ways(bench, {name: drafters[name] for name in answer.leading(ways, logs)}, most_nodes)
    answer.measure(bench, recorded, ways, costs.measure(bench, ways, most_nodes), settings.most_raced)
    return recorded, ways


def measure_ways(bench: Bench, ways: Sequence[Way], most_nodes: int, most_raced: int) -> None:
    """The five steps of a backend with these ways, on its own text."""
    recorded = record(bench, {way.method: way.drafter for way in ways})
    answer.measure(bench, recorded, ways, costs.measure(bench, ways, most_nodes), most_raced)


def sample(bench: Bench, temperature: float, ways: Mapping[str, Way]) -> None:
    """Races the judged ways at the smallest batch size in sampled decoding, which greedy text does not decide."""
    batch, answers = bench.batches[0], bench.rows_of("answers")
    answers = answers[(answers["batch"] == batch) & answers["role"].isin(ROLES)]
    roles = {role: name for role, name in zip(answers["role"], answers["way"]) if name in ways}
    if not roles:
        return
    sampled = replace(without_loops(bench), raced={batch: bench.raced[batch]},
                      backend=replace(bench.backend, temperature=temperature))
    judged = {name: ways[name] for name in roles.values()}
    race(sampled, list(judged.values()), batch, JUDGING)
    answer.answer(sampled, judged, {}, batch, {RECOMMENDED: PLAIN} | roles)


def measure_format(bench: Bench, settings: Speed, format_name: str, recorded: Recorded, ways: Sequence[Way],
                   reference: Sequence[Tensor]) -> None:
    """The loop in another number format: its checks are timed, and the reference's text and drafting stand for its own.
    Where it is raced, its own calls correct the predictions that rest on them. reference: as of `quality.measure`.
    """
    draft_model = sources(settings.pairs[0])[1]
    is_mixed = format_name == STORED and draft_model is not None and draft_model.kind != GGUF
    try:
        pair = load_pair(settings.pairs[0], f"{STORED}|{AUTO}" if is_mixed else format_name, settings.device)
    except PairError as error:
        bench.say(f"{format_name} is left out: {first_line(error)}")
        return
    beside = replace(bench, backend=Own(pair, bench.prompts.ids), writer=bench.backend)
    quality.measure(beside, recorded, reference)
    if not answer.is_complete(beside):
        drafters = drafters_of([pair], settings.drafters, longest=0)
        able = [replace(way, drafter=drafters[way.method]) for way in ways if way.method in drafters]
        rows = pd.concat([costs.measure(beside, [], settings.most_nodes), bench.rows_of("costs").query(costs.DRAFTING)])
        answer.measure(beside, recorded, able, rows, settings.most_raced)
    for model in {*pair.models} - {*bench.backend.pair.models}:
        release(model)


def measure_engine(bench: Bench, settings: Speed, spec: str) -> None:
    """A serving engine with its own methods, on its own text."""
    target_name, most_nodes = settings.pairs[0].partition("|")[0], max(settings.engine_lengths)
    pairs = {name: bench.backend.pair if name in DRAFTERS else load_pair(f"{target_name}|{name}")
             for name in settings.engine_drafters}
    backend = replace(registry.parse(spec), target=bench.backend.pair.target, threads=settings.threads)
    beside = replace(bench, backend=backend, longest=most_nodes,
                     raced=dict.fromkeys(bench.batches if backend.batches else [1], settings.raced_beside))
    if not answer.is_complete(beside):
        measure_ways(beside, engine_ways(backend, pairs, settings.engine_lengths), most_nodes, settings.most_raced)


def predict_elsewhere(bench: Bench, settings: Speed, recorded: Recorded, ways: Sequence[Way]) -> list[Bench]:
    """Answers for the backends of a file of costs (see `costs.with_drafting`), by rounds that are replayed here. Draft
    models whose drafting was timed nowhere are left out, with the reason printed, and trees that are larger than all
    checks of the file.
    """
    all_rows, benches = costs_files.read(settings.costs), []
    for name in costs_files.of_backends(all_rows):
        rows = costs.with_drafting(all_rows[all_rows["backend"] == name], bench.rows_of("costs"))
        untimed = {way.method for way in ways if isinstance(way.drafter, LanguageModelDrafter)} - {*rows["method"]}
        for method in sorted(untimed):
            print(f"{method} is left out: the costs of {name} have no rows of the method {method}")
        checks = rows[rows["method"] == FORCED]
        able = [way for way in ways if way.method not in untimed and way.nodes <= checks["nodes"].max()]
        backend = SimpleNamespace(name=f"{name} ({Path(settings.costs).stem})", pair=bench.backend.pair, batches=True,
                                  padded=True, at_once=1, line=lambda way: "")
        benches.append(replace(bench, backend=backend, writer=bench.backend, raced=dict.fromkeys(checks["batch"], 0)))
        if not answer.is_complete(benches[-1]):
            answer.measure(benches[-1], recorded, able, rows, settings.most_raced)
    return benches


def write_settings(bench: Bench) -> None:
    """Adds to the table "settings" what a user of each serving engine sets to draft as recommended, or as the best
    chain of the recommended drafter, since serving engines take chains; vLLM also by batch size.
    """
    answers = bench.rows_of("answers")
    winners, chains = (answers[answers["role"] == role].set_index("batch") for role in (RECOMMENDED, CHAIN))
    chains = chains.reindex(winners.index)
    tokens = chains["nodes"].where(chains["drafter"] == winners["drafter"], winners["nodes"]).astype(int)
    for batch, drafter in winners["drafter"].items():
        lengths = tokens[winners["drafter"].isin([drafter, "none"])].to_dict()
        bench.store.open("settings").add([dict(backend=bench.backend.name, batch=batch, **line) for line
                                          in registry.lines(bench.backend.pair, drafter, int(tokens[batch]), lengths)])
