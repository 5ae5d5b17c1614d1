"""Lines of a log as answers: the bodies of a request and of its response, whatever form the line has (see `logs`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.lab import json_lines
from lib.lab.json_lines import mapping, name_of, typed

LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
UNREAD = ("suffix", "prompt_embeds", "system", "functions", "input_prefix", "input_suffix", "truncation_side")


@dataclass(frozen=True)
class Answer:
    """One choice of a response, with the bodies of both. where: file and line; name: the line's id, or its place;
    message: the choice's, or one with its text; alone: whether the response has no other choice.
    """

    where: str
    name: str
    kind: str
    request: Mapping[str, object]
    response: Mapping[str, object]
    choice: Mapping[str, object]
    message: Mapping[str, object]
    alone: bool

    def of_response(self, name: str) -> object:
        """A field of the choice, or if there is but one, of the response."""
        return self.choice.get(name) or (self.response.get(name) if self.alone else None)


def read(path: str | Path) -> tuple[list[Answer], dict[str, str]]:
    """The answers of a log, and by line why it gives none. ValueError for a file of another form."""
    requests, answers, refused, places = {}, [], {}, {}
    for place, text in json_lines.texts(path):
        where = f"{Path(path).name}, {place}"
        try:
            row = mapping(json_lines.parsed(text), "it")
            name, is_request = name_of(row, ("custom_id", "id"), where), "body" in row and "response" not in row
            if (name, is_request) in places:
                raise ValueError(f"its id {name!r} stands in {places[name, is_request]} already; give each another")
            if is_request:
                requests[name] = mapping(row["body"], "its body")
            else:
                answers += [*_answers(row, where, name, requests)]
            places[name, is_request] = where
        except ValueError as error:
            refused[where] = str(error)
    return answers, refused


def _answers(row: Mapping, where: str, name: str, requests: Mapping[str, Mapping]) -> Iterator[Answer]:
    """The answers of a line, one for each choice."""
    request, response = _bodies(row, requests)
    if limit := next((limit for limit in LIMITS if request.get(limit) == 0), None):
        raise ValueError(f"{limit} is 0, so that it asks for no answer")
    if unread := next((field for field in UNREAD if request.get(field)), None):
        raise ValueError(f"{unread} changes the prompt in a way that is not known here")
    if request.get("messages") and request.get("prompt"):
        raise ValueError("the request has messages and a prompt; which of them was read is not known")
    if not (choices := typed(response, "choices", list)):
        raise ValueError(f"the response has no choices ({', '.join(response) or 'nothing'})")
    for choice in (mapping(choice, "its choice") for choice in choices):
        message, text = typed(choice, "message", Mapping), typed(choice, "text", str)
        if message is None and text is None:
            raise ValueError("its choice has a part of a stream (delta); log whole responses" if "delta" in choice else
                             f"its choice has {', '.join(choice) or 'nothing'}, but no message or text")
        if message is not None and text is not None:
            raise ValueError("its choice has a message and a text; log the one that was written")
        yield Answer(where, name, name_of(row, ("category",), "logged"), request, response, choice,
                     {"content": text} if message is None else message, len(choices) == 1)


def _bodies(row: Mapping, requests: Mapping[str, Mapping]) -> tuple[Mapping, Mapping]:
    """The bodies of a line's request and of its response. requests: the batch API's input."""
    if "response" in row:
        if row.get("error"):
            raise ValueError(f"the request failed ({row['error']!r:.80})")
        response, name = mapping(row["response"], "its response"), name_of(row, ("custom_id",), "")
        if (status := response.get("status_code", 200)) not in (200, "200"):
            raise ValueError(f"the request failed (status {status!r:.20})")
        if row.get("request") is None and name not in requests:
            raise ValueError(f"there is no request {name!r}; put the batch's input file before its output" if name else
                             "it has neither a request nor a custom_id")
        request = requests[name] if row.get("request") is None else mapping(row["request"], "its request")
        request, response = (mapping(body["body"], "its body") if "body" in body else body
                             for body in (request, response))
    elif "choices" in row:
        request = response = row
    else:
        messages = typed(row, "messages", list)
        if not messages or not isinstance(messages[-1], Mapping) or messages[-1].get("role") != "assistant":
            raise ValueError(f"it has {', '.join(row) or 'nothing'}; a response, or messages with the assistant's "
                             "answer last, belong there")
        request, response = {**row, "messages": messages[:-1]}, {
            **row, "choices": [{**row, "text": None, "message": messages[-1]}]}
    if response.get("error"):
        raise ValueError(f"the request failed ({response['error']!r:.80})")
    return request, response
