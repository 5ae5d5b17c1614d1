"""Logged answers as a trace, without their target: the tokens that a served model wrote decide every tree of chosen
children, under greedy verification and under naive sampling at any temperature.

Exact for an answer whose token ids were logged. Of text alone the tokens are those that the tokenizer makes of it, its
canonical ones, which need not be those that were written; `canonicalised` makes them of answers with ids, to compare.
`log_lines` reads the file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lib.decoding.checks import token_set
from lib.drafters.filling import rank_of
from lib.models import dialogue
from lib.replay.log_lines import MOST_REFUSED, STOP, Answer, Logged, shared_length
from lib.replay.reading import MOST_PROBABILITIES, MOST_ROWS, branched_logits
from lib.replay.trace import PADDING, Trace, join, loop_start

WAYS = BY_IDS, BY_PIECES, BY_TEXT = "token ids", "logged tokens", "text alone"  # what an answer's tokens are known by
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

    An answer that ended by itself gets a last token where its tokens lack it: the one that the server tells, else the
    chat template's end of a turn, else the first EOS token. One of which the log holds the beginning alone did not end.
    An answer whose text the tokenizer does not give back is refused. ValueError where more than MOST_REFUSED are.
    """
    ends, refused, kept, rows = _Ends.of(logged.answers, tokenizer, eos_token_id), dict(logged.refused), [], []
    by_text = cache(lambda: _by_text(tokenizer))
    for answer in logged.answers:
        try:
            rows.append(_row(answer, tokenizer, ends, by_text))
            kept.append(answer)
        except ValueError as reason:
            refused[answer.where] = str(reason)
    if not rows or len(refused) > MOST_REFUSED * (len(refused) + len(rows)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{len(refused)} of {len(refused) + len(rows)} logged answers cannot be used ({told}); mend "
                         "or remove these, or give the tokenizer of the model that wrote them")
    prompts, written, ended, known_by = zip(*rows)
    return Texts(tuple(answer.name for answer in kept), tuple(answer.kind for answer in kept), prompts, written, ended,
                 known_by, tuple(sorted({answer.temperature for answer in kept if answer.temperature is not None})),
                 tuple(_notes(kept, ended, tokenizer)), refused)


@dataclass(frozen=True)
class _Ends:
    """How answers end. eos: tokens that end one; usual: the one that is appended; cut: lengths at which a log was cut.
    """

    eos: frozenset[int]
    usual: int | None
    cut_ids: int | None
    cut_text: int | None

    @classmethod
    def of(cls, answers: Sequence[Answer], tokenizer, eos_token_id: int | Sequence[int]) -> "_Ends":
        turn, listed = dialogue.end_of_turn(tokenizer), _in_order(eos_token_id)
        eos = token_set(listed) | token_set(turn)
        by_ids = [answer for answer in answers if answer.ids is not None]
        texts = [answer for answer in answers if answer.ids is None and answer.text is not None]
        open_ends = [answer.ids for answer in by_ids if _stopped_itself(answer) and not {answer.ids[-1]} & eos]
        return cls(eos, turn if turn is not None else next(iter(listed), None),
                   shared_length(open_ends, [answer.ids for answer in by_ids]),
                   shared_length([answer.text for answer in texts if _stopped_itself(answer)],
                                 [answer.text for answer in texts]))

    def cut(self, answer: Answer, ids: Sequence[int]) -> bool:
        """Whether the log holds the beginning alone; a single token that it lacks is the end itself."""
        if answer.cut or answer.tokens is not None and answer.tokens > len(ids) + 1:
            return True
        return len(answer.text) == self.cut_text if answer.ids is None else len(ids) == self.cut_ids


def _in_order(eos_token_id: int | Iterable[int]) -> list[int]:
    each = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    return [token for token in each if token in token_set(each)]


def _stopped_itself(answer: Answer) -> bool:
    return answer.finish == STOP and not answer.stopped


def _row(answer: Answer, tokenizer, ends: _Ends, by_text: Callable) -> tuple[Tensor, list[int], bool, str]:
    """Prompt, written ids, whether the answer ended by itself, and what its tokens are known by."""
    prompt = _prompt(answer, tokenizer)
    ids, known_by = _written(answer, tokenizer, by_text)
    ended = bool(ids) and ids[-1] in ends.eos | token_set(answer.end)
    if not ended and _stopped_itself(answer) and not ends.cut(answer, ids):
        ended, last = True, ends.usual if answer.end is None else answer.end
        ids = ids if last is None else [*ids, last]
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
        return dialogue.tokenise(answer.messages, tokenizer, answer.day, answer.template)
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


def _notes(answers: Sequence[Answer], ended: Sequence[bool], tokenizer) -> list[str]:
    template = str(getattr(tokenizer, "chat_template", "") or "")
    without = sum(answer.day is None and answer.prompt_ids is None and bool(answer.messages) for answer in answers)
    cut, notes = sum(_stopped_itself(answer) and not end for answer, end in zip(answers, ended)), []
    if without and any(name in template for name in DATED):
        notes.append(f"the chat template inserts the day, which the log does not tell for {without} of {len(answers)} "
                     "answers: today's was taken")
    if cut:
        notes.append(f"of {cut} of {len(answers)} answers the log holds the beginning alone, by the server's count or "
                     "by a length that they share: these count as not ended; log whole answers (vLLM: --max-log-len)")
    return notes


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
