"""Messages of requests and answers, in OpenAI's forms of chat completions and of Responses, as a chat template takes
them.

vLLM's ways are followed where a form leaves something open: the parts of a message are lines of its text, arguments of
earlier tool calls are given to the template as objects.
"""

from collections.abc import Mapping, Sequence

from lib.lab import json_text
from lib.models.dialogue import Message
from lib.models.prompts import ROLES

ALL_ROLES = (*ROLES, "tool", "developer")
TEXTS = ("text", "input_text", "output_text")  # what parts with a text are called
CALLS = ("tool_calls", "function_call")
THOUGHTS = ("reasoning", "reasoning_content", "thinking")
ELSEWHERE = ("previous_response_id", "conversation", "prompt")  # of a Responses request: where more of its input is


class Refused(ValueError):
    """Why a record gives no answer."""


def dialogue(messages) -> list[Message]:
    """The messages of a request. Refused where one is no text, or of a role that no template has."""
    if not isinstance(messages, list) or not messages:
        raise Refused("it has no messages")
    return [_message(each) for each in messages]


def _message(each) -> Message:
    role = each.get("role") if isinstance(each, Mapping) else None
    if role not in ALL_ROLES:
        raise Refused(f"its messages are not texts of {', '.join(ALL_ROLES)}, but of {role!r:.40}")
    calls = each.get("tool_calls")
    content = text_of(each.get("content"), "\n")
    if content is None and not calls:
        raise Refused(f"a message of the {role} has no text")
    kept = {name: each[name] for name in ("name", "tool_call_id", *THOUGHTS) if isinstance(each.get(name), str)}
    return {"role": role, "content": content or "", **kept} | ({"tool_calls": _calls(calls)} if calls else {})


def _calls(calls) -> list[Mapping]:
    """Tool calls with their arguments as objects, which templates write in their own way."""
    good = isinstance(calls, list) and all(isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
                                           for call in calls)
    if not good:
        raise Refused("the tool calls of a message are no list of functions")
    return [call | {"function": call["function"] | {"arguments": _object(call["function"].get("arguments"))}}
            for call in calls]


def _object(arguments):
    try:
        return json_text.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


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
    """What an answer has beside its text, which the model wrote in a form that the message does not tell; or nothing.
    """
    if any(message.get(name) for name in CALLS):
        return "calls a tool"
    content = message.get("content")
    parts = [part.get("type") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    thought = any(map(message.get, THOUGHTS)) or any(kind in THOUGHTS for kind in parts)
    return "has reasoning beside its text" if thought else ""


def for_template(request: Mapping) -> dict[str, object]:
    """What a request gives its chat template beside the messages. Refused for tools that are no functions."""
    given = request.get("chat_template_kwargs")
    found = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    if isinstance(request.get("reasoning_effort"), str):
        found["reasoning_effort"] = request["reasoning_effort"]
    if tools := request.get("tools"):
        if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
            raise Refused("its tools are no list of objects")
        found["tools"] = [_tool(tool) for tool in tools]
    return found


def _tool(tool: Mapping) -> Mapping:
    """A tool in the form of chat completions, under whose name Responses have no object."""
    if tool.get("type", "function") != "function":
        raise Refused(f"it has a tool of the type {tool['type']!r:.40}, which chat templates do not take")
    return tool if "function" in tool else {
        "type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


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
    if status not in ("completed", "incomplete") or not _objects(items):
        raise Refused(f"the response's status is {status!r:.40}" if _objects(items) else "the response has no output")
    said = [item for item in items if item.get("type") == "message"]
    parts = [part for item in said for part in _all(item.get("content"))]
    kinds = {str(item.get("type")) for item in items} - {"message"}
    message = {"content": parts or None, "tool_calls": bool(kinds - {"reasoning"}),
               "reasoning": "reasoning" in kinds or len(said) > 1}
    why, usage = response.get("incomplete_details"), response.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    choice = {"message": message, "token_ids": _tokens(response.get("output_messages")),
              "logprobs": {"content": [one for part in parts for one in _all(part.get("logprobs"))]},
              "finish_reason": "stop" if status == "completed" else why.get("reason") if isinstance(why, Mapping)
              else status}
    return {"choices": [choice], "created": response.get("created_at"), "temperature": response.get("temperature"),
            "prompt_token_ids": _tokens(response.get("input_messages")), "usage": {
                "completion_tokens": usage.get("output_tokens"),
                "completion_tokens_details": usage.get("output_tokens_details")}}


def _objects(items) -> bool:
    return isinstance(items, list) and all(isinstance(item, Mapping) for item in items)


def _all(items) -> list[Mapping]:
    return items if _objects(items) else []


def _tokens(messages) -> Sequence[int] | None:
    """The ids of a whole prompt or answer, as vLLM adds them to a response with `enable_response_messages`."""
    return messages[0].get("tokens") if _objects(messages) and len(messages) == 1 else None
