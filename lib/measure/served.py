"""Logged answers of a model that is served elsewhere: what was read, drafters replayed on it, the recommendation at
costs of elsewhere, and what it means that some answers are known by their text alone. No target is loaded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import lib.cost.served as from_logs
from lib.cost import in_engine
from lib.cost.candidates import Candidate, Entrant, Limits, static
from lib.cost.recommendation import with_schedule
from lib.cost.roofline import HARDWARE
from lib.cost.round_cost import RoundCost
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import DRAFTERS, make, parse
from lib.engines.driver import EngineError
from lib.engines.served import Server
from lib.forward.load import load_served
from lib.forward.packed import parameters_of
from lib.lab import provenance, stats
from lib.lab.chapter import Store
from lib.models import dialogue
from lib.models import prompts as prompt_files
from lib.models.checks import PairError
from lib.models.load import Served, num_parameters
from lib.models.registry import FOLDER, GGUF, sources
from lib.replay import endpoint, logs, recording
from lib.replay.logs import LoggedTexts
from lib.replay.simulated import Recorded

EXAMPLE = provenance.HOME / "data" / "logs" / "example.jsonl"  # answers that the shipped `base` wrote
AS_LOGGED = -1.0  # in the place of a temperature
CHAIN = "chain:4"  # at which text alone stands beside token ids


def measure(store: Store, *, log: str, inputs: str, url: str, served: str, prompts: str, ask_prompts: int,
            new_tokens: int, target: str, drafters: Sequence[str], temperature: float, costs: str,
            batches: Sequence[int], most_nodes: int, most_depth: int, dtype: str, device: str, seed: int) -> None:
    """Writes the tables "served_answers", "served_candidates" and "served_text", and the recommendation for each batch
    size as served.json.

    log: a file of answers, "" for EXAMPLE; inputs: the batch API's input file. url: of a server that is asked for
    answers in the place of a log, of the model that it calls `served`. ValueError says what cannot be used.
    """
    if not store.open("served_text").frame().empty:  # the last table
        return
    kinds, names = kinds_of(drafters)
    model, rng = load_served(target, names, dtype=dtype, device=device), np.random.default_rng(seed)
    if url:
        log = ask(url, served, model, prompts, store.folder, first=ask_prompts, new_tokens=new_tokens,
                  temperature=temperature, seed=seed)
    texts = read(log, inputs, model)
    written_at = temperature_of(temperature, texts)
    store.write("served_answers", answers(texts))
    if url:
        try:
            store.write("served_runs", as_served(Server(url, served), texts, batches, new_tokens, model.eos_token_ids))
        except EngineError as error:
            print(f"the server was not timed: {error}")
    competing, known = entrants(model, kinds), prices(costs, model, batches, most_nodes)
    tried = replayed(competing, texts, written_at, Limits(most_nodes, most_depth, batches))
    by_batch = [from_logs.recommend(tried, cost, batch, texts, rng) for batch, cost in known.items()]
    advised = from_logs.ForLogs(model.name, Path(costs).name, written_at, len(texts.names), with_schedule(by_batch))
    advised.save(store.folder / from_logs.FILE)
    store.write("served_candidates", predicted(tried, known, rng))
    store.write("served_text", by_text_alone(competing, texts, model.tokenizer, written_at))


def files_of(log: str, inputs: str, target: str, drafters: Sequence[str], costs: str) -> list[Path]:
    """The files that decide the rows of `measure`: the log, those of costs and requests, and local models."""
    named = [one for name in (target, *kinds_of(drafters)[1]) for one in sources(name) if one is not None]
    given = [Path(path).expanduser() for path in (log or EXAMPLE, inputs, costs) if path]
    return [*(path for path in given if path.is_file()),
            *(Path(one.where) for one in named if one.kind in (FOLDER, GGUF))]


def kinds_of(specs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The kinds of drafters among names, and the draft models. ValueError for a kind that logs do not decide."""
    kinds = [spec for spec in specs if spec.partition(":")[0] in DRAFTERS]
    for spec in kinds:
        if not DRAFTERS[parse(spec)[0]].traits.reads_text:
            raise ValueError(f"drafter {spec!r} needs the target's logits or hidden states, or a draft model, which a "
                             "log does not have: give kinds that read the text alone (lookup, sam, ngrams), or the "
                             "name or folder of a draft model itself")
    return kinds, [spec for spec in specs if spec not in kinds]


def entrants(target: Served, kinds: Sequence[str]) -> list[Entrant]:
    """The drafters that compete: kinds that read the text, and the target's draft models."""
    alone = SimpleNamespace(target=SimpleNamespace(config=target.config), target_name=target.name, draft_model=None)
    return [Entrant(spec, spec, alone, make(spec, alone)) for spec in kinds] + [
        Entrant(name, "model", SimpleNamespace(draft_model=model), LanguageModelDrafter(model))
        for name, model in target.drafters.items()]


def temperature_of(asked: float, texts: LoggedTexts) -> float:
    """The temperature at which the answers were written: the one asked for, or that of the log. ValueError where
    neither tells one.
    """
    if asked >= 0:
        return asked
    if len(texts.temperatures) != 1:
        logged = ", ".join(map(str, texts.temperatures)) or "none"
        raise ValueError(f"the log tells the temperatures {logged}; give the one at which its answers were written, as "
                         "in --set temperature=0.7, or the answers of one temperature")
    return texts.temperatures[0]


def read(path: str | Path, inputs: str, target: Served) -> LoggedTexts:
    """The answers of a log, or of the example, as the target's tokens."""
    return logs.read(path or EXAMPLE, target.tokenizer, eos_token_id=target.eos_token_ids, inputs=inputs)


def answers(texts: LoggedTexts) -> pd.DataFrame:
    """The table "served_answers": the answers that were read, and the lines that were refused."""
    rows = [dict(answer=name, kind=kind, known_by=way, tokens=len(ids), ended=ended, remark="") for
            name, kind, way, ids, ended in zip(texts.names, texts.kinds, texts.known_by, texts.written, texts.ended)]
    return pd.DataFrame(rows + [dict(answer=where, kind="", known_by="refused", tokens=0, ended=False,
                                     remark=" ".join(reason.split())) for where, reason in texts.refused.items()])


def ask(url: str, name: str, target: Served, path: str, folder: Path, *, first: int, new_tokens: int,
        temperature: float, seed: int) -> Path:
    """The file of a server's answers to prompts, `first` of each kind; see `endpoint.collect`. Chat models get
    messages, others plain texts. ValueError without a temperature.
    """
    if temperature < 0:
        raise ValueError("temperature is below 0, which leaves it to a log; give the one at which the server shall "
                         "answer, 0 for greedy decoding")
    chats = dialogue.has_template(target.tokenizer)
    settings = dict(new_tokens=new_tokens, temperature=temperature, seed=seed)
    requests, kinds = {}, {}
    for row in prompt_files.rows(prompt_files.file_of(path, chats)):
        if list(kinds.values()).count(row.kind) < first:
            asked = row.messages if chats else "\n\n".join(message["content"] for message in row.messages)
            requests[row.name], kinds[row.name] = endpoint.request_of(name, asked, **settings), row.kind
    return endpoint.collect(url, requests, kinds, folder)


def as_served(server: Server, texts: LoggedTexts, batches: Sequence[int], new_tokens: int,
              ends: Sequence[int]) -> pd.DataFrame:
    """The table "served_runs": how fast a server decodes as it was started, and what it counts, for the first prompt of
    each kind.
    """
    first, rows = [texts.kinds.index(kind) for kind in dict.fromkeys(texts.kinds)], []
    for batch in batches:
        for places in in_engine.together(len(first), batch):
            own = [first[place] for place in places]
            done = server.decode([texts.prompts[row].tolist() for row in own], new_tokens, ends)
            rows.append(dict(batch=batch, call=", ".join(texts.names[row] for row in own),
                             tokens=sum(map(len, done.tokens)), seconds=done.seconds, prefill=done.prefill,
                             drafts=done.drafts, drafted=done.drafted, accepted=" ".join(map(str, done.accepted))))
    return pd.DataFrame(rows)


def prices(costs: str, target: Served, batches: Sequence[int], most: int) -> dict[int, dict[str, RoundCost]]:
    """By batch and drafter the cost of rounds, as `served.price_of` takes them: of a file, or of hardware by its name.
    """
    if costs in HARDWARE:
        try:
            parameters = num_parameters(target.name, target.config)
        except PairError as error:
            raise PairError(f"{error}; without its parameters, give costs as a table that lib/cost/measure_served.py "
                            "writes where it is served") from None
        sizes = {"": 1.0} | {name: float(parameters_of(model)) for name, model in target.drafters.items()}
        by_name = {name: from_logs.computed(costs, parameters, size, batches, most)
                   for name, size in sizes.items()}
        return {batch: {name: by_batch[batch] for name, by_batch in by_name.items()} for batch in batches}
    known = from_logs.read_costs(costs)
    if missing := [batch for batch in batches if batch not in known]:
        raise ValueError(f"{costs} has no batch {missing[0]}, but {', '.join(map(str, known))}: measure it, or set "
                         "batches to those")
    return {batch: {name: known[batch] for name in ("", *target.drafters)} for batch in batches}


def replayed(competing: Sequence[Entrant], texts: LoggedTexts, temperature: float, limits: Limits) -> list[Candidate]:
    """Every drafter with its static trees, replayed on the logged answers."""
    models = {entrant.name: entrant.drafter.model for entrant in competing
              if isinstance(entrant.drafter, LanguageModelDrafter)}
    trace = recording.read(None, models, texts, temperature=temperature)
    recorded = Recorded(trace, texts.prompts)
    return [candidate for entrant in competing for candidate in static(entrant, recorded, limits)]


def predicted(tried: Sequence[Candidate], known: Mapping[int, Mapping[str, RoundCost]],
              rng: np.random.Generator) -> pd.DataFrame:
    """The table "served_candidates": by batch, drafter and tree the tokens per round and the predicted speed, on all
    logged answers.
    """
    rows = []
    for candidate in tried:
        mean = stats.ratio(candidate.accepted + candidate.rounds, candidate.rounds, rng)
        for batch, by_name in known.items():
            price = from_logs.price_of(candidate, by_name)
            share = price.plain / candidate.seconds(price, batch)
            rows.append(dict(batch=batch, drafter=candidate.entrant.name, shape=candidate.label,
                             budget=candidate.shape.budget, depth=candidate.shape.max_depth, chain=candidate.is_chain,
                             n_prompts=mean.n_prompts, n_rounds=mean.n_rounds) | {
                f"{name}{end}": factor * getattr(mean, value)
                for name, factor in (("tokens", 1.0), ("speedup", share))
                for end, value in (("", "value"), ("_low", "low"), ("_high", "high"))})
    return pd.DataFrame(rows)


def by_text_alone(competing: Sequence[Entrant], texts: LoggedTexts, tokenizer, temperature: float) -> pd.DataFrame:
    """The table "served_text": what replay would tell, had the log the texts alone: by drafter the tokens per
    round of a chain on the answers whose ids are known, with these and with the canonical tokens. Without ids those of
    the example stand in, with the drafters that read the text.
    """
    known = [row for row, by in enumerate(texts.known_by) if by != logs.BY_TEXT]
    if not known:
        shipped = load_served("base", [])
        other = read("", "", shipped)
        return by_text_alone(entrants(shipped, ["lookup", "sam"]), other, shipped.tokenizer,
                             temperature_of(AS_LOGGED, other)).assign(example=True)
    written = texts.select(known)
    canonical = logs.canonicalised(written, tokenizer)
    same = sum(one == two for one, two in zip(written.written, canonical.written))
    tokens = [{one.entrant.name: one.tokens for one in replayed(competing, part, temperature, Limits(4, 4))
               if one.label == CHAIN} for part in (written, canonical)]
    return pd.DataFrame([dict(drafter=name, answers=len(known), canonical=same, tokens_ids=tokens[0][name],
                              tokens_text=tokens[1][name], example=False) for name in tokens[0]])
