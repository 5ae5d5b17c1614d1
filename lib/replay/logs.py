"""Logged answers as a trace, without their target: the tokens that a served model wrote decide every tree of top-k
children, under greedy verification and under naive sampling at any temperature.

A log has JSON Lines, each one of
    {"messages": [..., {"role": "assistant", "content": ...}]}, a dialogue that ends with the answer;
    {"messages" or "prompt": ..., "choices": [...]}, the bodies of a request and of its response in one;
    {"request": {...}, "response": {...}}, these bodies apart, as `endpoint` writes them;
    {"custom_id": ..., "response": {"body": {...}}}, the batch API's output, whose request is the line of the batch's
    input file with the same `custom_id`.
An answer is exact where its token ids are logged (`token_ids` and `prompt_token_ids`, which vLLM returns if a request
asks for them by `return_token_ids`). Elsewhere its text is tokenised, which need not give the tokens that were written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

from lib.lab import json_text, stats
from lib.models import dialogue
from lib.replay.recording import Texts
from lib.replay.recording import read as read_trace
from lib.replay.trace import Trace

BY_IDS, BY_TEXT = "token ids", "text alone"  # how an answer's tokens are known
MOST_REFUSED = 0.1  # share of lines that may be refused
LARGEST_ID = 2**31
BESIDE_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "thinking")  # of an answer's message
LOG_IDS = "log the ids of prompt and answer (vLLM: return_token_ids)"
ODD = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)  # from values of another form


class Refused(ValueError):
    """Why a line gives no answer."""


@dataclass(frozen=True)
class Line:
    """One line of a log. where: its file and number. request, response: the bodies; choice: the response's only one.

    temperature: at which the answer was written; None where the log has none.
    """

    where: str
    name: str
    kind: str
    request: Mapping
    response: Mapping
    choice: Mapping
    temperature: float | None


@dataclass(frozen=True)
class Logged:
    """The lines of a log, and by the place of each one that holds no request with its answer the reason."""

    lines: Sequence[Line]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class LoggedTexts(Texts):
    """Logged answers as tokens, EOS included where it ended one.

    known_by: BY_IDS or BY_TEXT. temperatures: those that the log has. refused: by place of the line the reason.
    """

    known_by: tuple[str, ...]
    temperatures: tuple[float, ...]
    refused: Mapping[str, str]


# -------------------------------------------------------------------------------------------------------------- reading


def read(path: str | Path, inputs: str | Path = "") -> Logged:
    """The lines of a log; inputs: the batch API's input file, for its output.

    A line that has no request with its answer is refused with the reason. FileNotFoundError without the file;
    ValueError where none remains, or where more than MOST_REFUSED are refused.
    """
    requests, lines, refused = {}, [], {}
    for where, text in _texts(inputs) if inputs else ():
        try:
            row = json_text.loads(text)
            requests[str(row["custom_id"])] = row["body"]
        except ODD as error:
            raise ValueError(f"{inputs}: {where} is no request ({error}); give the batch's own input file") from None
    for where, text in _texts(path):
        try:
            lines.append(_line(json_text.loads(text), requests, where))
        except ODD as error:
            refused[where] = _reason(error)
    _check_share(str(path), len(lines), refused)
    count = Counter(line.name for line in lines)
    return Logged([replace(line, name=f"{line.name} ({line.where})") if count[line.name] > 1 else line
                   for line in lines], refused)


def _texts(path: str | Path) -> Iterator[tuple[str, str]]:
    """The places and texts of a file's lines that are not blank."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no log at {path.resolve()}; give a file of JSON Lines")
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig", errors="replace").split("\n"), 1):
        if line.strip():
            yield f"{path.name}, line {number}", line


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"it has another form ({type(error).__name__}: {error})"


def _check_share(log: str, usable: int, refused: Mapping[str, str]) -> None:
    """ValueError where no answer can be used, or where more than MOST_REFUSED cannot."""
    if not usable or len(refused) > MOST_REFUSED * (len(refused) + usable):
        reasons = "; ".join(f"{where}: {reason}" for where, reason in list(refused.items())[:3])
        raise ValueError(f"{log} has {usable} answers that can be used, and {len(refused)} that cannot "
                         f"({reasons or 'it has no line'}); mend or remove these")


def _line(row: Mapping, requests: Mapping[str, Mapping], where: str) -> Line:
    """The parts of a line. requests: those of the batch API's input."""
    name = str(row.get("custom_id", row.get("id", where.rpartition(" ")[2])))
    request = response = row
    if "response" in row:
        if row.get("error") or row["response"].get("status_code", 200) != 200:
            raise Refused("the request failed")
        if "request" not in row and name not in requests:
            raise Refused(f"the request {name!r} is in no input file; give that of the batch")
        request, response = row.get("request", requests.get(name)), row["response"]
        request, response = request.get("body", request), response.get("body", response)
    elif "choices" not in row:
        if not row.get("messages") or row["messages"][-1].get("role") != "assistant":
            raise Refused(f"it has {', '.join(row) or 'nothing'}; a response, or messages with the assistant's answer "
                          "last, belong there")
        *before, answer = row["messages"]
        request, response = {**row, "messages": before}, {**row, "choices": [{**row, "message": answer}]}
    choices = response.get("choices") or ()
    if len(choices) != 1:
        raise Refused(f"the response has {len(choices)} choices; log one answer per line")
    temperature = request.get("temperature", response.get("temperature"))
    temperature = None if temperature is None else float(temperature)
    return Line(where, name, str(row.get("category", "logged")), request, response, choices[0], temperature)


# --------------------------------------------------------------------------------------------------------------- tokens


def tokenised(logged: Logged, tokenizer, *, eos_token_id: int | Sequence[int]) -> LoggedTexts:
    """The answers of a log as tokens of a tokenizer, in whose chat template they were asked for.

    An answer that ended by itself gets a last token where its tokens lack it: the one that the server names, else the
    chat template's end of a turn, else the first EOS token. ValueError where more than MOST_REFUSED cannot be used.
    Answers of one conversation are named as its turns.
    """
    usual_ends = [dialogue.end_of_turn(tokenizer), *([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)]
    refused, rows = dict(logged.refused), []
    for line in logged.lines:
        try:
            rows.append((line, *_tokens(line, tokenizer, usual_ends)))
        except ODD as error:
            refused[line.where] = _reason(error)
    _check_share("the log", len(rows), refused)
    lines, dialogues, prompts, written, ended, known_by = zip(*rows)
    names = _named_by_turn([line.name for line in lines], dialogues, prompts)
    return LoggedTexts(names, tuple(line.kind for line in lines), prompts, written, ended, known_by,
                       tuple(sorted({line.temperature for line in lines} - {None})), refused)


def _tokens(line: Line, tokenizer, usual_ends: Sequence[int | None]) -> tuple[list[str], Tensor, list[int], bool, str]:
    """The messages with the answer as texts, none where the log has ids of the prompt; the prompt and the answer as
    tokens; whether the answer ended by itself; BY_IDS or BY_TEXT.
    """
    request, response, choice = line.request, line.response, line.choice
    prompt_ids, ids = (_ids(choice.get(name) or response.get(name)) for name in ("prompt_token_ids", "token_ids"))
    message = choice.get("message") or {"content": choice.get("text")}
    beside = [name for name in BESIDE_TEXT if message.get(name)]
    if ((response.get("usage") or {}).get("completion_tokens_details") or {}).get("reasoning_tokens"):
        beside.append("reasoning that is not logged")
    if beside and not (ids and prompt_ids):
        raise Refused(f"the answer has {beside[0]} beside its text, and not how the model wrote both; {LOG_IDS}")
    known_by, texts = BY_TEXT if ids is None else BY_IDS, []
    if prompt_ids is None and "messages" in request:
        messages = [{"role": turn["role"], "content": _text(turn, "\n")} for turn in request["messages"]]
        prompt_ids = _of_messages(messages, request, response.get("created"), tokenizer)
        texts = [f"{turn['role']}: {turn['content'].strip()}" for turn in messages]
        texts.append(f"assistant: {str(message.get('content')).strip()}")
    elif prompt_ids is None:
        prompt_ids = _of_completion(request.get("prompt"), tokenizer)
    ids = list(ids or _of_text(_text(message, ""), tokenizer))
    end = choice.get("stop_reason")
    ends = [token for token in (end, *usual_ends) if isinstance(token, int)]
    # vLLM names the stop string that ended an answer; of other servers' answers any may be one.
    at_string = isinstance(end, str) or "stop_reason" not in choice and bool(request.get("stop"))
    if choice.get("finish_reason") == "stop" and not at_string and ids[-1] not in ends:
        ids.append(ends[0])
    if (largest := max(*prompt_ids, *ids)) >= len(tokenizer):
        raise Refused(f"it has token {largest}, the tokenizer has {len(tokenizer)}")
    return texts, torch.tensor(prompt_ids), ids, ids[-1] in ends, known_by


def _of_messages(messages: Sequence[dialogue.Message], request: Mapping, created: float | None, tokenizer) -> list[int]:
    """The tokens of a dialogue in the chat template, with the request's arguments for it, at the day of the answer."""
    template = dict(request.get("chat_template_kwargs") or {})
    template |= {name: request[name] for name in ("tools", "reasoning_effort") if request.get(name)}
    day = None if created is None else datetime.fromtimestamp(created, timezone.utc).date().isoformat()
    return dialogue.tokenise(messages, tokenizer, day, template).tolist()


def _of_completion(prompt, tokenizer) -> list[int]:
    """The tokens of a completion's prompt, in which a server reads the texts of control tokens as such."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt, = prompt
    if not prompt:
        raise Refused("the request has neither messages nor a prompt")
    return tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else _ids(prompt)


def _of_text(text: str, tokenizer) -> list[int]:
    """The tokens of an answer's text."""
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if not ids or tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
        raise Refused("the tokenizer does not give its text back" if ids else "the answer is empty")
    return ids


def _text(message: Mapping, joint: str) -> str:
    """The text of a message, which may have several parts."""
    content = message.get("content")
    if content is None or message.get("tool_calls"):
        raise Refused(f"a message calls a tool, or has no text; {LOG_IDS}")
    parts = [{"text": content}] if isinstance(content, str) else content
    if others := [part.get("type") for part in parts if not isinstance(part.get("text"), str)]:
        raise Refused(f"a part of a message is of the type {others[0]!r}, no text")
    return joint.join(part["text"] for part in parts)


def _ids(tokens) -> list[int] | None:
    """Token ids; None where there are none."""
    if tokens and not all(type(token) is int and 0 <= token < LARGEST_ID for token in tokens):
        raise Refused(f"its token ids are {tokens!r:.40}, no numbers of tokens")
    return tokens or None


def _named_by_turn(names: Sequence[str], dialogues: Sequence[list[str]], prompts: Sequence[Tensor]) -> tuple[str, ...]:
    """The names of answers; those whose dialogue begins with that of an earlier one and its answer are turns of one
    conversation. Where the log has tokens or texts alone, those whose prompt begins with the earlier prompt are.
    """
    begins = [texts or [str(token) for token in ids.tolist()] for texts, ids in zip(dialogues, prompts)]
    prefixes = [parts[:-1] if texts else parts for parts, texts in zip(begins, dialogues)]  # without the answer
    turns: dict[int, list[int]] = {}
    earlier: list[int] = []  # rows with which the next in sorted order may begin, the first turn first
    for row in sorted(range(len(names)), key=begins.__getitem__):
        while earlier and (len(prefixes[row]) == len(prefixes[earlier[-1]])
                           or prefixes[row][:len(begins[earlier[-1]])] != begins[earlier[-1]]):
            earlier.pop()
        earlier.append(row)
        turns.setdefault(earlier[0], []).append(row)
    named = list(names)
    for first, rows in turns.items():
        for turn, row in enumerate(sorted(rows, key=lambda row: (len(prefixes[row]), row)), 1):
            named[row] = f"{names[first]}{stats.TURN}{turn}" if len(rows) > 1 else names[row]
    return tuple(named)


# ---------------------------------------------------------------------------------------------------------------- trace


def select(texts: LoggedTexts, rows: Sequence[int]) -> LoggedTexts:
    """Some of the answers, in this order."""
    part = texts.select(rows)
    return replace(texts, **vars(part), known_by=tuple(texts.known_by[row] for row in rows))


def canonicalised(texts: LoggedTexts, tokenizer) -> LoggedTexts:
    """The same answers, each with the tokens that the tokenizer makes of its text."""
    decoded = [tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in texts.written]
    written = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in decoded]
    return replace(texts, known_by=(BY_TEXT,) * len(written),
                   written=tuple(ids or before for ids, before in zip(written, texts.written)))


def trace_of(texts: LoggedTexts, models: Mapping[str, object], *, temperature: float) -> Trace:
    """The trace of logged answers with the ranks of language models, which share the target's tokenizer.

    Probabilities of the target are not known: `target_probs` is 0, and there is no alpha.
    """
    return read_trace(None, models, texts, temperature=temperature)
