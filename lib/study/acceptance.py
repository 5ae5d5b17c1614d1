"""The text of a backend, and what each way to draft accepts of it by replay."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lib.engines.methods import PLAIN, PLAIN_WAY, Sizes, Way, rounds_of
from lib.engines.own import Own
from lib.replay import recording
from lib.replay.recording import Texts, read
from lib.replay.simulated import Recorded
from lib.replay.trace import loops
from lib.study.bench import Bench


def record(bench: Bench, drafters: Mapping[str, object]) -> Recorded:
    """The backend's plain text of each prompt as a trace that goes on past the answer, in which rounds start as long as
    the answer goes on; with the ranks of `drafters` (see `recording.record`) where the backend is this project's loop.
    Fills the table "texts".
    """
    if isinstance(bench.backend, Own):
        pair = bench.backend.pair
        trace = recording.record(
            pair.target, drafters, bench.prompts.ids, names=bench.prompts.names, kinds=bench.prompts.kinds,
            max_new_tokens=bench.new_tokens - 1, beyond=bench.longest + 1, ahead=bench.longest,
            eos_token_id=pair.eos_token_ids, labels={"target": pair.target_name, "chains": bench.backend.chains},
            parts=bench.store.folder / "traces" / bench.store.mark / bench.backend.name.replace(":", "-"))
        _write_texts(bench, [row[row >= 0].tolist() for row in trace.tokens])
        return Recorded(trace, bench.prompts.ids)
    tokens = _plain_texts(bench)
    lengths = np.array([answer_length(text, bench.new_tokens, bench.ends) for text in tokens])
    texts = Texts(bench.prompts.names, bench.prompts.kinds, bench.prompts.ids, tokens, [False] * len(tokens))
    return Recorded(replace(read(None, {}, texts), lengths=lengths - 1), bench.prompts.ids)


def _plain_texts(bench: Bench) -> list[list[int]]:
    """The plain text of each prompt, decoded alone and kept row by row. After an answer has ended, the engine is asked
    to continue it, so that the text decides every round. (An engine that ignores ends may write another token there.)
    """
    table = bench.store.open("texts")
    missing = [row for row, name in enumerate(bench.prompts.names) if (bench.backend.name, name) not in table.keys()]
    with bench.running(*[PLAIN_WAY] if missing else []) as running:
        for row in missing:
            (prompt,), text, wanted = bench.ids([row]), [], bench.new_tokens + bench.longest + 1
            while len(text) < wanted:
                text += running[PLAIN].decode([prompt + text], wanted - len(text), bench.ends).tokens[0]
            _write_texts(bench, [text], [row])
    rows = bench.store.open("texts").frame().set_index(["backend", "prompt"]).loc[bench.backend.name]
    return [list(map(int, ids.split())) for ids in rows.loc[list(bench.prompts.names), "ids"]]


def _write_texts(bench: Bench, texts: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> None:
    """Adds missing rows to the table "texts"."""
    table, names = bench.store.open("texts"), bench.prompts.names
    table.extend([
        dict(backend=bench.backend.name, prompt=names[row], ids=" ".join(map(str, text)),
             tokens=answer_length(text, bench.new_tokens, bench.ends), loops=loops(text))
        for row, text in zip(range(len(names)) if rows is None else rows, texts)
        if (bench.backend.name, names[row]) not in table.keys()])


def answer_length(tokens: Sequence[int], limit: int, ends: Sequence[int]) -> int:
    """Tokens of the answer in a text that goes on past it: to its first end, which counts, or to the limit."""
    return next((index + 1 for index, token in enumerate(tokens[:limit]) if token in ends), min(limit, len(tokens)))


def replay(bench: Bench, recorded: Recorded, ways: Sequence[Way]) -> dict[str, list[Sizes]]:
    """By way the rounds of each prompt; adds the missing rows of the table "rounds"."""
    table, replayed = bench.store.open("rounds"), {}
    for way in ways:
        replayed[way.name] = rounds_of(way, recorded, bench.new_tokens)
        table.extend([
            dict(backend=bench.backend.name, way=way.name, prompt=name, rounds=len(sizes), drafted=int(sizes[:, 0].sum()),
                 accepted=int(sizes[:, 1].sum()))
            for name, sizes in zip(bench.prompts.names, replayed[way.name])
            if (bench.backend.name, way.name, name) not in table.keys()])
    return replayed
