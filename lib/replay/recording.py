"""Recording a trace, batch by batch: the target continues prompts, and one teacher-forced forward pass of each model
gives each token's rank and probability.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from lib.attention.registration import check_attention
from lib.decoding.checks import token_set, window_refusal
from lib.decoding.loop import continuations
from lib.drafters.drafter import Drafter
from lib.drafters.filling import rank_of
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import BY_RANKS
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.lab import cluster
from lib.models.prompts import PromptSet
from lib.replay import trace
from lib.replay.acceptance import DEEPEST
from lib.replay.expectation import chances
from lib.replay.trace import PADDING, Trace, join
from lib.verify.warping import warp

MOST_PROBABILITIES = 1 << 26  # of one model in memory at the same time
MOST_ROWS = 32
AHEAD = 8  # depths that are read of a drafter that proposes several tokens ahead
SECONDS = 10  # between two lines of progress


@dataclass(frozen=True)
class Texts:
    """Continuations of prompts int64[T]. written: the tokens of each, its root first; ended: whether EOS ended it."""

    BY_ROW = ("names", "kinds", "prompts", "written", "ended")

    names: Sequence[str]
    kinds: Sequence[str]
    prompts: Sequence[Tensor]
    written: Sequence[Sequence[int]]
    ended: Sequence[bool]

    def select(self, rows: Sequence[int]) -> "Texts":
        """Some of the texts, in this order."""
        return replace(self, **{name: tuple(getattr(self, name)[row] for row in rows) for name in self.BY_ROW})


def record(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], *, names: Sequence[str],
           kinds: Sequence[str], max_new_tokens: int, beyond: int = DEEPEST + 1, temperature: float = 0.0,
           eos_token_id: int | Sequence[int] | None = None, seed: object = None, rows: int = 32,
           labels: Mapping[str, object] | None = None, ahead: int = AHEAD, siblings: int = 0,
           parts: Path | None = None) -> Trace:
    """The target continues each prompt int64[T] by a root, `max_new_tokens` transitions at which rounds may start, and
    `beyond` further tokens, for a tree of so many levels and its bonus token; the result is read.

    drafters, ahead, siblings: as for `read`, of drafters those `of_ranks`; the run's workers record batches for
    `Competitors`, which they can make anew. names, kinds: of each prompt. rows: prompts in one batch. seed: of
    sampling, a plain value; each batch has a generator of its own. A temperature above 0 needs one. parts: a folder for
    the finished batches of this recording alone; the undamaged ones that are there are taken. ValueError where a window
    is too small.
    """
    settings = 1 + max_new_tokens + beyond, temperature, eos_token_id, ahead, siblings, seed
    batches = {first: PromptSet(*(tuple(values[first : first + rows]) for values in (names, kinds, prompts)))
               for first in range(0, len(prompts), rows)}
    paths = {first: parts / f"{first:06d}.npz" for first in batches} if parts else {}
    traces: dict[int, Trace] = {}
    for first, path in paths.items():
        with suppress(FileNotFoundError, ValueError):  # not recorded yet, or damaged
            traces[first] = trace.load(path)
    missing = [(first, batch) for first, batch in batches.items() if first not in traces]
    if isinstance(drafters, Competitors):
        fresh = cluster.spread(record_batch, missing, None, drafters, *settings)
    else:
        fresh = (record_batch(batch, target, drafters, *settings) for batch in missing)
    fresh = tqdm(fresh, parts and parts.name, len(batches), disable=not parts, initial=len(traces), mininterval=SECONDS,
                 file=sys.stdout, unit="batch")
    for made, (first, _) in zip(fresh, missing):
        if parts:
            trace.save(made, paths[first])
            made = trace.load(paths[first])  # rounded, as a recording that continues later reads it
        traces[first] = made
    whole = join([traces[first] for first in batches])
    return replace(whole, lengths=np.minimum(whole.lengths, max_new_tokens),
                   labels=dict(labels or {}, temperature=temperature))


def record_batch(batch: tuple[int, PromptSet], target, drafters: Mapping[str, object], num_tokens: int,
                 temperature: float, eos_token_id: int | Sequence[int] | None, ahead: int, siblings: int,
                 seed: object) -> Trace:
    """The part of a recording of one batch, without its limit: the number of its first prompt, and its prompts. target:
    None for that of `Competitors`.
    """
    (first, prompts), target = batch, drafters.target if target is None else target
    generator = None if seed is None else cluster.seeded(seed, first)
    written = continuations(target, prompts.ids, rows=len(prompts.ids), temperature=temperature,
                            max_new_tokens=num_tokens, generator=generator, eos_token_id=eos_token_id)
    ended = [row[-1] in token_set(eos_token_id) for row in written]
    return read(target, of_ranks(drafters), Texts(prompts.names, prompts.kinds, prompts.ids, written, ended),
                temperature=temperature, ahead=ahead, siblings=siblings, generator=generator)


class Competitors(dict):
    """The drafters of pairs of one target by name, as `make(pairs, *arguments)` gives them, a function of a module: the
    run's workers make them anew.
    """

    def __init__(self, make: Callable[..., Mapping[str, Drafter]], pairs: Sequence, *arguments):
        super().__init__(make(pairs, *arguments))
        self.target, self.made_by = pairs[0].target, (make, pairs, *arguments)

    def __reduce__(self):
        return Competitors, self.made_by


def of_ranks(drafters: Mapping[str, object]) -> dict[str, object]:
    """The drafters whose ranks decide what is accepted of every tree, as `read` takes them; the others draft again."""
    return {name: drafter.model if isinstance(drafter, LanguageModelDrafter) else drafter
            for name, drafter in drafters.items()
            if not isinstance(drafter, Drafter) or drafter.traits.replay == BY_RANKS}


@torch.inference_mode()
def read(target, drafters: Mapping[str, object], texts: Texts, *, temperature: float = 0.0, ahead: int = AHEAD,
         siblings: int = 0, generator: torch.Generator | None = None) -> Trace:
    """The trace of continuations that exist already, in which rounds may start at all transitions.

    target: the model that wrote them; None if it is not here, which leaves `target_probs` 0.
    drafters: language models of the target's vocabulary with tree attention, or drafters with `read_ahead`, which reads
    `ahead` tokens. siblings: the most sampled children of a node for which `chances` are kept (see `expectation`), with
    a temperature and a generator. ValueError for a model without tree attention, or with too short a window.
    """
    longest = max(map(len, texts.prompts)) + max(map(len, texts.written)) - 1  # the last token is not read
    for name, drafter in drafters.items():
        window = (drafter.window if isinstance(drafter, Drafter) else
                  getattr(drafter.config.get_text_config(), "max_position_embeddings", None))
        if reason := window_refusal(window, longest):
            raise ValueError(f"{name}: {reason}")
    models = [model for model in (target, *drafters.values()) if model is not None and not isinstance(model, Drafter)]
    for model in models:
        check_attention(model)
    vocabulary = max((model.config.get_text_config().vocab_size for model in models), default=1)
    rows = max(1, min(MOST_ROWS, MOST_PROBABILITIES // (max(map(len, texts.written)) * vocabulary)))
    numbers = range(len(texts.written))
    return join([_read(target, drafters, texts.select(numbers[first : first + rows]), temperature, ahead, siblings,
                       generator) for first in numbers[::rows]])


def teacher_forced(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]],
                   hidden_states: bool = False) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """A model's logits [S, V] at every transition, row by row, and with `hidden_states` those of each text without its
    last token, [1, T - 1, H] per layer. Texts are read together, or with hidden states, whose padding takes memory, one
    after another.
    """
    run, logits, states = forward_pass(model), [], []
    together = 1 if hidden_states else len(prompts)
    for first in range(0, len(prompts), together):
        rows = written[first : first + together]
        filled = prefill(run, prompts[first : first + together], hidden_states)
        block = pad_sequence([torch.tensor(row[:-1] or [0]) for row in rows], batch_first=True).to(model.device)
        out = run(block, torch.arange(block.shape[1], device=block.device), None, filled.cache,
                  output_hidden_states=hidden_states)
        logits += [row[: len(text) - 1] for row, text in zip(out.logits, rows)]
        if hidden_states:
            after_prompt = len(rows[0]) - 1
            states.append(tuple(torch.cat([layer, more[:, :after_prompt]], dim=1)
                                for layer, more in zip(filled.hidden_states, out.hidden_states)))
    whole = torch.cat(logits)
    return whole.to(torch.promote_types(whole.dtype, torch.float32)), states


def _read(target, drafters: Mapping[str, object], texts: Texts, temperature: float, ahead: int, siblings: int,
          generator: torch.Generator | None) -> Trace:
    """The trace of one batch."""
    lengths = np.array([len(row) - 1 for row in texts.written])
    tokens = np.full((len(lengths), max(1, int(lengths.max())) + 1), PADDING["tokens"], dtype=np.int32)
    for line, row in zip(tokens, texts.written):
        line[: len(row)] = row
    inside = np.arange(tokens.shape[1] - 1)[None] < lengths[:, None]  # [N, L], which transitions a row has
    following = torch.tensor([token for row in texts.written for token in row[1:]], dtype=torch.long)  # [S], by row

    def spread(values: Tensor, fill: float = 0, kind=np.float32) -> np.ndarray:
        """[N, L, ..]: values [S, ..] at the rows' transitions, `fill` elsewhere."""
        array = np.full((*inside.shape, *values.shape[1:]), fill, kind)
        array[inside] = values.cpu().numpy()
        return array

    by_drafter = {"ranks": {}, "probs": {}, "chances": {}}
    target_probs, states = np.zeros(inside.shape, np.float32), []
    if target is not None:
        reads_states = any(getattr(drafter, "wants_hidden_states", False) for drafter in drafters.values())
        logits, states = teacher_forced(target, texts.prompts, texts.written, reads_states)
        warped = warp(logits, temperature)
        shown = warped if temperature else torch.softmax(logits, dim=-1)  # a one-hot shows no confidence
        target_probs = spread(shown.gather(1, following.to(shown.device)[:, None])[:, 0])
    whole = [torch.cat([prompt, torch.tensor(row)]) for prompt, row in zip(texts.prompts, texts.written)]
    for name, drafter in drafters.items():
        if isinstance(drafter, Drafter):
            ranks, probs = drafter.read_ahead(states, whole, [*map(len, texts.prompts)], ahead)
            by_drafter["ranks"][name], by_drafter["probs"][name] = ranks.cpu().numpy(), probs.cpu().numpy()
            continue
        scores, _ = teacher_forced(drafter, texts.prompts, texts.written)
        scores = scores if target is None else scores[:, : warped.shape[1]].to(warped.device)
        token = following.to(scores.device)
        proposal = torch.softmax(scores / (temperature or 1.0), dim=-1)
        by_drafter["ranks"][name] = spread(rank_of(scores, token), fill=PADDING["ranks"], kind=np.int32)
        by_drafter["probs"][name] = spread(proposal.gather(1, token[:, None])[:, 0])
        if siblings:
            by_rule = chances(warped, proposal, token, siblings, generator)
            by_drafter["chances"] |= {f"{name}|{rule}": spread(values) for rule, values in by_rule.items()}
    return Trace(tokens, lengths, np.array(texts.ended), target_probs, **by_drafter, prompts=tuple(texts.names),
                 kinds=tuple(texts.kinds), labels={"temperature": temperature})
