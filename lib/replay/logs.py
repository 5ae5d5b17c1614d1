"""Logged answers as a trace, without their target: the tokens that a served model wrote decide every tree of chosen
children, under greedy verification and under naive sampling at any temperature.

Exact for an answer whose token ids were logged. Of text alone the tokens are those that the tokenizer makes of it, its
canonical ones, which need not be those that were written; `canonicalised` makes them of answers with ids, to compare.
Answers of a conversation that grows, each of which re-reads those before it, are its turns (see `stats.unit`).
`log_lines` reads the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lib.decoding.checks import token_set
from lib.lab import stats
from lib.models import dialogue
from lib.replay.log_lines import MOST_REFUSED, Answer, Logged, shared_length
from lib.replay.recording import read
from lib.replay.trace import Trace

WAYS = BY_IDS, BY_PIECES, BY_TEXT = "token ids", "logged tokens", "text alone"  # that tell an answer's tokens
DATED = ("strftime_now", "date_string")  # in templates that insert the day


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
    Turns of a conversation are named so, whichever order the log has them in.
    """
    turn, eos = dialogue.end_of_turn(tokenizer), [eos_token_id] if isinstance(eos_token_id, int) else [*eos_token_id]
    usual = turn if turn is not None else next((token for token in eos if token in token_set(eos)), None)
    ends = token_set(eos) | token_set(turn)
    by_ids = [answer for answer in logged.answers if answer.ids is not None]
    by_text = [answer for answer in logged.answers if answer.ids is None and answer.text is not None]
    cut_ids = shared_length([answer.ids for answer in by_ids if answer.ended_itself and answer.ids[-1] not in ends],
                            [answer.ids for answer in by_ids])
    cut_text = shared_length([answer.text for answer in by_text if answer.ended_itself],
                             [answer.text for answer in by_text])
    of_pieces, refused, usable, rows = cache(lambda: _by_text(tokenizer)), dict(logged.refused), [], []
    for answer in logged.answers:
        try:
            prompt, (ids, known_by) = _prompt(answer, tokenizer), _written(answer, tokenizer, of_pieces)
            ended = bool(ids) and ids[-1] in ends | token_set(answer.end)
            # A single token that the log lacks is the end itself.
            cut = answer.cut or answer.tokens is not None and answer.tokens > len(ids) + 1
            cut = cut or (len(answer.text) == cut_text if answer.ids is None else len(ids) == cut_ids)
            if not ended and answer.ended_itself and not cut:
                ended, last = True, usual if answer.end is None else answer.end
                ids = ids if last is None else [*ids, last]
            if not ids:
                raise ValueError("the answer is empty")
            if outside := [token for token in (*prompt.tolist(), *ids) if token >= len(tokenizer)]:
                raise ValueError(f"it has token {outside[0]}, the tokenizer has {len(tokenizer)}")
        except ValueError as reason:
            refused[answer.where] = str(reason)
            continue
        rows.append((prompt, ids, ended, known_by))
        usable.append(answer)
    if not rows or len(refused) > MOST_REFUSED * (len(refused) + len(rows)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{len(refused)} of {len(refused) + len(rows)} logged answers cannot be used ({told}); mend "
                         "or remove these, or give the tokenizer of the model that wrote them")
    prompts, written, ended, known_by = zip(*rows)
    temperatures = sorted({answer.temperature for answer in usable if answer.temperature is not None})
    return Texts(_turns(usable, prompts), tuple(answer.kind for answer in usable), prompts, written,
                 ended, known_by, tuple(temperatures), tuple(_notes(usable, ended, tokenizer)), refused)


def _turns(answers: Sequence[Answer], prompts: Sequence[Tensor]) -> tuple[str, ...]:
    """The names of answers; those whose dialogue begins with that of an earlier one and its answer are turns of one
    conversation. Where the log has tokens or texts alone, those whose prompt begins with the earlier prompt are.
    """
    asked, told = [], []  # parts of each prompt, and how the prompts of later turns begin
    for answer, ids in zip(answers, prompts):
        parts = [f"{message['role']}: {message['content'].strip()}" for message in answer.messages]
        asked.append(parts or [str(token) for token in ids.tolist()])
        told.append(parts + [f"assistant: {(answer.text or '').strip()}"] if parts else asked[-1])
    turns: dict[int, list[int]] = {}
    begun: list[int] = []  # in sorted order what begins a sequence stands before it, and before all that begin so
    for row in sorted(range(len(answers)), key=told.__getitem__):
        while begun and (len(asked[row]) == len(asked[begun[-1]])
                         or asked[row][:len(told[begun[-1]])] != told[begun[-1]]):
            begun.pop()
        begun.append(row)
        turns.setdefault(begun[0], []).append(row)
    names = [answer.name for answer in answers]
    for first, rows in turns.items():
        if len(rows) > 1:
            for turn, row in enumerate(sorted(rows, key=lambda row: (len(asked[row]), row)), 1):
                names[row] = f"{answers[first].name}{stats.TURN}{turn}"
    return tuple(names)


def _prompt(answer: Answer, tokenizer) -> Tensor:
    """int64[T]: the tokens of the prompt."""
    if answer.prompt_ids is not None:
        return torch.tensor(answer.prompt_ids, dtype=torch.long)
    if answer.messages:
        return dialogue.tokenise(answer.messages, tokenizer, answer.day, answer.template)
    ids = tokenizer(answer.prompt)["input_ids"]  # as a server reads a completion's prompt: control tokens are such
    if not ids:
        raise ValueError("its prompt is empty")
    return torch.tensor(ids, dtype=torch.long)


def _written(answer: Answer, tokenizer, by_text: Callable[[], Mapping[str, list[int]]]) -> tuple[list[int], str]:
    """The tokens of an answer, and one of `WAYS`, by which they are known. Its logged pieces are taken if together they
    are the answer's text and each is the text of exactly one token. by_text: see `_by_text`.
    """
    if answer.ids is not None:
        return list(answer.ids), BY_IDS
    if answer.pieces is not None and "".join(answer.pieces) == answer.text:
        known = [by_text().get(piece, []) for piece in answer.pieces]
        if all(len(ids) == 1 for ids in known):
            return [ids[0] for ids in known], BY_PIECES
    ids = tokenizer(answer.text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != answer.text:
        raise ValueError("the tokenizer does not give its text back")
    return ids, BY_TEXT


def _by_text(tokenizer) -> dict[str, list[int]]:
    """The tokens of each text that a single token has."""
    tokens: dict[str, list[int]] = {}
    for token in range(len(tokenizer)):
        tokens.setdefault(tokenizer.decode([token], clean_up_tokenization_spaces=False), []).append(token)
    return tokens


def _notes(answers: Sequence[Answer], ended: Sequence[bool], tokenizer) -> list[str]:
    """Sentences on a day that the log does not tell, and on answers of which it holds the beginning alone."""
    template, notes = str(getattr(tokenizer, "chat_template", "") or ""), []
    without = sum(answer.day is None and answer.prompt_ids is None and bool(answer.messages) for answer in answers)
    cut = sum(answer.ended_itself and not end for answer, end in zip(answers, ended))
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


def trace_of(texts: Texts, models: Mapping[str, object], *, temperature: float) -> Trace:
    """The trace of logged answers with the ranks of language models, which share the target's tokenizer.

    Probabilities of the target are not known: `target_probs` is 0, and there is no alpha.
    """
    trace = read(None, models, texts.prompts, texts.written, names=texts.names, kinds=texts.kinds,
                 temperature=temperature)
    return replace(trace, ended=np.array(texts.ended))
