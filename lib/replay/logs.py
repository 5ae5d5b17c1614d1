"""Logged answers as a trace, without their target: the tokens that a served model wrote decide every tree of chosen
children, under greedy verification and under naive sampling at any temperature.

Exact for an answer whose token ids were logged. Of text alone the tokens are those that the tokenizer makes of it, its
canonical ones, which need not be those that were written; `canonicalised` makes them of answers with ids, to compare.
`log_lines` reads the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lib.decoding.checks import token_set
from lib.drafters.filling import rank_of
from lib.models import dialogue
from lib.replay.log_lines import MOST_REFUSED, STOP, Answer, Logged
from lib.replay.reading import MOST_PROBABILITIES, MOST_ROWS, branched_logits
from lib.replay.trace import PADDING, Trace, join, loop_start

BY_IDS, BY_PIECES, BY_TEXT = "token ids", "logged tokens", "text alone"  # what an answer's tokens are known by
DATED = ("strftime_now", "date_string")  # what templates call that insert the day


@dataclass(frozen=True)
class Texts:
    """Logged answers as tokens. prompts: int64[T] each; written: the answers' ids, EOS included where it ended one.

    ended: whether the answer ended by itself. known_by: BY_IDS, BY_PIECES or BY_TEXT. temperatures: those that the log
    has. notes: sentences for the reader. refused: by place of the line the reason.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    prompts: tuple[Tensor, ...]
    written: tuple[list[int], ...]
    ended: tuple[bool, ...]
    known_by: tuple[str, ...]
    temperatures: tuple[float, ...]
    notes: tuple[str, ...]
    refused: Mapping[str, str]


def tokenised(logged: Logged, tokenizer, *, eos_token_id: int | Sequence[int]) -> Texts:
    """The answers of a log as tokens of a tokenizer, in whose chat template they were asked for.

    An answer that ended by itself gets the first EOS token as its last, unless its ids have one. An answer whose text
    the tokenizer does not give back is refused. ValueError where more than MOST_REFUSED are.
    """
    eos, refused, rows = sorted(token_set(eos_token_id)), dict(logged.refused), []
    by_text = cache(lambda: _by_text(tokenizer))
    for answer in logged.answers:
        try:
            rows.append(_row(answer, tokenizer, eos, by_text))
        except ValueError as reason:
            refused[answer.where] = str(reason)
    if not rows or len(refused) > MOST_REFUSED * (len(refused) + len(rows)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{len(refused)} of {len(refused) + len(rows)} logged answers cannot be used ({told}); mend "
                         "or remove these, or give the tokenizer of the model that wrote them")
    kept = [answer for answer in logged.answers if answer.where not in refused]
    columns = zip(*rows)
    return Texts(tuple(answer.name for answer in kept), tuple(answer.kind for answer in kept), *columns,
                 tuple(sorted({answer.temperature for answer in kept if answer.temperature is not None})),
                 tuple(_notes(kept, tokenizer)), refused)


def _row(answer: Answer, tokenizer, eos: Sequence[int], by_text: Callable) -> tuple[Tensor, list[int], bool, str]:
    """Prompt, written ids, whether the answer ended by itself, and what its tokens are known by."""
    prompt = _prompt(answer, tokenizer)
    ids, known_by = _written(answer, tokenizer, by_text)
    ended = answer.finish == STOP and not answer.stopped or bool(ids) and ids[-1] in eos
    ids = ids + eos[:1] if ended and not (ids and ids[-1] in eos) else ids
    if not ids:
        raise ValueError("the answer is empty")
    size = len(tokenizer)
    outside = [token for token in (*prompt.tolist(), *ids) if token >= size]
    if outside:
        raise ValueError(f"it has token {outside[0]}, the tokenizer has {size}")
    return prompt, ids, ended, known_by


def _prompt(answer: Answer, tokenizer) -> Tensor:
    if answer.prompt_ids is not None:
        return torch.tensor(answer.prompt_ids, dtype=torch.long)
    if answer.messages:
        return dialogue.tokenise(answer.messages, tokenizer, day=answer.day)
    ids = tokenizer(answer.prompt)["input_ids"]  # as a server reads a completion's prompt: control tokens are such
    if not ids:
        raise ValueError("its prompt is empty")
    return torch.tensor(ids, dtype=torch.long)


def _written(answer: Answer, tokenizer, by_text: Callable[[], dict]) -> tuple[list[int], str]:
    if answer.ids is not None:
        return list(answer.ids), BY_IDS
    if answer.pieces is not None and (ids := _of_pieces(answer.pieces, answer.text, by_text())) is not None:
        return ids, BY_PIECES
    ids = tokenizer(answer.text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != answer.text:
        raise ValueError("the tokenizer does not give its text back")
    return ids, BY_TEXT


def _of_pieces(pieces: Sequence[str], text: str, known: Mapping[str, list[int]]) -> list[int] | None:
    """The ids of logged tokens that are texts; None unless each is one token's alone, and all are the answer's."""
    found = [known.get(piece, []) for piece in pieces]
    if "".join(pieces) != text or any(len(ids) != 1 for ids in found):
        return None
    return [ids[0] for ids in found]


def _by_text(tokenizer) -> dict[str, list[int]]:
    """The tokens of each text that a single token has."""
    found: dict[str, list[int]] = {}
    for token in range(len(tokenizer)):
        found.setdefault(tokenizer.decode([token], clean_up_tokenization_spaces=False), []).append(token)
    return found


def _notes(answers: Sequence[Answer], tokenizer) -> list[str]:
    template = str(getattr(tokenizer, "chat_template", "") or "")
    without = sum(answer.day is None and answer.prompt_ids is None and bool(answer.messages) for answer in answers)
    if without and any(name in template for name in DATED):
        return [f"the chat template inserts the day, which the log does not tell for {without} of {len(answers)} "
                "answers: today's was taken"]
    return []


def select(texts: Texts, rows: Sequence[int]) -> Texts:
    """Some of the answers, in this order."""
    return replace(texts, **{name: tuple(getattr(texts, name)[row] for row in rows)
                             for name in ("names", "kinds", "prompts", "written", "ended", "known_by")})


def canonicalised(texts: Texts, tokenizer) -> Texts:
    """The same answers, each with the tokens that the tokenizer makes of its text."""
    def again(ids: Sequence[int]) -> list[int]:
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"] or list(ids)

    return replace(texts, written=tuple(map(again, texts.written)), known_by=(BY_TEXT,) * len(texts.written))


@torch.inference_mode()
def trace_of(texts: Texts, models: Mapping[str, object], *, about: Mapping[str, object], temperature: float) -> Trace:
    """The trace of logged answers with the ranks of language models, which have to share the target's tokenizer.

    Probabilities of the target are not known: `target_probs` is 0, and there is no alpha. ValueError for a model with
    fewer tokens than the answers have.
    """
    size = 1 + max(max(max(prompt.tolist(), default=0), *ids) for prompt, ids in zip(texts.prompts, texts.written))
    for name, model in models.items():
        if (own := model.config.get_text_config().vocab_size) < size:
            raise ValueError(f"model {name!r} has {own} tokens, the answers have token {size - 1}: take a model with "
                             "the target's own tokenizer")
    longest, parts = max(map(len, texts.written)), []
    vocabulary = max([model.config.get_text_config().vocab_size for model in models.values()], default=1)
    rows = max(1, min(MOST_ROWS, MOST_PROBABILITIES // (longest * vocabulary)))
    for first in range(0, len(texts.written), rows):
        batch = slice(first, first + rows)
        parts.append(_part(texts, batch, models, temperature))
    return replace(join(parts), about=dict(about, temperature=temperature))


def _part(texts: Texts, batch: slice, models: Mapping[str, object], temperature: float) -> Trace:
    """The trace of some answers."""
    written, prompts = texts.written[batch], texts.prompts[batch]
    ends = np.array([len(row) - 1 for row in written])
    width = max(1, int(ends.max()))
    tokens = np.full((len(written), width + 1), PADDING["tokens"], dtype=np.int32)
    for own, row in zip(tokens, written):
        own[: len(row)] = row
    inside = np.arange(width)[None] < ends[:, None]
    true = torch.tensor([token for row in written for token in row[1:]], dtype=torch.long)
    ranks, probs = {}, {}
    for name, model in models.items():
        scores = branched_logits(model, prompts, written)
        own = true.to(scores.device)
        ranks[name] = np.full(inside.shape, PADDING["ranks"], np.int32)
        ranks[name][inside] = rank_of(scores, own).cpu().numpy()
        probs[name] = np.zeros(inside.shape, np.float32)
        law = torch.softmax(scores / (temperature or 1.0), dim=-1)
        probs[name][inside] = law.gather(1, own[:, None])[:, 0].cpu().numpy()
    return Trace(tokens=tokens, lengths=ends, ended=np.array(texts.ended[batch]),
                 loops=np.array([loop_start(row) for row in written]), target_probs=np.zeros(inside.shape, np.float32),
                 ranks=ranks, probs=probs, alpha={}, prompts=texts.names[batch], kinds=texts.kinds[batch])
