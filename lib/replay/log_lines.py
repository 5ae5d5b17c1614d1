"""Answers that a served model has logged, in the forms in which clients and servers write them.

A file has JSON Lines or the lines of a vLLM server's log. A JSON line is one of
    a dialogue of OpenAI's chat form, `messages` with the assistant's answer last;
    a line of the batch API's output, whose request is the line of the input file with the same `custom_id`;
    {"request": {...}, "response": {...}}, the bodies of a completion or chat completion.
Token ids are read where there are some: `token_ids` and `prompt_token_ids` as vLLM returns them, logprobs with ids as
their tokens ("token_id:17"), and vLLM's log. vLLM's log needs --enable-log-requests and --enable-log-outputs, and
without VLLM_LOGGING_LEVEL=DEBUG has no prompts in versions from 0.11 on.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from lib.lab import json_text
from lib.models.prompts import ROLES

STOP = "stop"  # why an answer ended: by itself, or at a stop string
TOKEN_ID = "token_id:"  # before an id that a server gives in the place of a token
MOST_REFUSED = 0.1  # share of lines that may be refused

_VLLM = re.compile(r"(?P<what>Received request|Request|Generated response) (?P<id>\S+?)"
                   r"(?P<delta> \(streaming (?:delta|complete)\))?(?: details)?: (?P<rest>.*)$")
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_FIELD = re.compile(rf"(?<!\w)(?P<name>prompt|output|prompt_token_ids|output_token_ids|finish_reason|temperature|stop)"
                    rf"(?:: |=)(?P<value>{_QUOTED}|\[[^\]]*\]|[^,\s)]+)")


@dataclass(frozen=True)
class Answer:
    """A logged answer. where: its file and line. messages: the dialogue that it answers; or prompt: a plain text.

    text, ids: the answer as text and as token ids, prompt_ids: the prompt's; None where the log has none. finish: STOP,
    or what else the server calls it, empty where it is not told. stopped: whether a stop string may have ended it.
    temperature, day: None where the log has none. pieces: the texts of the answer's tokens.
    """

    where: str
    name: str
    kind: str
    messages: Sequence[Mapping[str, str]] = ()
    prompt: str | None = None
    text: str | None = None
    ids: Sequence[int] | None = None
    prompt_ids: Sequence[int] | None = None
    finish: str = ""
    stopped: bool = False
    temperature: float | None = None
    day: str | None = None
    pieces: Sequence[str] | None = None


@dataclass(frozen=True)
class Logged:
    """The answers of a log, and by the place of each line that gave none the reason."""

    answers: list[Answer]
    refused: dict[str, str] = field(default_factory=dict)


def read(path: str | Path, inputs: str | Path = "") -> Logged:
    """The answers of a log; inputs: the batch API's input file, for its output.

    A line that gives no answer is refused with the reason. FileNotFoundError without the file; ValueError where it has
    no answer, or where more than MOST_REFUSED of its lines are refused.
    """
    asked = {str(row.get("custom_id")): _body(row) for row in _objects(Path(inputs).expanduser())} if inputs else {}
    path, refused = Path(path).expanduser(), {}
    lines = _lines(path)
    first = next((line for _, line in lines if line.strip()), "")
    found = _of_json(path, lines, asked, refused) if first.lstrip().startswith("{") else _of_vllm(path, lines, refused)
    answers = _named_apart(found)
    if not answers or len(refused) > MOST_REFUSED * (len(refused) + len(answers)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{path} has {len(answers)} answers that can be read, and {len(refused)} lines that cannot "
                         f"({told or 'it has no line of a known form'}); mend or remove these, and log whole answers")
    return Logged(answers, refused)


class Refused(ValueError):
    """Why a line gives no answer."""


# ----------------------------------------------------------------------------------------------------------- JSON lines


def _of_json(path: Path, lines, asked: Mapping[str, Mapping], refused: dict[str, str]) -> list[Answer]:
    answers = []
    for number, line in lines:
        where = f"{path.name}, line {number}"
        if not line.strip():
            continue
        try:
            answers += _answers(_object(line), asked, where, str(number))
        except Refused as reason:
            refused[where] = str(reason)
    return answers


def _answers(row: Mapping, asked: Mapping[str, Mapping], where: str, number: str) -> list[Answer]:
    """The answers of a line, several where the request asked for several."""
    if "messages" in row and "response" not in row:
        return [_of_dialogue(row, where, str(row.get("id", row.get("custom_id", number))))]
    if "response" not in row:
        raise Refused(f"it has {', '.join(map(str, row)) or 'nothing'}; messages with an answer, or a response, belong "
                      "there")
    name = str(row.get("custom_id", row.get("id", number)))
    response = row["response"]
    if row.get("error") or not isinstance(response, Mapping) or response.get("status_code", 200) != 200:
        raise Refused("the request failed")
    request = row.get("request", asked.get(name))
    if request is None:
        raise Refused(f"the request {name!r} is not in the input file" if asked else
                      "it is a batch's output: give its input file, in which the requests are")
    return _of_bodies(_body(request), _body(response), where, name, str(row.get("category", "logged")))


def _of_bodies(request: Mapping, response: Mapping, where: str, name: str, kind: str) -> list[Answer]:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, Mapping) for each in choices):
        raise Refused("the response has no choices")
    about = dict(where=where, kind=kind, temperature=_number(request.get("temperature")),
                 day=_day(response.get("created")), prompt_ids=_ids(response.get("prompt_token_ids")))
    if "messages" in request:
        about["messages"] = _dialogue(request["messages"])
    elif isinstance(request.get("prompt"), str):
        about["prompt"] = request["prompt"]
    elif (ids := _ids(request.get("prompt"))) is not None:
        about["prompt_ids"] = ids
    else:
        raise Refused("the request has neither messages nor one prompt")
    return [Answer(name=name if len(choices) == 1 else f"{name}/{place}", **about, **_of_choice(choice, request))
            for place, choice in enumerate(choices)]


def _of_choice(choice: Mapping, request: Mapping) -> dict[str, object]:
    """What a choice tells of an answer."""
    message = choice.get("message", {})
    _refuse_what_the_template_drops(message)
    text = message.get("content") if "message" in choice else choice.get("text")
    own = dict(ids=_ids(choice.get("token_ids")), finish=str(choice.get("finish_reason") or ""),
               stopped=_by_stop_string(choice, request))
    tokens = _logged_tokens(choice.get("logprobs"))
    if own["ids"] is None and tokens and all(token.startswith(TOKEN_ID) for token in tokens):
        own["ids"] = _ids([int(token.removeprefix(TOKEN_ID)) for token in tokens
                           if token.removeprefix(TOKEN_ID).isdecimal()])
    elif tokens:
        own["pieces"] = tokens
    if not isinstance(text, str) and own["ids"] is None:
        raise Refused("the answer has no text")
    return own | {"text": text if isinstance(text, str) else None}


def _by_stop_string(choice: Mapping, request: Mapping) -> bool:
    """Whether a stop string may have ended an answer: vLLM tells which did, others do not."""
    if "stop_reason" in choice:
        return isinstance(choice["stop_reason"], str)
    return bool(request.get("stop")) and choice.get("finish_reason") == STOP


def _of_dialogue(row: Mapping, where: str, name: str) -> Answer:
    """A dialogue with its answer last."""
    messages = row["messages"]
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], Mapping) or \
            messages[-1].get("role") != "assistant":
        raise Refused("its last message is not the assistant's answer")
    told = _of_choice({"message": messages[-1], **row}, row)
    return Answer(where, name, str(row.get("category", "logged")), _dialogue(messages[:-1]),
                  prompt_ids=_ids(row.get("prompt_token_ids")), temperature=_number(row.get("temperature")),
                  day=_day(row.get("created")), **told)


def _refuse_what_the_template_drops(message) -> None:
    """Refuses tool calls and reasoning: what the model wrote is not the message's text."""
    if not isinstance(message, Mapping):
        raise Refused("the answer's message is no object")
    if message.get("tool_calls") or message.get("function_call"):
        raise Refused("the answer calls a tool, whose text as the model wrote it is not logged")
    if message.get("reasoning_content") or message.get("reasoning"):
        raise Refused("the answer has reasoning beside its text; as the model wrote them together is not logged")


def _dialogue(messages) -> list[Mapping[str, str]]:
    good = isinstance(messages, list) and messages and all(
        isinstance(each, Mapping) and each.get("role") in ROLES and isinstance(each.get("content"), str)
        for each in messages)
    if not good:
        raise Refused("its messages are not texts of system, user and assistant")
    return [{"role": each["role"], "content": each["content"]} for each in messages]


def _logged_tokens(logprobs) -> list[str]:
    """The tokens of logprobs, of the chat form or of the completion form."""
    if not isinstance(logprobs, Mapping):
        return []
    tokens = logprobs.get("tokens")
    if isinstance(logprobs.get("content"), list):
        tokens = [each.get("token") if isinstance(each, Mapping) else None for each in logprobs["content"]]
    return tokens if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else []


def _body(row: Mapping) -> Mapping:
    """A request or response, which the batch API wraps."""
    body = row.get("body", row) if isinstance(row, Mapping) else row
    if not isinstance(body, Mapping):
        raise Refused("its request or response is no object")
    return body


# ----------------------------------------------------------------------------------------------------------- vLLM's log


def _of_vllm(path: Path, lines, refused: dict[str, str]) -> list[Answer]:
    """The answers of a server's log, each joined with its request by the id."""
    asked: dict[str, dict] = {}
    answers = []
    for number, line in lines:
        if (found := _VLLM.search(line)) is None or "delta" in (found["delta"] or ""):
            continue
        where, told = f"{path.name}, line {number}", dict(_fields(found["rest"]))
        if found["what"] != "Generated response":
            asked.setdefault(found["id"], {}).update(told)
            continue
        try:
            answers.append(_of_server(asked.get(found["id"], {}), told, where, found["id"]))
        except Refused as reason:
            refused[where] = str(reason)
    return answers


def _of_server(request: Mapping, told: Mapping, where: str, name: str) -> Answer:
    prompt, ids = request.get("prompt"), _ids(request.get("prompt_token_ids"))
    if not isinstance(prompt, str) and ids is None:
        raise Refused("its request is not in the log, or without the prompt: log with VLLM_LOGGING_LEVEL=DEBUG")
    if not isinstance(told.get("output"), str):
        raise Refused("the answer has no text")
    finish = told.get("finish_reason")
    return Answer(where, name, "logged", prompt=prompt if isinstance(prompt, str) else None, text=told["output"],
                  ids=_ids(told.get("output_token_ids")), prompt_ids=ids,
                  finish=finish if isinstance(finish, str) else "",
                  stopped=bool(request.get("stop")) and finish == STOP,
                  temperature=_number(request.get("temperature")))


def _fields(text: str) -> Iterator[tuple[str, object]]:
    """The named values of a line, of each the first; a bare word is a text."""
    seen = set()
    for found in _FIELD.finditer(text):
        if found["name"] in seen:
            continue
        seen.add(found["name"])
        try:
            yield found["name"], ast.literal_eval(found["value"])
        except (ValueError, SyntaxError):
            yield found["name"], found["value"]


# --------------------------------------------------------------------------------------------------------------- values


def _lines(path: Path) -> list[tuple[int, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no log at {path.resolve()}; give a file of JSON Lines, or a vLLM server's log")
    text = path.read_bytes().decode("utf-8", errors="replace").removeprefix("\ufeff")
    return list(enumerate(text.split("\n"), 1))


def _objects(path: Path) -> list[Mapping]:
    """The rows of the batch API's input. ValueError names the line that is none."""
    rows = []
    for number, line in _lines(path):
        if line.strip():
            try:
                rows.append(_object(line))
            except Refused as reason:
                raise ValueError(f"{path}, line {number}: {reason}; give the batch's own input file") from None
    return rows


def _object(line: str) -> Mapping:
    try:
        row = json_text.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON ({error})") from None
    if not isinstance(row, Mapping):
        raise Refused(f"it is a {type(row).__name__}, no object")
    return row


def _ids(value) -> list[int] | None:
    """Token ids; None where there are none."""
    good = isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value)
    return value if good else None


def _number(value) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if good else None


def _day(created) -> str | None:
    """The day of a time in seconds, as "2026-11-25"; None where it is none."""
    try:
        return datetime.fromtimestamp(created, timezone.utc).date().isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _named_apart(answers: Sequence[Answer]) -> list[Answer]:
    """The answers, with the line beside a name that several have."""
    named = Counter(answer.name for answer in answers)
    return [replace(answer, name=f"{answer.name} ({answer.where})") if named[answer.name] > 1 else answer
            for answer in answers]
