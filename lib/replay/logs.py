"""Logged answers as texts of which `recording.read` makes a trace without their target: the tokens that a served model
wrote decide every tree of top-k children, under greedy verification and under naive sampling at any temperature.

A log has JSON Lines, each one of
    {"messages": [..., {"role": "assistant", "content": ...}]}, a dialogue that ends with the answer;
    {"messages" or "prompt": ..., "choices": [...]}, the bodies of a request and of its response in one;
    {"request": {...}, "response": {...}}, these bodies apart, as `endpoint` writes them;
    {"custom_id": ..., "response": {"body": {...}}}, the batch API's output, whose request is the line of the batch's
    input file with the same `custom_id`.
An answer is exact where its token ids are logged (`token_ids` and `prompt_token_ids`, which vLLM returns if a request
asks for them by `return_token_ids`). Elsewhere its text is tokenised, which need not give the tokens that were written.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

from lib.lab import units
from lib.models import dialogue
from lib.replay.recording import Texts

BY_IDS, BY_TEXT = "token ids", "text alone"  # how an answer's tokens are known
MOST_REFUSED = 0.1  # share of lines that may be refused
BESIDE_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "thinking")  # of an answer's message
LOG_IDS = "log the ids of prompt and answer (vLLM: return_token_ids)"
ODD = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)  # from values of another form


class Refused(ValueError):
    """Why a line gives no answer."""


@dataclass(frozen=True)
class LoggedTexts(Texts):
    """Logged answers as tokens, EOS included where it ended one; known_by BY_IDS or BY_TEXT; temperatures: those that
    the log has; refused: by line the reason.
    """

    BY_ROW = (*Texts.BY_ROW, "known_by")

    known_by: Sequence[str]
    temperatures: Sequence[float]
    refused: Mapping[str, str]


def read(path: str | Path, tokenizer, *, eos_token_id: int | Sequence[int], inputs: str | Path = "") -> LoggedTexts:
    """The answers of a log as tokens of a tokenizer, in whose chat template they were asked for; those of one
    conversation are named as its turns. inputs: the batch API's input file, for its output.

    An answer that ended by itself gets a last token where its tokens lack it: the one that the server names, else the
    chat template's end of a turn, else the first EOS token. ValueError where more than MOST_REFUSED cannot be used.
    """
    requests, rows, refused, temperatures = {}, [], {}, set()
    usual_ends = [dialogue.end_of_turn(tokenizer), *([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)]
    for where, text in _lines(inputs) if inputs else ():
        try:
            row = json.loads(text)
            requests[str(row["custom_id"])] = row["body"]
        except ODD as error:
            raise ValueError(f"{inputs}: {where} is no request ({error}); give the batch's own input file") from None
    for where, text in _lines(path):
        try:
            row = json.loads(text)
            name = str(row.get("custom_id", row.get("id", where.rpartition(" ")[2])))
            request, response = _bodies(row, requests, name)
            temperature = request.get("temperature", response.get("temperature"))
            logged = set() if temperature is None else {float(temperature)}
            rows.append((where, name, str(row.get("category", "logged")), _dialogue(request, response),
                         *_tokens(request, response, tokenizer, usual_ends)))
            temperatures |= logged
        except ODD as error:
            form = "" if isinstance(error, Refused) else f"it has another form ({type(error).__name__}: {error})"
            refused[where] = form or str(error)
    if not rows or len(refused) > MOST_REFUSED * (len(refused) + len(rows)):
        reasons = "; ".join(f"{where}: {reason}" for where, reason in list(refused.items())[:3])
        raise ValueError(f"{path} has {len(rows)} answers that can be used, and {len(refused)} that cannot "
                         f"({reasons or 'it has no line'}); mend or remove these")
    places, names, kinds, dialogues, *texts, known_by = zip(*rows)
    count = Counter(names)
    names = [f"{name} ({where})" if count[name] > 1 else name for name, where in zip(names, places)]
    return LoggedTexts(_named_by_turn(names, dialogues), kinds, *texts, known_by, tuple(sorted(temperatures)), refused)


def _lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """The places and texts of a file's lines that are not blank."""
    path = Path(path).expanduser()
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig", errors="replace").split("\n"), 1):
        if line.strip():
            yield f"{path.name}, line {number}", line


def _bodies(row: Mapping, requests: Mapping[str, Mapping], name: str) -> tuple[Mapping, Mapping]:
    """The bodies of a line's request and of its response, which has one choice. requests: the batch API's input."""
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
    if len(choices := response.get("choices") or ()) != 1:
        raise Refused(f"the response has {len(choices)} choices; log one answer per line")
    return request, response


def _dialogue(request: Mapping, response: Mapping) -> tuple[str, ...]:
    """The messages of a request and the answer, white space around them aside; none for a completion."""
    if "messages" not in request:
        return ()
    answer = {"role": "assistant", **(response["choices"][0].get("message") or {})}
    return tuple(f"{turn['role']}: {str(turn.get('content')).strip()}" for turn in (*request["messages"], answer))


def _named_by_turn(names: Sequence[str], dialogues: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The names of answers; those whose dialogue begins with another one and its answer are turns of a conversation."""
    answered, turns, named = {messages: row for row, messages in enumerate(dialogues)}, {}, list(names)
    for row in sorted(range(len(names)), key=lambda row: len(dialogues[row])):
        begins = (dialogues[row][:length] for length in range(1, len(dialogues[row])))
        first = next((answered[messages] for messages in begins if messages in answered), row)
        turns.setdefault(first, []).append(row)
    for first, rows in turns.items():
        for turn, row in enumerate(rows if len(rows) > 1 else (), 1):
            named[row] = f"{names[first]}{units.TURN}{turn}"
    return tuple(named)


def _tokens(request: Mapping, response: Mapping, tokenizer,
            usual_ends: Sequence[int | None]) -> tuple[Tensor, list[int], bool, str]:
    """The prompt and the answer as tokens; whether the answer ended by itself; BY_IDS or BY_TEXT."""
    choice, = response["choices"]
    prompt_ids, ids = (_ids(choice.get(name) or response.get(name)) for name in ("prompt_token_ids", "token_ids"))
    message = choice.get("message") or {"content": choice.get("text")}
    beside = [name for name in BESIDE_TEXT if message.get(name)]
    if ((response.get("usage") or {}).get("completion_tokens_details") or {}).get("reasoning_tokens"):
        beside.append("reasoning that is not logged")
    if beside and not (ids and prompt_ids):
        raise Refused(f"the answer has {beside[0]} beside its text, and not how the model wrote both; {LOG_IDS}")
    known_by = BY_IDS if ids else BY_TEXT
    prompt_ids = prompt_ids or _of_request(request, response.get("created"), tokenizer)
    ids = list(ids or _of_text(_text(message, ""), tokenizer))
    end = choice.get("stop_reason")
    ends = [token for token in (end, *usual_ends) if isinstance(token, int)]
    # vLLM names the stop string that ended an answer; of other servers' answers any may be one.
    at_string = isinstance(end, str) or "stop_reason" not in choice and bool(request.get("stop"))
    if choice.get("finish_reason") == "stop" and not at_string and ids[-1] not in ends:
        ids.append(ends[0])
    if (largest := max(*prompt_ids, *ids)) >= len(tokenizer):
        raise Refused(f"it has token {largest}, the tokenizer has {len(tokenizer)}")
    return torch.tensor(prompt_ids), ids, ids[-1] in ends, known_by


def _of_request(request: Mapping, created: float | None, tokenizer) -> list[int]:
    """The tokens of a dialogue in the chat template, at the day of the answer; or of a completion's prompt, in which a
    server reads the texts of control tokens as such.
    """
    if "messages" in request:
        template = dict(request.get("chat_template_kwargs") or {})
        template |= {name: request[name] for name in ("tools", "reasoning_effort") if request.get(name)}
        messages = [{"role": turn["role"], "content": _text(turn, "\n")} for turn in request["messages"]]
        day = None if created is None else datetime.fromtimestamp(created, timezone.utc).date().isoformat()
        return dialogue.tokenise(messages, tokenizer, day, template).tolist()
    prompt = request.get("prompt")
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
    if tokens and not all(type(token) is int and token >= 0 for token in tokens):
        raise Refused(f"its token ids are {tokens!r:.40}, no numbers of tokens")
    return tokens or None
