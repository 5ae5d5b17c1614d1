"""The two protocols under which a target's prompts become traces, and the drafters whose rounds these traces decide.

Continuation: the target continues each prompt, and rounds follow one another. Real-text starts: a round begins at
positions inside the prompt's text, and the target's next tokens decide it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lib.drafters.drafter import BY_RANKS
from lib.drafters.heads.store import NGRAMS, folder_of
from lib.drafters.ngrams import NgramDrafter, NgramTables
from lib.drafters.registry import DRAFTERS, make
from lib.models.dialogue import has_template
from lib.models.prompts import PromptSet
from lib.replay import simulated
from lib.replay.acceptance import CONTINUATION, DEEPEST, REAL_TEXT
from lib.replay.recording import record
from lib.replay.simulated import Recorded
from lib.trees import shapes

SHORTEST_CONTEXT = 64  # tokens before the first real-text start


class Competitors(dict):
    """By name the drafters of pairs that share a target whose rounds follow from a text, the first that of headlines:
    language models and drafters that read ahead, as `record` takes them, and others that read the text alone. Other
    processes make them anew.

    specs: as `drafters.make` takes them, "model" for the draft models of all pairs; empty: these, or for a target alone
    those that read the text. N-grams are those of the text alone where no tables ship for the target. ValueError for
    other drafters.
    """

    def __init__(self, pairs: Sequence, specs: Sequence[str] = ()):
        super().__init__()
        self.pairs, self.specs, self.target = tuple(pairs), tuple(specs), pairs[0].target
        models = {pair.drafter_name: pair.draft_model for pair in pairs if pair.draft_model is not None}
        tables = folder_of(pairs[0].target_name, NGRAMS)
        of_text = [name for name, kind in DRAFTERS.items() if kind.traits.reads_text]
        for spec in specs or (["model"] if models else of_text):
            if spec == "model" and models:
                self.update(models)
            elif spec == NGRAMS and not tables.is_dir():
                self[spec] = NgramDrafter(NgramTables((), self.target.config.get_text_config().vocab_size))
            else:
                drafter = make(spec, pairs[0])
                if not simulated.replayable(drafter):
                    raise ValueError(f"drafter {spec!r} depends on more than the text, so that no trace decides its "
                                     "rounds; notebook 5 decodes with it live")
                by_model = drafter.traits.replay == BY_RANKS and not drafter.reads_ahead
                self[spec] = drafter.model if by_model else drafter
        if not self.of_ranks:
            raise ValueError(f"drafters are {', '.join(self)}, of which none has ranks; add one that has, such as "
                             f"{NGRAMS}")

    def __reduce__(self):
        return Competitors, (self.pairs, self.specs)

    @property
    def of_ranks(self) -> dict[str, object]:
        """Those whose ranks decide what is accepted of every tree, as `record` takes them; the others draft again."""
        return {name: drafter for name, drafter in self.items() if getattr(drafter, "reads_ahead", True)}


def by_target(pairs: Sequence) -> dict[str, list]:
    """Pairs grouped by their target's name: one recording of a target serves all its drafters."""
    groups: dict[str, list] = {}
    for pair in pairs:
        groups.setdefault(pair.target_name, []).append(pair)
    return groups


def room(pairs: Sequence, *, new_tokens: int, live_tokens: int, live_shapes: Sequence[str],
         deepest: int = 0) -> int | None:
    """The tokens that a prompt may have so that its continuations fit the target's window, with room for the deepest
    tree and 1 token past the limit; None without a window. deepest: levels of trees that are replayed.
    """
    windows = [pair.window for pair in pairs if pair.window]
    live = max((shapes.parse(shape).max_depth for shape in live_shapes), default=0)
    return min(windows) - max(new_tokens + deepest, live_tokens + live) - 1 if windows else None


def of_pair(pair) -> tuple[str, ...]:
    """The protocols of a pair: continuation for a model that answers users in a chat template; for others real-text
    starts too.
    """
    return (CONTINUATION,) if has_template(pair.tokenizer) else (CONTINUATION, REAL_TEXT)


def texts_of(prompts: PromptSet, protocol: str, starts: int) -> PromptSet:
    """The texts that a trace of a protocol continues: the prompts, or for real-text starts each prompt up to `starts`
    evenly spaced positions.
    """
    if protocol == CONTINUATION:
        return prompts
    rows, beginnings = [], []
    for row, ids in enumerate(prompts.ids):
        for end in np.linspace(min(SHORTEST_CONTEXT, len(ids)), len(ids), starts).astype(int):
            rows.append(row)
            beginnings.append(ids[:end])
    repeated = prompts.select(rows)
    return PromptSet(repeated.names, repeated.kinds, tuple(beginnings))


def record_all(name: str, competitors: Competitors, prompts: PromptSet, choosing: Sequence[str], *,
               temperatures: Sequence[float], tokens: int, starts: int, horizon: int,
               eos_token_id: int | Sequence[int] | None, seed: int, folder: Path,
               protocols: Sequence[str] = (CONTINUATION, REAL_TEXT), deepest: int = DEEPEST) -> list[Recorded]:
    """The traces of the target called `name` by protocol and temperature: continuations of `tokens` tokens, and
    `starts` real-text starts per prompt, of which trees are grown from the next `horizon` tokens.

    choosing: the names of the prompts that trees are grown from (see `Recorded.halves`). deepest: levels of the deepest
    tree that is replayed; each text goes on that far past its last start.

    Each batch is a file in `folder`, which is for recordings of the same arguments: one that was stopped continues, and
    a finished one is read again. Batches are recorded on workers where the run has some.
    """
    recordings = []
    for protocol in protocols:
        texts, length = texts_of(prompts, protocol, starts), tokens if protocol == CONTINUATION else horizon
        for temperature in temperatures:
            stem = f"{name}.{protocol.split('-')[0]}.t{temperature:g}".replace("/", "_")
            about = {"target": name, "protocol": protocol, "choosing": list(choosing)}
            trace = record(
                competitors.target, competitors.of_ranks, texts.ids, names=texts.names, kinds=texts.kinds,
                max_new_tokens=length, beyond=deepest + 1, ahead=deepest, temperature=temperature,
                eos_token_id=eos_token_id, seed=seed, about=about, parts=folder / stem, spread_by=competitors,
                title=f"{name}, {protocol}, temperature {temperature:g}")
            recordings.append(Recorded(trace, texts.ids))
    return recordings
