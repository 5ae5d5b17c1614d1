"""The text of a backend, and what each way to draft accepts of it by replay: the tables "texts" and "rounds"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import float64, nn

from lib.drafters.registry import folders_of
from lib.engines.log import Log
from lib.engines.methods import PLAIN, PLAIN_WAY, Sizes, Way, rounds_of
from lib.engines.own import Own
from lib.lab import provenance
from lib.replay import recording
from lib.replay.recording import Texts, read
from lib.replay.simulated import Recorded
from lib.replay.trace import loops
from lib.study.bench import Bench


def record(bench: Bench, drafters: Mapping[str, object]) -> Recorded:
    """The backend's plain text of each prompt, which goes on past the answer, as a trace, with the ranks of `drafters`
    (see `recording.record`) where the backend is this project's loop, or a log. Fills the table "texts".
    """
    if isinstance(bench.backend, Log):
        bench.store.open("texts").add([bench.source | row for row in bench.backend.rows()])
        return Recorded(bench.backend.trace(recording.of_ranks(drafters), bench.longest), bench.prompts.ids)
    if isinstance(bench.backend, Own):
        pair, temperature = bench.backend.pair, bench.backend.temperature
        settings = dict(max_new_tokens=bench.new_tokens - 1, beyond=bench.longest + 1, temperature=temperature,
                        eos_token_id=pair.eos_token_ids, seed=bench.seed if temperature else None)
        trace = recording.record(
            pair.target, drafters, bench.prompts.ids, names=bench.prompts.names, kinds=bench.prompts.kinds, **settings,
            parts=traces_folder(bench, drafters, settings),
            labels={"target": pair.target_name, "chains": bench.backend.chains})
        _write_texts(bench, {row: line[line >= 0].tolist() for row, line in enumerate(trace.tokens)})
        return Recorded(trace, bench.prompts.ids)
    rows = _plain_texts(bench)
    tokens = [list(map(int, ids.split())) for ids in rows["ids"]]
    texts = Texts(bench.prompts.names, bench.prompts.kinds, bench.prompts.ids, tokens, [False] * len(tokens))
    return Recorded(replace(read(None, {}, texts), lengths=rows["tokens"].to_numpy() - 1), bench.prompts.ids)


def traces_folder(bench: Bench, drafters: Mapping[str, object], settings: Mapping[str, object]) -> Path:
    """The run's folder of a trace's batches, whose name has a fingerprint of all that decides the trace."""
    pair, prompts, ranked = bench.backend.pair, bench.prompts, recording.of_ranks(drafters)
    models = {"": pair.target} | {name: model for name, model in ranked.items() if isinstance(model, nn.Module)}
    mark = provenance.fingerprint(
        files=folders_of(pair.target_name), device=pair.target.device.type, parameters={
            **settings, "dtype": pair.dtype, "drafters": sorted(ranked),
            "weights": {name: [weight.sum(dtype=float64).item() for weight in (*model.parameters(), *model.buffers())]
                        for name, model in models.items()},
            "prompts": [[name, *ids.tolist()] for name, ids in zip(prompts.names, prompts.ids)]})
    return bench.store.folder / "traces" / f"{pair.target_name}-{mark}".replace("/", "_")


def _plain_texts(bench: Bench) -> pd.DataFrame:
    """Each prompt's row of the table "texts"; prompts are decoded one by one. After an answer has ended, the engine
    continues it, so that the text decides every round. (An engine that ignores ends may write another token there.)
    """
    done, source = bench.store.open("texts").keys(), tuple(bench.source.values())
    missing = [row for row, name in enumerate(bench.prompts.names) if (*source, name) not in done]
    with bench.running(*[PLAIN_WAY] if missing else []) as running:
        for row in missing:
            (prompt,), text, length = bench.ids([row]), [], bench.new_tokens + bench.longest + 1
            while len(text) < length:
                text += running[PLAIN].decode([prompt + text], length - len(text), bench.ends).tokens[0]
            _write_texts(bench, {row: text})
    rows = bench.store.open("texts").frame().set_index([*bench.source, "prompt"])
    return rows.loc[source].loc[list(bench.prompts.names)]


def _write_texts(bench: Bench, texts: Mapping[int, Sequence[int]]) -> None:
    """Adds the texts of prompts by their rows to the table "texts", where they are missing; an answer goes on to its
    first end, which counts, or to the limit.
    """
    bench.store.open("texts").add([
        dict(**bench.source, prompt=bench.prompts.names[row], ids=" ".join(map(str, text)), loops=loops(text),
             tokens=next((index + 1 for index, token in enumerate(text[: bench.new_tokens]) if token in bench.ends),
                         min(bench.new_tokens, len(text))), remark="") for row, text in texts.items()])


def replay(bench: Bench, recorded: Recorded, ways: Sequence[Way], rows: Sequence[int]) -> dict[str, dict[int, Sizes]]:
    """By way and prompt the rounds, which the recorded text keeps; adds the missing rows of the table "rounds"."""
    selected, replayed = recorded.select(np.array(rows, dtype=int)), {}
    for way in ways:
        rounds = recorded.rounds.setdefault(way.name, {})
        if not {*rows} <= rounds.keys():
            rounds.update(zip(rows, rounds_of(way, selected, bench.new_tokens)))
        replayed[way.name] = {row: rounds[row] for row in rows}
    bench.store.open("rounds").add([
        dict(**bench.source, drafter=way.method, shape=way.shape_name, prompt=bench.prompts.names[row],
             rounds=len(sizes), **dict(zip(("drafted", "accepted", "calls"), sizes.sum(0).tolist())))
        for way in ways for row, sizes in replayed[way.name].items()])
    return replayed
