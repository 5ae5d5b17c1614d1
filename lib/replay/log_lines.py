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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
    """A logged answer.

    where: its file and line.
    messages: the dialogue that it answers; template: further arguments of the request for the chat template.
    prompt: the plain text that it continues, where the request has no messages.
    text, ids: the answer as text and as token ids; prompt_ids: those of the prompt; None where the log has none.
    finish: the server's reason for the end, such as STOP; empty where the log has none.
    stopped: whether a stop string may have ended the answer. end: the token that ended it, where the server logs it.
    tokens: the number of tokens that the server counted.
    cut: whether the answer has the length at which its log cuts texts.
    temperature, day: None where the log has none.
    pieces: the texts of the answer's tokens.
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

    @property
    def ended_itself(self) -> bool:
        """Whether the server says that the answer ended by itself."""
        return self.finish == STOP and not self.stopped


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
    path, asked = Path(path).expanduser(), _requests(Path(inputs).expanduser()) if inputs else {}
    lines = [(f"{path.name}, line {number}", line) for number, line in _lines(path)]
    rows = [(where, line) for where, line in lines if line.lstrip().startswith("{")]
    server = [(where, match) for where, line in lines
              if not line.lstrip().startswith("{") and (match := _VLLM.search(line))]
    if server:  # writes JSON of its own too
        rows = [(where, line) for where, line in rows if '"messages"' in line or '"response"' in line]
    elif rows:
        rows = lines
    answers, refused = [], {}
    for where, record in [*_joined(server), *rows]:
        try:
            told = _of_line(record, asked, where) if isinstance(record, str) else _of_server(*record, where)
            json.dumps([(one.text, one.prompt, one.messages, one.template, one.pieces) for one in told],
                       ensure_ascii=False).encode()
            answers += told
        except Refused as reason:
            refused[where] = str(reason)
        except UnicodeEncodeError:
            refused[where] = "it holds half of a character"
        except RecursionError:
            refused[where] = "it is nested too deeply"
    if not answers or len(refused) > MOST_REFUSED * (len(refused) + len(answers)):
        told = "; ".join(f"{where}: {why}" for where, why in list(refused.items())[:3])
        raise ValueError(f"{path} has {len(answers)} answers that can be read, and {len(refused)} lines that cannot "
                         f"({told or 'it has no line of a known form'}); mend or remove these, and log whole answers")
    named = Counter(answer.name for answer in answers)
    return Logged([replace(answer, name=f"{answer.name} ({answer.where})") if named[answer.name] > 1 else answer
                   for answer in answers], refused)


def _lines(path: Path) -> list[tuple[int, str]]:
    """The numbers and texts of a file's lines that are not blank."""
    if not path.is_file():
        raise FileNotFoundError(f"no log at {path.resolve()}; give a file of JSON Lines, or a vLLM server's log")
    text = path.read_bytes().decode("utf-8", errors="replace").removeprefix("\ufeff")
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _requests(path: Path) -> dict[str, Mapping]:
    """The requests of the batch API's input by their names. ValueError names the line that is none."""
    requests = {}
    for number, line in _lines(path):
        try:
            row = _object(line)
            requests[str(row.get("custom_id"))] = _body(row)
        except Refused as reason:
            raise ValueError(f"{path}, line {number}: {reason}; give the batch's own input file") from None
    return requests


def _object(line: str) -> Mapping:
    try:
        row = json_text.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON ({error})") from None
    if not isinstance(row, Mapping):
        raise Refused(f"it is a {type(row).__name__}, no object")
    return row


# ----------------------------------------------------------------------------------------------------------- JSON lines


def _of_line(line: str, asked: Mapping[str, Mapping], where: str) -> list[Answer]:
    """The answers of a JSON line, several where the request asked for several. asked: the batch API's requests."""
    row = _object(line)
    number = where.rpartition(" ")[2]
    kind = str(row.get("category", "logged"))
    if "messages" in row and "response" not in row:
        said = row["messages"]
        last = said[-1] if isinstance(said, list) and said else None
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise Refused("its last message is not the assistant's answer")
        response = {"choices": [{"message": last, **row}], "created": row.get("created"), "usage": row.get("usage")}
        return _of_bodies({**row, "messages": said[:-1]}, response, where=where, kind=kind,
                          name=str(row.get("id", row.get("custom_id", number))))
    if "response" not in row:
        raise Refused(f"it has {', '.join(map(str, row)) or 'nothing'}; messages with an answer, or a response, belong "
                      "there")
    name, response = str(row.get("custom_id", row.get("id", number))), row["response"]
    if row.get("error") or not isinstance(response, Mapping) or response.get("status_code", 200) != 200:
        raise Refused("the request failed")
    request = row.get("request", asked.get(name))
    if request is None:
        raise Refused(f"the request {name!r} is not in the input file" if asked else
                      "it is a batch's output: give its input file, in which the requests are")
    return _of_bodies(_body(request), _body(response), where=where, kind=kind, name=name)


def _body(row: Mapping) -> Mapping:
    """A request or response, which the batch API wraps."""
    body = row.get("body", row) if isinstance(row, Mapping) else row
    if not isinstance(body, Mapping):
        raise Refused("its request or response is no object")
    return body


def _of_bodies(request: Mapping, response: Mapping, *, where: str, kind: str, name: str) -> list[Answer]:
    """The answers of a response, one for each choice."""
    response = messages.as_completion(response) if "output" in response and "choices" not in response else response
    choices = messages.objects(response.get("choices"))
    if not choices:
        raise Refused("the response has no choices")
    usage = response.get("usage") if len(choices) == 1 else None
    answers = []
    for place, choice in enumerate(choices):
        prompt_ids = _ids(choice.get("prompt_token_ids")) or _ids(response.get("prompt_token_ids"))
        answers.append(Answer(
            where=where, kind=kind, name=name if len(choices) == 1 else f"{name}/{place}",
            day=_day(response.get("created")),
            temperature=_number(request.get("temperature", response.get("temperature"))),
            **({"prompt_ids": prompt_ids} if prompt_ids else _prompt_of(request)),
            **_of_choice(choice, request, usage if isinstance(usage, Mapping) else {}, bool(prompt_ids))))
    return answers


def _prompt_of(request: Mapping) -> dict[str, object]:
    """The prompt of a request, where its ids are not logged beside the answer."""
    if "messages" in request:
        return dict(messages=messages.dialogue(request["messages"]), template=messages.for_template(request))
    if "input" in request:
        return dict(messages=messages.of_input(request), template=messages.for_template(request))
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return dict(prompt=prompt)
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], (str, list)):
        return dict(prompt_ids=_ids(prompt))
    raise Refused("the request has neither messages nor one prompt")


def _of_choice(choice: Mapping, request: Mapping, usage: Mapping, prompt_known: bool) -> dict[str, object]:
    """Text, ids and end of an answer. Refused where the log has only a part of the text that the model wrote, unless
    the ids of prompt and answer are known.
    """
    message, logprobs, ids = choice.get("message", {}), choice.get("logprobs"), _ids(choice.get("token_ids"))
    if not isinstance(message, Mapping):
        raise Refused("the answer's message is no object")
    tokens = logprobs.get("tokens") if isinstance(logprobs, Mapping) else None  # of completions
    if isinstance(logprobs, Mapping) and isinstance(logprobs.get("content"), list):
        tokens = [token.get("token") if isinstance(token, Mapping) else None for token in logprobs["content"]]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        tokens = []
    if ids is None and tokens and all(token.startswith(TOKEN_ID) for token in tokens):
        numbers = [token.removeprefix(TOKEN_ID) for token in tokens]
        ids = _ids([int(number) if number.isdecimal() else -1 for number in numbers])
    details = usage.get("completion_tokens_details")
    thought = ids is None and isinstance(details, Mapping) and (_number(details.get("reasoning_tokens")) or 0) > 0
    more = messages.beside(message) or "has reasoning that is not logged" * thought
    if more and not (ids and prompt_known):
        raise Refused(f"the answer {more}, and as the model wrote them together is not logged; log the ids of prompt "
                      "and answer (vLLM: return_token_ids)")
    content = message.get("content") if "message" in choice else choice.get("text")
    text = content if isinstance(content, str) else messages.text_of(content, "") if ids is None else None
    if text is None and ids is None:
        raise Refused("the answer has no text")
    finish, end = choice.get("finish_reason"), choice.get("stop_reason")
    by_string = isinstance(end, str)  # vLLM tells which stop string ended an answer, others do not
    if "stop_reason" not in choice:
        by_string = bool(request.get("stop")) and finish == STOP
    return dict(text=text, ids=ids, pieces=tokens or None, finish=str(finish or ""), stopped=by_string,
                end=_ids([end])[0] if type(end) is int else None, tokens=_number(usage.get("completion_tokens")))


# ----------------------------------------------------------------------------------------------------------- vLLM's log


def _joined(lines: Sequence[tuple[str, re.Match]]) -> list[tuple[str, tuple]]:
    """The answers of a server's log by their places: the arguments of `_of_server`, with the fields of request and ids,
    which are joined with an answer by the request's id.
    """
    asked: dict[str, dict] = {}
    detailed: dict[str, dict] = {}
    records = []
    for where, match in lines:
        told, name = {}, match["id"]
        for value in _FIELD.finditer(match["rest"]):
            with suppress(ValueError, SyntaxError):
                told.setdefault(value["name"], ast.literal_eval(value["value"]))
            told.setdefault(value["name"], value["value"])  # a bare word
        if "delta" in (match["delta"] or ""):
            continue
        if match["what"] != ANSWERED:
            asked.setdefault(name, {}).update(told)
        elif "output" not in told and "output_token_ids" in told:
            detailed[name] = told
        else:
            records.append((where, name, asked.get(name, {}), detailed.pop(name, {}) | told))
    texts = [told.get("output") for *_, told in records], [request.get("prompt") for request in asked.values()]
    cut = {shared_length([text for text in part if isinstance(text, str)]) for part in texts}
    return [(where, (name, request, told, cut)) for where, name, request, told in records]


def _of_server(name: str, request: Mapping, told: Mapping, cut: set[int | None], where: str) -> list[Answer]:
    """The answer of a server's log. cut: lengths at which the log was cut."""
    prompt, prompt_ids = request.get("prompt"), _ids(request.get("prompt_token_ids"))
    if not isinstance(prompt, str) and prompt_ids is None:
        raise Refused("its request is not in the log, or without the prompt: log with VLLM_LOGGING_LEVEL=DEBUG")
    if len(prompt if prompt_ids is None else prompt_ids) in cut:
        raise Refused("its prompt was cut: log with a greater --max-log-len, or without")
    text, ids = told.get("output"), _ids(told.get("output_token_ids"))
    text = text if isinstance(text, str) else None
    if ids is None and text and text.startswith(STREAMED):
        raise Refused(f"it was streamed, and the log has {text!r:.60} in place of its text: do not stream, or log "
                      "responses with their ids (return_token_ids)")
    for form, what in IN_OTHER_WORDS.items():
        if ids is None and text and text.startswith(form):
            raise Refused(f"the answer {what}, which the log tells in other words: log the ids too")
    choice = {"text": text, "token_ids": ids, "prompt_token_ids": prompt_ids,
              "finish_reason": told.get("finish_reason")}
    answers = _of_bodies(request, {"choices": [choice]}, where=where, kind="logged", name=name)
    return [replace(answer, cut=len(text if ids is None else ids) in cut) for answer in answers]


def shared_length(rows: Iterable[Sequence], among: Iterable[Sequence] = ()) -> int | None:
    """The length at which rows were cut: that of the longest, if SAME_LENGTH different ones share it and none of the
    others that they are among is longer.
    """
    different = {tuple(row) for row in rows}
    longest = max(map(len, (*different, *among)), default=0)
    return longest if sum(len(row) == longest for row in different) >= SAME_LENGTH else None


# --------------------------------------------------------------------------------------------------------------- values


def _ids(value) -> list[int] | None:
    """Token ids; None where there are none. Refused for other values."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < LARGEST_ID for token in value):
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
