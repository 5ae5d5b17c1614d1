"""Requests and answers in OpenAI's forms of chat completions and of Responses, as a chat template takes them.

vLLM's ways are followed where a form leaves something open: the parts of a message are lines of its text, arguments of
earlier tool calls are given to the template as objects.
"""

from collections.abc import Mapping
from contextlib import suppress

from lib.lab import json_text
from lib.models.dialogue import Message
from lib.models.prompts import ROLES

ALL_ROLES = (*ROLES, "tool", "developer")
TEXTS = ("text", "input_text", "output_text")  # names of parts with a text
CALLS = ("tool_calls", "function_call")
THOUGHTS = ("reasoning", "reasoning_content", "thinking")
ELSEWHERE = ("previous_response_id", "conversation", "prompt")  # of a Responses request: where more of its input is


class Refused(ValueError):
    """Why a record gives no answer."""


def objects(items) -> list[Mapping]:
    """The items of a list of objects; none of anything else."""
    return items if isinstance(items, list) and all(isinstance(item, Mapping) for item in items) else []


def dialogue(messages) -> list[Message]:
    """The messages of a request. Refused where one is no text, or of a role that no template has."""
    if not isinstance(messages, list) or not messages:
        raise Refused("it has no messages")
    read = []
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ALL_ROLES:
            raise Refused(f"its messages are not texts of {', '.join(ALL_ROLES)}, but of {role!r:.40}")
        content, calls = text_of(message.get("content"), "\n"), message.get("tool_calls")
        if content is None and not calls:
            raise Refused(f"a message of the {role} has no text")
        row = {"role": role, "content": content or ""}
        row |= {name: message[name] for name in ("name", "tool_call_id", *THOUGHTS)
                if isinstance(message.get(name), str)}
        read.append(row | ({"tool_calls": _calls(calls)} if calls else {}))
    return read


def _calls(calls) -> list[Mapping]:
    """Tool calls with their arguments as objects, which templates write in their own way."""
    if not objects(calls) or not all(isinstance(call.get("function"), Mapping) for call in calls):
        raise Refused("the tool calls of a message are no list of functions")
    read = []
    for call in calls:
        arguments = call["function"].get("arguments")
        with suppress(ValueError):
            arguments = json_text.loads(arguments) if isinstance(arguments, str) else arguments
        read.append(call | {"function": call["function"] | {"arguments": arguments}})
    return read


def text_of(content, joint: str) -> str | None:
    """The text of a message; None where there is none. Refused where a part of it is no text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(f"the content of a message is a {type(content).__name__}, no text")
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind not in TEXTS or not isinstance(part.get("text"), str):
            raise Refused(f"a part of a message is of the type {kind!r:.40}, no text")
    return joint.join(part["text"] for part in content)


def beside(message: Mapping) -> str:
    """The part of an answer besides its text, of which the message does not show how the model wrote it; or nothing."""
    if any(message.get(name) for name in CALLS):
        return "calls a tool"
    content = message.get("content")
    parts = [part.get("type") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    thought = any(map(message.get, THOUGHTS)) or any(kind in THOUGHTS for kind in parts)
    return "has reasoning beside its text" if thought else ""


def for_template(request: Mapping) -> dict[str, object]:
    """The arguments of a request for its chat template besides the messages, with tools in the form of chat
    completions. Refused for tools that are no functions.
    """
    more, tools = request.get("chat_template_kwargs"), request.get("tools")
    given = {str(name): value for name, value in more.items()} if isinstance(more, Mapping) else {}
    if isinstance(request.get("reasoning_effort"), str):
        given["reasoning_effort"] = request["reasoning_effort"]
    if not tools:
        return given
    if not objects(tools):
        raise Refused("its tools are no list of objects")
    for tool in tools:
        if tool.get("type", "function") != "function":
            raise Refused(f"it has a tool of the type {tool['type']!r:.40}, which chat templates do not take")
    return given | {"tools": [tool if "function" in tool else {  # Responses have no object of this name
        "type": "function", "function": {name: tool[name] for name in tool if name != "type"}} for tool in tools]}


def of_input(request: Mapping) -> list[Message]:
    """The messages of a Responses request. Refused where more of its input is elsewhere, or no message."""
    if there := [name for name in ELSEWHERE if request.get(name)]:
        raise Refused(f"a part of its input is in its {there[0]}, which is not logged")
    given, first = request["input"], request.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type", "message") != "message":
            raise Refused(f"its input has an item of the type {item['type']!r:.40}, which is no message")
    return ([{"role": "system", "content": first}] if isinstance(first, str) else []) + dialogue(items)


def as_completion(response: Mapping) -> dict[str, object]:
    """The body of a Responses response in the form of a chat completion's. Refused where it did not come to an end."""
    status, items = response.get("status"), response.get("output")
    if not isinstance(items, list) or len(objects(items)) < len(items):
        raise Refused("the response has no output")
    if status not in ("completed", "incomplete"):
        raise Refused(f"the response's status is {status!r:.40}")
    said = [item for item in items if item.get("type") == "message"]
    parts = [part for item in said for part in objects(item.get("content"))]
    kinds = {str(item.get("type")) for item in items} - {"message"}
    message = {"content": parts or None, "tool_calls": bool(kinds - {"reasoning"}),
               "reasoning": "reasoning" in kinds or len(said) > 1}
    why, usage = response.get("incomplete_details"), response.get("usage")
    reason = "stop" if status == "completed" else why.get("reason") if isinstance(why, Mapping) else status
    # vLLM adds the ids of a whole prompt and answer with `enable_response_messages`
    prompt_ids, ids = (whole[0].get("tokens") if len(whole := objects(response.get(name))) == 1 else None
                       for name in ("input_messages", "output_messages"))
    choice = {"message": message, "token_ids": ids, "finish_reason": reason,
              "logprobs": {"content": [token for part in parts for token in objects(part.get("logprobs"))]}}
    counts = {"completion_tokens": usage.get("output_tokens"),
              "completion_tokens_details": usage.get("output_tokens_details")} if isinstance(usage, Mapping) else {}
    return {"choices": [choice], "created": response.get("created_at"), "temperature": response.get("temperature"),
            "prompt_token_ids": prompt_ids, "usage": counts}
