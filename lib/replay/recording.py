"""Recording a trace: the target continues prompts, and its continuations are read.

Recording goes batch by batch, so that an interruption loses one batch at most. Reading needs one large teacher-forced
forward pass of each model for each batch, in which it computes each token's rank and probability.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from lib.attention.registration import check_attention, tree_forward
from lib.decoding import loop
from lib.decoding.checks import token_set, window_refusal
from lib.drafters.drafter import BY_RANKS, Drafter
from lib.drafters.filling import rank_of
from lib.drafters.heads.store import NGRAMS, folder_of
from lib.drafters.text_drafters import NgramDrafter
from lib.drafters.text_index import NgramTables
from lib.drafters.registry import DRAFTERS, make
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.lab import cluster
from lib.models.prompts import PromptSet
from lib.replay import simulated, trace
from lib.replay.acceptance import DEEPEST
from lib.replay.expectation import chances
from lib.replay.simulated import Recorded
from lib.replay.trace import BY_DRAFTER, PADDING, Trace, join, loop_start
from lib.trees import named
from lib.verify.warping import warp

MOST_PROBABILITIES = 1 << 26  # of one model in memory at the same time
MOST_ROWS = 32
AHEAD = 8  # depths that are read of a drafter that proposes several tokens ahead
SECONDS = 10  # between two lines of progress


@dataclass(frozen=True)
class Batch:
    """Prompts that are continued together; first: the place of the first one among all."""

    first: int
    prompts: Sequence[Tensor]
    names: Sequence[str]
    kinds: Sequence[str]


def record(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], *, names: Sequence[str],
           kinds: Sequence[str], max_new_tokens: int, beyond: int = DEEPEST + 1, temperature: float = 0.0,
           eos_token_id: int | Sequence[int] | None = None, seed: object = None, rows: int = 32,
           about: Mapping[str, object] | None = None, ahead: int = AHEAD, siblings: int = 0, parts: Path | None = None,
           title: str = "", spread_by: object = None) -> Trace:
    """The target continues each prompt int64[T] by a root, `max_new_tokens` transitions at which rounds may start, and
    `beyond` further tokens, and the result is read.

    drafters, names, kinds, ahead, siblings: as for `read`.
    beyond: the depth of the deepest tree that will be replayed, and 1 for its bonus token, so that the trace decides
        also the rounds that start just before the limit. Deeper trees have fewer starts (see `Trace.starts`).
    seed: of sampling, a plain value; each batch has a generator of its own. A temperature above 0 needs one.
    rows: prompts in one batch.
    parts: a folder for the finished batches of this recording alone; the undamaged ones that are there are taken.
    title: of the progress bar; without one there is none.
    spread_by: an object with `target` and `of_ranks` that other processes can make anew (see `Competitors`),
        so that the run's workers record batches; None: this process records them.
    ValueError where the window of the target or of a drafter is too small.
    """
    longest = max(map(len, prompts))
    needed = longest + max_new_tokens + beyond  # the last token is written and not read
    for name, model in {"the target": target, **drafters}.items():
        if (window := window_of(model)) and needed > window:
            raise ValueError(f"the longest prompt has {longest} tokens, its continuation {max_new_tokens}, and "
                             f"{beyond} beyond the limit let the deepest tree end: {needed} positions, but the window "
                             f"of {name} has {window}; shorten the prompt, max_new_tokens, or the trees (beyond), or "
                             "leave this drafter out")
    settings = dict(max_new_tokens=max_new_tokens, beyond=beyond, temperature=temperature, eos_token_id=eos_token_id,
                    ahead=ahead, siblings=siblings, seed=seed)
    batches = [Batch(first, *(values[first : first + rows] for values in (prompts, names, kinds)))
               for first in range(0, len(prompts), rows)]
    paths = [parts / f"{batch.first:06d}.safetensors" if parts else None for batch in batches]
    traces = [_recorded_before(path) for path in paths]
    missing = [batch for batch, part in zip(batches, traces) if part is None]
    fresh = (cluster.spread(_record_elsewhere, missing, settings, spread_by) if spread_by is not None else
             (record_batch(target, drafters, batch, settings) for batch in missing))
    progress = tqdm(paths, desc=title, disable=not title, mininterval=SECONDS, file=sys.stdout, unit="batch")
    for place, path in enumerate(progress):
        if traces[place] is None:
            traces[place] = next(fresh)
            if path:
                trace.save(traces[place], path)
                traces[place] = trace.load(path)  # rounded, as a recording that continues later reads it
    return replace(join(traces), about=dict(about or {}, temperature=temperature))


def record_batch(target, drafters: Mapping[str, object], batch: Batch, settings: Mapping[str, object]) -> Trace:
    """The part of a recording that one batch makes; a function of its arguments, so that any process may make it.

    settings: those arguments of `record` that are the same for all batches.
    """
    generator = None if settings["seed"] is None else cluster.seeded(settings["seed"], batch.first)
    sampling = {"temperature": settings["temperature"], "generator": generator,
                "eos_token_id": settings["eos_token_id"]}
    limit = settings["max_new_tokens"]
    written = loop.continuations(target, batch.prompts, rows=len(batch.prompts), **sampling,
                                 max_new_tokens=1 + limit + settings["beyond"])
    return read(target, drafters, batch.prompts, written, names=batch.names, kinds=batch.kinds, limit=limit,
                ahead=settings["ahead"], siblings=settings["siblings"], **sampling)


def _record_elsewhere(batch: Batch, settings: Mapping[str, object], models) -> Trace:
    return record_batch(models.target, models.of_ranks, batch, settings)


def _recorded_before(path: Path | None) -> Trace | None:
    """A finished batch, if there is an undamaged one."""
    try:
        return trace.load(path) if path and path.exists() else None
    except ValueError:  # damaged: it is recorded again
        return None


# --------------------------------------------------------------------------------------------- the drafters of a target


class Competitors(dict):
    """By name the drafters of pairs that share a target whose rounds follow from a text, the first that of headlines:
    language models and drafters that read ahead, as `record` takes them, and others that read the text alone. Other
    processes make them anew.

    specs: as `drafters.make` takes them, "model" for the draft models of all pairs; empty: these, or for a target alone
    those that read the text. longest: positions that the longest text needs, its deepest tree included; drafters with
    a shorter window are left out, and the reason is printed. N-grams are those of the text alone where no tables ship
    for the target. ValueError for other drafters.
    """

    def __init__(self, pairs: Sequence, specs: Sequence[str] = (), longest: int = 0):
        super().__init__()
        self.pairs, self.specs, self.longest, self.target = tuple(pairs), tuple(specs), longest, pairs[0].target
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
        for name, drafter in list(self.items()):
            if reason := window_refusal(window_of(drafter), longest):
                print(f"{name} is left out: {reason}")
                del self[name]
        if not self.of_ranks:
            raise ValueError(f"drafters are {', '.join(self)}, of which none has ranks; add one that has, such as "
                             f"{NGRAMS}")

    def __reduce__(self):
        return Competitors, (self.pairs, self.specs, self.longest)

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
    live = max((named(shape).max_depth for shape in live_shapes), default=0)
    return min(windows) - max(new_tokens + deepest, live_tokens + live) - 1 if windows else None


def record_all(name: str, competitors: Competitors, prompts: PromptSet, choosing: Sequence[str], *,
               temperatures: Sequence[float], tokens: int, eos_token_id: int | Sequence[int] | None, seed: int,
               folder: Path, deepest: int = DEEPEST) -> list[Recorded]:
    """The traces of the target called `name`, one per temperature: continuations of `tokens` tokens.

    choosing: the names of the prompts that trees are grown from (see `Recorded.halves`). deepest: levels of the deepest
    tree that is replayed; each text goes on that far past its last start.

    Each batch is a file in `folder`, which is for recordings of the same arguments: one that was stopped continues, and
    a finished one is read again. Batches are recorded on workers where the run has some.
    """
    recordings = []
    for temperature in temperatures:
        part = f"{name}.t{temperature:g}".replace("/", "_")
        made = record(
            competitors.target, competitors.of_ranks, prompts.ids, names=prompts.names, kinds=prompts.kinds,
            max_new_tokens=tokens, beyond=deepest + 1, ahead=deepest, temperature=temperature,
            eos_token_id=eos_token_id, seed=seed, about={"target": name, "choosing": list(choosing)},
            parts=folder / part, spread_by=competitors, title=f"{name}, temperature {temperature:g}")
        recordings.append(Recorded(made, prompts.ids))
    return recordings


# -------------------------------------------------------------------------------------------------------------- reading


@torch.inference_mode()
def read(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], written: Sequence[Sequence[int]], *,
         names: Sequence[str], kinds: Sequence[str], temperature: float = 0.0,
         about: Mapping[str, object] | None = None, limit: int | None = None,
         eos_token_id: int | Sequence[int] | None = None, ahead: int = AHEAD, siblings: int = 0,
         generator: torch.Generator | None = None) -> Trace:
    """The trace of continuations that exist already, each at least a root.

    target: the model that wrote them; None if it is not here, which leaves `target_probs` 0 and gives no `alpha`.
    drafters: causal language models of the target's vocabulary with tree attention, whose proposal depends on the path
        alone, or drafters with `read_ahead`, which read the target.
    written: the continuation of each prompt int64[T], its root first.
    names, kinds: of each prompt.
    limit: the transitions at which rounds may start (see `Trace.lengths`); None: all.
    eos_token_id: the tokens that end a text.
    ahead: how many tokens ahead `read_ahead` is read.
    siblings: the largest number of sampled children of a node for which `chances` are kept (see `expectation`), which
        needs a temperature above 0 and a generator; 0 for none.
    ValueError for a model without tree attention, or whose window is shorter than a text.
    """
    reading = {name: drafter for name, drafter in drafters.items() if isinstance(drafter, Drafter)}
    models = {name: drafter for name, drafter in drafters.items() if name not in reading}
    for model in [*models.values()] if target is None else [target, *models.values()]:
        check_attention(model)
    longest = max(map(len, prompts)) + max(map(len, written)) - 1
    for name, drafter in drafters.items():
        if reason := window_refusal(window_of(drafter), longest):
            raise ValueError(f"{name}: {reason}")
    vocabulary = max((vocabulary_of(model) for model in (models.values() if target is None else [target])), default=1)
    rows = max(1, min(MOST_ROWS, MOST_PROBABILITIES // (max(map(len, written)) * vocabulary)))
    parts, eos = [], token_set(eos_token_id)
    for first in range(0, len(written), rows):
        batch = slice(first, first + rows)
        texts = written[batch]
        arrays = _read(target, reading, models, prompts[batch], texts, temperature, ahead, siblings, generator)
        before = [text if limit is None else text[: limit + 1] for text in texts]
        parts.append(Trace(**arrays, lengths=np.array([len(text) - 1 for text in before]),
                           ended=np.array([text[-1] in eos for text in texts]),
                           loops=np.array([loop_start(text) for text in before]),
                           prompts=tuple(names[batch]), kinds=tuple(kinds[batch]),
                           about=dict(about or {}, temperature=temperature)))
    return join(parts)


def vocabulary_of(model) -> int:
    """Number of tokens that a model has."""
    return model.config.get_text_config().vocab_size


def window_of(model) -> int | None:
    """Positions that a model or drafter has; None without a limit."""
    if isinstance(model, Drafter):
        return model.window
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def branched_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]]) -> Tensor:
    """[S, V]: a model's logits at every transition of the rows, row by row.

    Prompts that share a beginning are prefilled once, and only transitions pass through the output layer.
    """
    cache = prefill(forward_pass(model, "layers"), prompts).cache
    block = pad_sequence([torch.tensor(row[:-1] or [0]) for row in written], batch_first=True).to(model.device)
    logits = tree_forward(model, block, torch.arange(block.shape[1], device=block.device), None, cache).logits
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return torch.cat([row[: len(text) - 1] for row, text in zip(logits, written)])


def _read(target, reading: Mapping[str, Drafter], models: Mapping[str, object], prompts: Sequence[Tensor],
          written: Sequence[Sequence[int]], temperature: float, ahead: int, siblings: int,
          generator: torch.Generator | None) -> dict[str, object]:
    """The arrays of one batch's trace, without lengths and loops; reading: drafters with `read_ahead`."""
    ends = np.array([len(row) - 1 for row in written])
    tokens = np.full((len(written), max(1, int(ends.max())) + 1), PADDING["tokens"], dtype=np.int32)
    for line, row in zip(tokens, written):
        line[: len(row)] = row
    inside = np.arange(tokens.shape[1] - 1)[None] < ends[:, None]  # [N, L], which transitions a row has
    following = torch.tensor([token for row in written for token in row[1:]], dtype=torch.long)  # [S], row by row

    def spread(values: Tensor, fill: float = 0, kind=np.float32) -> np.ndarray:
        """[N, L, ..]: values [S, ..] at the rows' transitions, `fill` elsewhere."""
        array = np.full((*inside.shape, *values.shape[1:]), fill, kind)
        array[inside] = values.cpu().numpy()
        return array

    arrays: dict[str, object] = {name: {} for name in BY_DRAFTER} | {"tokens": tokens}
    if target is None:
        arrays["target_probs"] = np.zeros(inside.shape, np.float32)
    else:
        logits = branched_logits(target, prompts, written)
        warped = warp(logits, temperature)
        law = warped if temperature else torch.softmax(logits, dim=-1)  # a one-hot shows no confidence
        arrays["target_probs"] = spread(law.gather(1, following.to(law.device)[:, None])[:, 0])
    _read_ahead(reading, target, prompts, written, ahead, arrays)
    for name, model in models.items():
        scores = branched_logits(model, prompts, written)
        scores = scores if target is None else scores[:, : warped.shape[1]].to(warped.device)
        token = following.to(scores.device)
        proposal = torch.softmax(scores / (temperature or 1.0), dim=-1)
        arrays["ranks"][name] = spread(rank_of(scores, token), fill=PADDING["ranks"], kind=np.int32)
        arrays["probs"][name] = spread(proposal.gather(1, token[:, None])[:, 0])
        if target is not None:
            arrays["alpha"][name] = spread(torch.minimum(warped, warp(scores, temperature)).sum(-1))
        if siblings:
            by_rule = chances(warped, proposal, token, siblings, generator)
            arrays["chances"] |= {f"{name}|{rule}": spread(values) for rule, values in by_rule.items()}
    return arrays


class _OneText:
    """A target that keeps its last outputs, so that several heads need one forward pass of a text."""

    def __init__(self, target):
        self.target, self.asked, self.tokens, self.outputs = target, None, None, None

    def __getattr__(self, name: str):
        return getattr(self.target, name)

    def __call__(self, tokens: Tensor, **settings):
        if self.asked != settings or not torch.equal(tokens, self.tokens):
            self.asked, self.tokens, self.outputs = settings, tokens, self.target(tokens, **settings)
        return self.outputs


def _read_ahead(drafters: Mapping[str, Drafter], target, prompts: Sequence[Tensor], written: Sequence[Sequence[int]],
                depth: int, arrays: dict[str, dict[str, np.ndarray]]) -> None:
    """Adds ranks and probabilities [N, L, depth] of each drafter, from `read_ahead` text by text, since heads read the
    same hidden states of the target.
    """
    once, shape = _OneText(target), (len(written), arrays["tokens"].shape[1] - 1, depth)
    for name in drafters:
        arrays["ranks"][name] = np.full(shape, PADDING["ranks"], np.int32)
        arrays["probs"][name] = np.zeros(shape, np.float32)
    for row, (prompt, following) in enumerate(zip(prompts, written) if drafters else ()):
        text, count = torch.cat([prompt, torch.tensor(following)]), len(following) - 1
        inside = np.add.outer(np.arange(max(1, count)), np.arange(depth)) < count
        for name, drafter in drafters.items():
            for kind, values in zip(("ranks", "probs"), drafter.read_ahead(once, [text], [len(prompt)], depth)):
                arrays[kind][name][row, : len(inside)][inside] = values[0].cpu().numpy()[inside]
