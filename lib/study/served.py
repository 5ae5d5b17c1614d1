"""A model that is served elsewhere: the answers of a log, or of a server that is asked here, take the place of texts
that are decoded here. Costs come from a file (see `costs_files`), and all speeds are predictions.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.drafters.drafter import Drafter
from lib.drafters.heads.files import NGRAMS
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import DRAFTERS, made_for, make, parse
from lib.engines.log import Log
from lib.engines.methods import Way
from lib.forward.load import load_served
from lib.lab import units
from lib.lab.chapter import Store
from lib.models import dialogue, registry
from lib.models import prompts as prompt_files
from lib.models.load import ServedModel
from lib.models.prompts import PromptSet
from lib.replay import endpoint, logs
from lib.replay.simulated import Recorded
from lib.study.acceptance import record
from lib.study.bench import Bench, arranged, without_loops, write_prompts
from lib.study.candidates import static_ways


def measure(store: Store, settings) -> tuple[Bench, Recorded, list[Way]]:
    """Writes the tables prompts and texts for logged texts (see `settings.Speed`). Returns the log at work, its text
    and the ways to draft that it decides. ValueError for logs or drafters that do not fit.
    """
    target_name, *draft_models = dict.fromkeys(name for pair in settings.pairs for name in registry.parts(pair))
    target = load_served(target_name, draft_models, settings.dtype, settings.device)
    path = ask(target, settings, store.folder) if settings.endpoint else settings.logs
    log = read(path, target, settings.temperature, settings.most_depth, settings.served or "log")
    bench = bench_of(log, store, settings.most_depth, settings.seed)
    write_prompts(store, bench.prompts, bench.parts)
    drafters = drafters_of(log, settings.drafters)
    recorded = record(bench, drafters)
    return bench, recorded, static_ways(without_loops(bench), recorded, drafters, settings.most_nodes)


def read(path: str | Path, target: ServedModel, temperature: float | None, longest: int, name: str = "log") -> Log:
    """The answers of a log that are long enough for trees of so many levels; a summary of all is printed. temperature:
    at which they were written, where the log does not name it. ValueError where it names several, or neither names one.
    """
    texts = logs.read(path, target.tokenizer, eos_token_id=target.eos_token_ids)
    print(texts.summary)
    if len(texts.temperatures) > 1:
        raise ValueError(f"the log has answers at the temperatures {', '.join(map(str, texts.temperatures))}; give "
                         "those of one temperature")
    if not texts.temperatures and temperature is None:
        raise ValueError("the log names no temperature; add --set temperature=0.7, with that of its answers")
    temperature, = texts.temperatures or (temperature,)
    long_enough = [row for row, ids in enumerate(texts.written) if texts.ended[row] or len(ids) > longest + 1]
    if len(long_enough) < 2:
        raise ValueError(f"{len(long_enough)} of {len(texts.names)} answers have more than {longest + 1} tokens; give "
                         "longer answers, or a smaller most_depth")
    if len({units.unit(texts.names[row]) for row in long_enough}) < 2:
        raise ValueError("all answers are to one prompt, or of one conversation; give those to others, so that some "
                         "choose and others judge")
    return Log(name, texts.select(long_enough), target, temperature)


def ask(target: ServedModel, settings, folder: Path) -> Path:
    """The file of a server's answers to the prompts that choose and judge; see `endpoint.collect`. Chat models get
    messages, others plain texts.
    """
    chats = dialogue.has_template(target.tokenizer)
    rows = prompt_files.rows(prompt_files.file_of(settings.prompts, chats))
    numbers = prompt_files.numbers_in_kind([row.name for row in rows], [row.kind for row in rows])
    first = settings.choose_prompts + settings.judge_prompts
    rows = [row for row, number in zip(rows, numbers) if number < first]
    if alone := next((row for row in rows if row.options and not chats), None):
        raise ValueError(f"{alone.where}: {target.name} has no chat template for {min(alone.options)}; leave it out")
    requests = {row.name: row.options | endpoint.request_of(
        settings.served, row.messages if chats else "\n\n".join(message["content"] for message in row.messages),
        new_tokens=settings.new_tokens, temperature=settings.temperature or 0.0, seed=settings.seed) for row in rows}
    return endpoint.collect(settings.endpoint, requests, {row.name: row.kind for row in rows}, folder)


def drafters_of(log: Log, specs: Sequence[str]) -> dict[str, Drafter]:
    """The drafters that a log decides: of these specs, or of all that the target can have, those that read the text;
    and the target's draft models, "model" or with several "model (NAME)". ValueError for a spec of another kind.
    """
    tables = [NGRAMS, f"combined:behind={NGRAMS}"] if NGRAMS in made_for(log.target.name) else []
    drafters, models = {}, log.target.drafters
    for spec in (spec for spec in specs or ["lookup", "sam", *tables] if spec != "model"):
        kind, options = parse(spec)
        if not DRAFTERS[parse(options.get("behind", kind))[0]].traits.reads_text:
            raise ValueError(f"drafter {spec!r} needs the target's logits or hidden states, which a log does not have: "
                             "give kinds that read the text alone (lookup, sam, ngrams), and draft models in pairs")
        drafters[spec] = make(spec, log.pair)
    names = {name: "model" if len(models) == 1 else f"model ({name})" for name in models}
    return drafters | {names[name]: LanguageModelDrafter(model) for name, model in models.items()}


def bench_of(log: Log, store: Store, longest: int, seed: int) -> Bench:
    """A log at work: half of the conversations choose, and the others judge; nothing is raced."""
    texts = log.texts
    prompts = PromptSet(texts.names, texts.kinds, texts.prompts, tuple(map(units.turn, texts.names)))
    prompts, parts = arranged(prompts, 0, 0, np.random.default_rng(seed), halved=len(texts.names))
    texts = texts.select([texts.names.index(name) for name in prompts.names])
    return Bench(replace(log, texts=texts), store, log.target.name, prompts, parts, max(map(len, texts.written)), {},
                 longest, log.target.eos_token_ids, seed)
