"""The prompts of a study, split into those that trees are grown from and those that judge them, and their traces under
both protocols.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from lib import replay
from lib.drafters.drafter import BY_RANKS
from lib.drafters.heads.store import NGRAMS, folder_of
from lib.drafters.ngrams import NgramDrafter, NgramTables
from lib.drafters.registry import make
from lib.lab import cluster
from lib.models.dialogue import has_template
from lib.replay import acceptance, simulated
from lib.replay.acceptance import CONTINUATION, REAL_TEXT
from lib.replay.recording import Batch, Settings, prompts_digest, record_batch
from lib.replay.trace import Trace

OF_TEXT = (NGRAMS, "lookup", "sam")  # drafters that need no model
SHORTEST_CONTEXT = 64  # tokens before the first real-text start
SILENCE = 10.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts: names, kinds of text, ids int64[T]; choosing: bool[N], true for prompts that trees are grown
    from, false for those that judge them.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[Tensor, ...]
    choosing: np.ndarray

    def select(self, rows: Iterable[int]) -> "Prompts":
        """The prompts of these rows."""
        rows = list(rows)
        return Prompts(*(tuple(values[i] for i in rows) for values in (self.names, self.kinds, self.ids)),
                       self.choosing[rows])


def split_prompts(names: Sequence[str], kinds: Sequence[str], ids: Sequence[Tensor], *, choose: int,
                  judge: int) -> Prompts:
    """The first `choose` prompts of each kind to grow trees from, the next `judge` to judge all trees on."""
    short = [kind for kind, count in Counter(kinds).items() if count < choose + judge]
    if short:
        raise ValueError(f"kinds {', '.join(short)} have fewer than {choose} + {judge} prompts; lower choose_prompts "
                         "or judge_prompts, or give more prompts")
    place = np.array([list(kinds[:i]).count(kind) for i, kind in enumerate(kinds)], dtype=int)  # within its kind
    return Prompts(names, kinds, ids, place < choose).select(np.flatnonzero(place < choose + judge))


class Competitors(Mapping):
    """By name the drafters of pairs that share a target whose rounds follow from a text, the first that of headlines:
    language models and drafters that read ahead, as `record` takes them, and others that read the text alone. Other
    processes make them anew.

    specs: as `drafters.make` takes them, "model" for the draft models of all pairs; empty: these, or for a target alone
    OF_TEXT. N-grams are those of the text alone where no tables ship for the target. ValueError for other drafters.
    """

    def __init__(self, pairs: Sequence, specs: Sequence[str] = ()):
        self.pairs, self.specs, self.target = tuple(pairs), tuple(specs), pairs[0].target
        self.made = self._make()
        if not of_ranks(self):
            raise ValueError(f"drafters are {', '.join(self)}, of which none has ranks; add one that has, such as "
                             f"{NGRAMS}")

    def __reduce__(self):
        return Competitors, (self.pairs, self.specs)

    def __getitem__(self, name: str):
        return self.made[name]

    def __iter__(self):
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def _make(self) -> dict[str, object]:
        models = {pair.drafter_name: pair.draft_model for pair in self.pairs if pair.draft_model is not None}
        found: dict[str, object] = {}
        for spec in self.specs or (["model"] if models else OF_TEXT):
            tables = folder_of(self.pairs[0].target_name, NGRAMS)
            if spec == "model" and models:
                found |= models
            elif spec == NGRAMS and not tables.is_dir():
                found[spec] = NgramDrafter(NgramTables((), self.target.config.get_text_config().vocab_size))
            else:
                drafter = make(spec, self.pairs[0])
                if not simulated.replayable(drafter):
                    raise ValueError(f"drafter {spec!r} depends on more than the text, so that no trace decides its "
                                     "rounds; notebook 5 decodes with it live")
                by_model = drafter.traits.replay == BY_RANKS and not drafter.reads_ahead
                found[spec] = drafter.model if by_model else drafter
        return found


def of_ranks(drafters: Mapping[str, object]) -> dict[str, object]:
    """Those of `Competitors` whose ranks decide what is accepted of every tree, as `record` takes them; the others draft
    again in each round.
    """
    return {name: each for name, each in drafters.items() if getattr(each, "reads_ahead", True)}


def protocols_of(pair) -> tuple[str, ...]:
    """Continuation for a model that answers users in a chat template; for others real-text starts too."""
    return (CONTINUATION,) if has_template(pair.tokenizer) else (CONTINUATION, REAL_TEXT)


def texts_of(prompts: Prompts, protocol: str, starts: int) -> Prompts:
    """The texts that a trace of a protocol continues: the prompts, or `real_text_starts` of them."""
    return prompts if protocol == CONTINUATION else real_text_starts(prompts, starts)


def real_text_starts(prompts: Prompts, starts: int) -> Prompts:
    """Each prompt up to `starts` evenly spaced positions; a round begins at each of them, inside real text."""
    rows, beginnings = [], []
    for i, ids in enumerate(prompts.ids):
        for end in np.linspace(min(SHORTEST_CONTEXT, len(ids)), len(ids), starts).astype(int):
            rows.append(i)
            beginnings.append(ids[:end])
    return replace(prompts.select(rows), ids=tuple(beginnings))


def record(name: str, target, drafters: Mapping[str, object], prompts: Prompts, *, temperatures: Sequence[float],
           tokens: int, starts: int, horizon: int, eos_token_id: int | Sequence[int] | None, seed: int, folder: Path,
           protocols: Sequence[str] = (CONTINUATION, REAL_TEXT), deepest: int = acceptance.DEEPEST,
           report: Callable[[str], None] = print) -> list[Trace]:
    """The traces of one target at each temperature: continuations of `tokens` tokens, and `starts` real-text starts per
    prompt, of which trees are grown from the next `horizon` tokens.

    deepest: levels of the deepest tree that is replayed; each text goes on that far past its last start.

    Each trace is one file in `folder`. An existing file is read, one that cannot be read is made again, and a recording
    that was stopped continues. `report`
    gets lines of progress. ValueError for an unknown protocol, and for a file with other prompts or settings; models
    are compared by name only. The ranks of `of_ranks(drafters)` are recorded, on workers where the run has some.
    """
    made = []
    for protocol in protocols:
        acceptance.check_protocol(protocol)
        texts, length = texts_of(prompts, protocol, starts), tokens if protocol == CONTINUATION else horizon
        choosing = texts.choosing.astype(int).tolist()
        for temperature in temperatures:
            stem = f"{name}.{protocol.split('-')[0]}.t{temperature:g}".replace("/", "_")
            title = f"{name}, {protocol}, temperature {temperature:g}"
            path, parts = folder / f"{stem}.safetensors", folder / stem
            about = {"target": name, "protocol": protocol, "seed": seed, "choosing": choosing, "transitions": length,
                     "deepest": deepest}
            if _holds(path, about | {"temperature": temperature, "prompts": prompts_digest(texts.ids)}):
                report(f"{title}: recorded before")
            else:
                recorded = replay.record(
                    target, of_ranks(drafters), texts.ids, names=texts.names, kinds=texts.kinds, max_new_tokens=length,
                    beyond=deepest + 1, ahead=deepest, temperature=temperature, eos_token_id=eos_token_id,
                    seed=seed, about=about, parts=parts, report=_sparing(report, title),
                    elsewhere=_elsewhere(_recorded, drafters))
                replay.save(recorded, path)
                shutil.rmtree(parts, ignore_errors=True)
            made.append(replay.load(path))
    return made


def _elsewhere(function: Callable, made_of: object) -> Callable | None:
    """For `replay.record` the run's workers, if it has some, which get what the models are made of."""
    return partial(_spread, function, made_of) if cluster.active() else None


def _spread(function: Callable, made_of: object, batches: Sequence[Batch], settings: Settings) -> Iterator[Trace]:
    return cluster.spread(function, batches, settings, made_of)


def _recorded(batch: Batch, settings: Settings, drafters: Competitors) -> Trace:
    return record_batch(drafters.target, of_ranks(drafters), batch, settings)


def _recorded_pair(batch: Batch, settings: Settings, pair) -> Trace:
    return record_batch(pair.target, {pair.drafter_name: pair.draft_model}, batch, settings)


def record_pair(pair, prompts: Prompts, **settings) -> Trace:
    """`replay.record` of a `models.Pair` and its draft model on prompts, up to the target's own EOS, on workers where
    the run has some. settings: as `replay.record` takes them.
    """
    return replay.record(
        pair.target, {pair.drafter_name: pair.draft_model}, prompts.ids, names=prompts.names, kinds=prompts.kinds,
        eos_token_id=pair.eos_token_ids, elsewhere=_elsewhere(_recorded_pair, pair), **settings)


def _holds(path: Path, wanted: Mapping[str, object]) -> bool:
    """Whether a file holds the trace; not where it is damaged, or of another version. ValueError for other settings or
    prompts.
    """
    try:
        about = replay.load(path).about
    except (FileNotFoundError, ValueError):
        return False
    differs = [name for name, value in wanted.items() if about.get(name) != value]
    if differs:
        raise ValueError(f"{path} was recorded with other {', '.join(differs)}: give another folder, or delete it")
    return True


def _sparing(report: Callable[[str], None], title: str) -> Callable[[str, bool], None]:
    """Passes on the last line of a recording, and of the others at most one every SILENCE seconds."""
    spoken = time.monotonic()

    def pass_on(line: str, last: bool) -> None:
        nonlocal spoken
        if last or time.monotonic() - spoken > SILENCE:
            spoken = time.monotonic()
            report(f"{title}: {line}")

    return pass_on


def halves(recorded: Trace) -> tuple[Trace, Trace]:
    """The part of a trace that trees are grown from, and the part that judges them.

    ValueError if about["choosing"] does not fit the trace's rows (as in a part of a trace), or if a part is empty.
    """
    choosing = np.array(recorded.about.get("choosing", ()), dtype=bool)
    if len(choosing) != len(recorded.lengths) or choosing.all() or not choosing.any():
        raise ValueError(f"the trace of {len(recorded.lengths)} rows has about['choosing'] of {len(choosing)}, "
                         f"{choosing.sum()} of them true: give one per row, some true to choose by and "
                         "some false to judge by")
    return recorded.select(choosing), recorded.select(~choosing)
