"""The text of a backend, and what each way to draft accepts of it by replay: the tables "texts" and "rounds"."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn, uint8

from lib.drafters.registry import folder_of, made_for
from lib.engines.methods import PLAIN, PLAIN_WAY, Sizes, Way, rounds_of
from lib.engines.own import Own
from lib.lab import provenance
from lib.replay import recording
from lib.replay.recording import Texts, read
from lib.replay.simulated import Recorded
from lib.replay.trace import loops
from lib.study.bench import Bench


def record(bench: Bench, drafters: Mapping[str, object], *, temperature: float = 0.0, siblings: int = 0) -> Recorded:
    """The backend's plain text of each prompt as a trace that goes on past the answer, in which rounds start as long as
    the answer goes on; with the ranks of `drafters` (see `recording.record`) where the backend is this project's loop,
    which also samples text at a temperature. Fills the table "texts".
    """
    if isinstance(bench.backend, Own):
        pair = bench.backend.pair
        settings = dict(
            max_new_tokens=bench.new_tokens - 1, beyond=bench.longest + 1, temperature=temperature, siblings=siblings,
            eos_token_id=pair.eos_token_ids, seed=bench.seed if temperature else None)
        trace = recording.record(
            pair.target, drafters, bench.prompts.ids, names=bench.prompts.names, kinds=bench.prompts.kinds,
            parts=traces_folder(bench, drafters, **settings), **settings,
            labels={"target": pair.target_name, "chains": bench.backend.chains})
        _write_texts(bench, {row: line[line >= 0].tolist() for row, line in enumerate(trace.tokens)},
                     temperature=temperature)
        return Recorded(trace, bench.prompts.ids)
    tokens = _plain_texts(bench)
    lengths = np.array([answer_length(text, bench.new_tokens, bench.ends) for text in tokens])
    texts = Texts(bench.prompts.names, bench.prompts.kinds, bench.prompts.ids, tokens, [False] * len(tokens))
    return Recorded(replace(read(None, {}, texts), lengths=lengths - 1), bench.prompts.ids)


def traces_folder(bench: Bench, drafters: Mapping[str, object], **settings) -> Path:
    """The folder of the batches of a trace, in the run. Its name is a fingerprint of what decides the trace: code,
    versions and machine, weights, heads, prompts and settings; so that notebooks with equal ones share it.
    """
    pair, prompts = bench.backend.pair, bench.prompts
    models = {"": pair.target} | {name: model for name, model in drafters.items() if isinstance(model, nn.Module)}
    mark = provenance.fingerprint(
        files=[folder_of(pair.target_name, name) for name in made_for(pair.target_name)],
        device=pair.target.device.type, parameters=settings | {
            "weights": {name: weights_digest(model) for name, model in models.items()}, "drafters": list(drafters),
            "prompts": [[name, *ids.tolist()] for name, ids in zip(prompts.names, prompts.ids)]})
    return bench.store.folder / "traces" / f"{pair.target_name}.{bench.backend.name}.{mark}".replace("/", "_").replace(
        ":", "-")


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of a model's weights, packed ones included, in their order."""
    digest = hashlib.sha256()
    for weight in (*model.parameters(), *model.buffers()):
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(uint8).numpy())
    return digest.hexdigest()


def _plain_texts(bench: Bench) -> list[list[int]]:
    """The plain text of each prompt, decoded alone and kept row by row. After an answer has ended, the engine is asked
    to continue it, so that the text decides every round. (An engine that ignores ends may write another token there.)
    """
    done = bench.store.open("texts").keys()
    missing = [row for row, name in enumerate(bench.prompts.names) if (*bench.whose(), name) not in done]
    with bench.running(*[PLAIN_WAY] if missing else []) as running:
        for row in missing:
            (prompt,), text, wanted = bench.ids([row]), [], bench.new_tokens + bench.longest + 1
            while len(text) < wanted:
                text += running[PLAIN].decode([prompt + text], wanted - len(text), bench.ends).tokens[0]
            _write_texts(bench, {row: text})
    rows = bench.store.open("texts").frame().set_index(["target", "backend", "temperature", "prompt"])
    return [list(map(int, ids.split())) for ids in rows.loc[bench.whose()].loc[list(bench.prompts.names), "ids"]]


def _write_texts(bench: Bench, texts: Mapping[int, Sequence[int]], *, temperature: float = 0.0) -> None:
    """Adds the texts of prompts by their rows to the table "texts", where they are missing."""
    table, names, whose = bench.store.open("texts"), bench.prompts.names, bench.whose(temperature)
    done = table.keys()
    table.extend([
        dict(target=whose[0], backend=whose[1], temperature=temperature, prompt=names[row],
             ids=" ".join(map(str, text)), tokens=answer_length(text, bench.new_tokens, bench.ends), loops=loops(text))
        for row, text in texts.items() if (*whose, names[row]) not in done])


def answer_length(tokens: Sequence[int], limit: int, ends: Sequence[int]) -> int:
    """Tokens of the answer in a text that goes on past it: to its first end, which counts, or to the limit."""
    return next((index + 1 for index, token in enumerate(tokens[:limit]) if token in ends), min(limit, len(tokens)))


def replay(bench: Bench, recorded: Recorded, ways: Sequence[Way], rows: Sequence[int] | None = None, *,
           temperature: float = 0.0) -> dict[str, dict[int, Sizes]]:
    """By way and prompt the rounds; adds the missing rows of the table "rounds". rows: the prompts; None for all."""
    rows = range(len(bench.prompts.names)) if rows is None else rows
    table, whose, added = bench.store.open("rounds"), bench.whose(temperature), []
    some = Recorded(recorded.trace.select(np.array(rows)), [recorded.prompts[row] for row in rows])
    done, replayed = table.keys(), {way.name: dict(zip(rows, rounds_of(way, some, bench.new_tokens))) for way in ways}
    for way in ways:
        for row, sizes in replayed[way.name].items():
            name = bench.prompts.names[row]
            if (*whose, way.method, way.shape_name, name) not in done:
                drafted, accepted, calls = sizes.sum(0).tolist()
                added.append(dict(
                    target=whose[0], backend=whose[1], temperature=temperature, drafter=way.method, calls=calls,
                    shape=way.shape_name, prompt=name, rounds=len(sizes), drafted=drafted, accepted=accepted))
    table.extend(added)
    return replayed
