"""Answers that a served model has logged, in the forms in which clients and servers write them.

A file has JSON Lines or the lines of a vLLM server's log. A JSON line is one of
    a dialogue of OpenAI's chat form, `messages` with the assistant's answer last;
    a line of the batch API's output, whose request is the line of the input file with the same `custom_id`;
    {"request": {...}, "response": {...}}, the bodies of a completion, chat completion or of /v1/responses.
Token ids are read where there are some, the text alone elsewhere: `token_ids` and `prompt_token_ids` as vLLM returns
them, logprobs with ids as their tokens ("token_id:17"), and vLLM's log. vLLM's log needs --enable-log-requests and
--enable-log-outputs, and without VLLM_LOGGING_LEVEL=DEBUG has no prompts in versions from 0.11 on, and no ids in the
newest. It keeps no text of most streamed answers, and cuts prompts and answers at --max-log-len.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from lib.lab import json_text
from lib.replay import messages
from lib.replay.messages import Refused

STOP = "stop"  # why an answer ended: by itself, or at a stop string
TOKEN_ID = "token_id:"  # before an id that a server gives in the place of a token
MOST_REFUSED = 0.1  # share of lines that may be refused
LARGEST_ID = 2**31  # beyond it nothing is a token
SAME_LENGTH = 3  # different texts of one length, and none longer: a log was cut there
ANSWERED = "Generated response"  # a line of vLLM's log with an answer
STREAMED = "<streaming_complete:"  # in the place of a streamed answer's text in vLLM's log
IN_OTHER_WORDS = {"[tool_calls: ": "calls a tool", "[reasoning: ": "is reasoning"}  # of vLLM's log

_VLLM = re.compile(r"(?P<what>Received request|Request|Generated response) (?P<id>\S+?)"
                   r"(?P<delta> \(streaming (?:delta|complete)\))?(?: details)?: (?P<rest>.*)$")
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_FIELD = re.compile(rf"(?<!\w)(?P<name>prompt|output|prompt_token_ids|output_token_ids|finish_reason|temperature|stop)"
                    rf"(?:: |=)(?P<value>{_QUOTED}|\[[^\]]*\]|[^,\s)]+)")


@dataclass(frozen=True)
class Answer:
    """A logged answer. where: its file and line. messages: the dialogue that it answers, with what else the request
    gave to the chat `template`; or prompt: a plain text.

    text, ids: the answer as text and as token ids, prompt_ids: the prompt's; None where the log has none. pieces: the
    texts of the answer's tokens. tokens: how many were written, as the server counted them. cut: whether it is as long
    as its log lets texts be. finish: STOP, or what else the server calls it, empty where it is not told. stopped:
    whether a stop string may have ended it. end: the token that did, where the server tells it. temperature, day: None
    where the log has none.
    """

    where: str
    name: str
    kind: str
    messages: Sequence[Mapping[str, object]] = ()
    template: Mapping[str, object] = field(default_factory=dict)
    prompt: str | None = None
    text: str | None = None
    ids: Sequence[int] | None = None
    prompt_ids: Sequence[int] | None = None
    finish: str = ""
    stopped: bool = False
    end: int | None = None
    tokens: float | None = None
    cut: bool = False
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
    lines = [(f"{path.name}, line {number}", line) for number, line in _lines(path) if line.strip()]
    server = [(where, found) for where, line in lines if not _is_object(line) and (found := _VLLM.search(line))]
    server = server if any(found["what"] == ANSWERED for _, found in server) else []
    objects = [(where, line) for where, line in lines if not server or _is_object(line) and _is_record(line)]
    objects = objects if any(_is_object(line) for _, line in objects) else []
    answers = _named_apart([*_of_vllm(server, refused), *_each(objects, lambda where, line: _answers(
        _object(line), asked, where, where.rpartition(" ")[2]), refused)])
    if not answers or len(refused) > MOST_REFUSED * (len(refused) + len(answers)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{path} has {len(answers)} answers that can be read, and {len(refused)} lines that cannot "
                         f"({told or 'it has no line of a known form'}); mend or remove these, and log whole answers")
    return Logged(answers, refused)


def _is_object(line: str) -> bool:
    return line.lstrip().startswith("{")


def _is_record(line: str) -> bool:
    """Whether a line among a server's is an answer too."""
    try:
        return bool({"messages", "response"} & _object(line).keys())
    except Refused:
        return False


def _each(records: Iterable[tuple[str, object]], answers: Callable, refused: dict[str, str]) -> list[Answer]:
    """The answers of records by their places; those that give none are in refused, with the reason."""
    found = []
    for where, record in records:
        try:
            own = answers(where, record)
            json.dumps([(each.text, each.prompt, each.messages, each.template, each.pieces) for each in own],
                       ensure_ascii=False).encode()
            found += own
        except Refused as reason:
            refused[where] = str(reason)
        except UnicodeEncodeError:
            refused[where] = "it holds half of a character"
        except RecursionError:
            refused[where] = "it is nested too deeply"
    return found


# ----------------------------------------------------------------------------------------------------------- JSON lines


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
    response = messages.as_completion(response) if "output" in response and "choices" not in response else response
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, Mapping) for each in choices):
        raise Refused("the response has no choices")
    about = dict(where=where, kind=kind, day=_day(response.get("created")),
                 temperature=_number(request.get("temperature", response.get("temperature"))))
    usage = response.get("usage") if len(choices) == 1 else None
    found = []
    for place, choice in enumerate(choices):
        prompt_ids = _ids(choice.get("prompt_token_ids")) or _ids(response.get("prompt_token_ids"))
        asked = {"prompt_ids": prompt_ids} if prompt_ids else _asked(request)
        found.append(Answer(name=name if len(choices) == 1 else f"{name}/{place}", **about, **asked,
                            **_of_choice(choice, request, usage, bool(prompt_ids))))
    return found


def _asked(request: Mapping) -> dict[str, object]:
    """What a request asked, where the ids of its prompt are not logged beside the answer."""
    prompt = request.get("prompt")
    if "messages" in request:
        return dict(messages=messages.dialogue(request["messages"]), template=messages.for_template(request))
    if "input" in request:
        return dict(messages=messages.of_input(request), template=messages.for_template(request))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return dict(prompt=prompt)
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], (str, list)):
        return dict(prompt_ids=_ids(prompt))
    raise Refused("the request has neither messages nor one prompt")


def _of_choice(choice: Mapping, request: Mapping, usage, prompt_known: bool) -> dict[str, object]:
    """What a choice tells of an answer. Refused where its text is not what the model wrote, unless the ids of prompt
    and answer are known: the chat template would make another prompt.
    """
    message, usage = choice.get("message", {}), usage if isinstance(usage, Mapping) else {}
    if not isinstance(message, Mapping):
        raise Refused("the answer's message is no object")
    tokens, ids = _logged_tokens(choice.get("logprobs")), _ids(choice.get("token_ids"))
    if ids is None and tokens and all(token.startswith(TOKEN_ID) for token in tokens):
        ids = _ids([int(number) if (number := token.removeprefix(TOKEN_ID)).isdecimal() else -1 for token in tokens])
    about = usage.get("completion_tokens_details")
    thought = ids is None and isinstance(about, Mapping) and (_number(about.get("reasoning_tokens")) or 0) > 0
    more = messages.beside(message) or "has reasoning that is not logged" * thought
    if more and not (ids and prompt_known):
        raise Refused(f"the answer {more}, and as the model wrote them together is not logged; log the ids of prompt "
                      "and answer (vLLM: return_token_ids)")
    content = message.get("content") if "message" in choice else choice.get("text")
    text = content if isinstance(content, str) else messages.text_of(content, "") if ids is None else None
    if text is None and ids is None:
        raise Refused("the answer has no text")
    end = choice.get("stop_reason")
    return dict(text=text, ids=ids, pieces=tokens or None, finish=str(choice.get("finish_reason") or ""),
                stopped=_by_stop_string(choice, request), end=_ids([end])[0] if type(end) is int else None,
                tokens=_number(usage.get("completion_tokens")))


def _by_stop_string(choice: Mapping, request: Mapping) -> bool:
    """Whether a stop string may have ended an answer: vLLM tells which did, others do not."""
    if "stop_reason" in choice:
        return isinstance(choice["stop_reason"], str)
    return bool(request.get("stop")) and choice.get("finish_reason") == STOP


def _of_dialogue(row: Mapping, where: str, name: str) -> Answer:
    """A dialogue with its answer last."""
    said, prompt_ids = row["messages"], _ids(row.get("prompt_token_ids"))
    if not isinstance(said, list) or not said or not isinstance(said[-1], Mapping) or \
            said[-1].get("role") != "assistant":
        raise Refused("its last message is not the assistant's answer")
    asked = {"prompt_ids": prompt_ids} if prompt_ids else _asked({**row, "messages": said[:-1]})
    return Answer(where, name, str(row.get("category", "logged")), temperature=_number(row.get("temperature")),
                  day=_day(row.get("created")), **asked,
                  **_of_choice({"message": said[-1], **row}, row, row.get("usage"), bool(prompt_ids)))


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


def _of_vllm(lines: Sequence[tuple[str, re.Match]], refused: dict[str, str]) -> list[Answer]:
    """The answers of a server's log, each joined with its request and the line of its ids by the request's id."""
    asked: dict[str, dict] = {}
    detailed: dict[str, dict] = {}
    records, texts = [], []
    for where, found in lines:
        told, name = dict(_fields(found["rest"])), found["id"]
        if "delta" in (found["delta"] or ""):
            continue
        if found["what"] != ANSWERED:
            asked.setdefault(name, {}).update(told)
        elif "output" not in told and "output_token_ids" in told:
            detailed[name] = told
        else:
            records.append((where, (name, asked.get(name, {}), detailed.pop(name, {}) | told)))
            texts.append(told.get("output"))
    prompts = [request.get("prompt") for request in asked.values()]
    cut = {shared_length([text for text in each if isinstance(text, str)]) for each in (texts, prompts)}
    return _each(records, lambda where, record: [_of_server(*record, where, cut)], refused)


def _of_server(name: str, request: Mapping, told: Mapping, where: str, cut: set[int | None]) -> Answer:
    """cut: lengths at which the log was cut."""
    prompt, prompt_ids = request.get("prompt"), _ids(request.get("prompt_token_ids"))
    if not isinstance(prompt, str) and prompt_ids is None:
        raise Refused("its request is not in the log, or without the prompt: log with VLLM_LOGGING_LEVEL=DEBUG")
    if len(prompt if prompt_ids is None else prompt_ids) in cut:
        raise Refused("its prompt was cut: log with a greater --max-log-len, or without")
    text, ids = told.get("output"), _ids(told.get("output_token_ids"))
    if ids is None and isinstance(text, str):
        if text.startswith(STREAMED):
            raise Refused(f"it was streamed, and the log has {text!r:.60} in place of its text: do not stream, or log "
                          "responses with their ids (return_token_ids)")
        if form := next((form for form in IN_OTHER_WORDS if text.startswith(form)), None):
            raise Refused(f"the answer {IN_OTHER_WORDS[form]}, which the log tells in other words: log the ids too")
    if ids is None and not isinstance(text, str):
        raise Refused("the answer has no text")
    finish = told.get("finish_reason")
    return Answer(where, name, "logged", prompt=prompt if isinstance(prompt, str) else None,
                  text=text if isinstance(text, str) else None, ids=ids, prompt_ids=prompt_ids,
                  finish=finish if isinstance(finish, str) else "",
                  stopped=bool(request.get("stop")) and finish == STOP, cut=len(text if ids is None else ids) in cut,
                  temperature=_number(request.get("temperature")))


def shared_length(rows: Iterable[Sequence], among: Iterable[Sequence] = ()) -> int | None:
    """The length at which rows were cut: that of the longest, if SAME_LENGTH different ones share it and none of the
    others that they are among is longer.
    """
    different = {tuple(row) for row in rows}
    longest = max(map(len, (*different, *among)), default=0)
    return longest if sum(len(row) == longest for row in different) >= SAME_LENGTH else None


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
                _body(rows[-1])
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
    """Token ids; None where there are none. Refused for what can be none."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < LARGEST_ID for each in value):
        raise Refused(f"its token ids are {value!r:.40}, no numbers of tokens")
    return value


def _number(value) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e300
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
