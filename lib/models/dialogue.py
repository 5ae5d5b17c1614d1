"""Tokens of a dialogue in a chat template; a message with the text of a control token ("<|im_end|>") is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from lib.lab.json_lines import typed

if TYPE_CHECKING:
    from torch import Tensor

TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")  # how a template asks for the day
Message = Mapping[str, object]  # role ("system", "user" or "assistant") and content, a text
OPTIONS = {"tools": list, "documents": list, "chat_template": str, "chat_template_kwargs": dict,
           "reasoning_effort": str, "add_generation_prompt": bool, "continue_final_message": bool}
WORDS = {list: "a list of objects", str: "a text", dict: "an object", bool: "true or false"}


def of_user(text: str) -> list[Message]:
    """The dialogue that a user opens with a text."""
    return [{"role": "user", "content": text}]


def text_of(message: Message, joint: str, needed: bool = True) -> str:
    """The text of a message, which may have several parts; empty where there is none and none is needed. ValueError for
    parts of other kinds, and for a message that calls a tool.
    """
    if message.get("tool_calls") or message.get("function_call"):
        raise ValueError("a message calls a tool; log the token ids")
    if (content := typed(message, "content", (str, list))) in (None, []) and needed:
        raise ValueError("a message has no text; log the token ids")
    parts = [{"text": content}] if isinstance(content, str) else content or ()
    if others := [part.get("type") for part in parts if not isinstance(part.get("text"), str)]:
        raise ValueError(f"a part of a message is of the type {others[0]!r}, no text")
    return joint.join(part["text"] for part in parts)


def has_template(tokenizer) -> bool:
    """Whether a tokenizer has a chat template, so that its model answers users."""
    return bool(getattr(tokenizer, "chat_template", None))


def options_of(request: Mapping[str, object]) -> dict[str, object]:
    """The fields of a request that the chat template reads beside its messages. ValueError, with the field's name, for
    values of another type.
    """
    options = {name: request[name] for name in OPTIONS if request.get(name) is not None}
    for name, value in options.items():
        if not isinstance(value, OPTIONS[name]) or isinstance(value, list) and not all(
                isinstance(member, dict) for member in value):
            raise ValueError(f"{name} is {value!r:.60}; give {WORDS[OPTIONS[name]]}")
    return {name: value for name, value in options.items() if value or value is False}


def plain(text: str, tokenizer) -> Tensor:
    """int64[T]: a text without a template, after the tokens that the tokenizer puts before every text."""
    return _tensor(tokenizer(text, split_special_tokens=True)["input_ids"])


def tokenise(messages: Sequence[Message], tokenizer, day: str | None = None,
             options: Mapping[str, object] | None = None, add_special_tokens: bool = False) -> Tensor:
    """int64[T]: the messages in the tokenizer's chat template, up to where the model answers, with the system prompt
    that the template may insert; without a template the texts of all messages, with blank lines between them.

    day: the date that a template inserts, as "2026-11-25"; None for today. options: as `options_of` gives them.
    add_special_tokens: whether the tokens that the tokenizer puts before every text come before the template's too.
    ValueError where the template refuses the messages, or there is none for tools, and for the text of a control token.
    """
    options = {"add_generation_prompt": True, **(options or {})}
    options |= options.pop("chat_template_kwargs", {})
    if options.get("continue_final_message"):
        options["add_generation_prompt"] = False
    if not has_template(tokenizer) and "chat_template" not in options:
        if lost := [name for name in ("tools", "documents") if name in options]:
            raise ValueError(f"the tokenizer has no chat template, which {lost[0]} need; leave them out")
        return plain("\n\n".join(message["content"] for message in messages), tokenizer)
    content = json.dumps([messages, {name: value for name, value in options.items() if name != "chat_template"}],
                         ensure_ascii=False)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and token.content in content:
            raise ValueError(f"the messages hold the text of the control token {token.content!r}; remove it")
    try:
        if day is not None:  # templates ask for it by a function or by a name
            then = date.fromisoformat(day)
            template = tokenizer.get_chat_template(options.get("chat_template"), options.get("tools"))
            options["chat_template"] = TODAY.sub(lambda call: repr(then.strftime(call[2])), template)
            options.setdefault("date_string", then.strftime("%d %b %Y"))
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # whatever a template raises of messages that it does not take
        raise ValueError(f"the tokenizer's chat template refuses the messages ({error}); give others") from None
    return _tensor(tokenizer(rendered, add_special_tokens=add_special_tokens)["input_ids"])


def of_answer(text: str, tokenizer, with_controls: bool = False) -> list[int]:
    """The tokens of an answer's text. A control token that ends it is that token, once. with_controls: so are those
    inside, as a server writes that removes none; else ValueError, as for a text that its tokens do not give back.
    """
    controls, at_end, body = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()
                              if token.special}, [], text
    while control := next((control for control in controls if body.rstrip().endswith(control)), None):
        body, at_end = body.rstrip().removesuffix(control), [controls[control]]  # what follows an end was not written
    if inside := [control for control in controls if control in body and not with_controls]:
        raise ValueError(f"the answer holds the text of the control token {inside[0]!r}; log its token ids")
    ids = tokenizer(body, add_special_tokens=False, split_special_tokens=not with_controls)["input_ids"]
    if not ids and not at_end:
        raise ValueError("the answer is empty")
    if "\ufffd" in body or tokenizer.decode(ids, clean_up_tokenization_spaces=False) != body:
        raise ValueError("the tokenizer does not give the answer's text back; log its token ids")
    return ids + at_end


def _tensor(tokens: Sequence[int]) -> Tensor:
    """int64[T]."""
    import torch  # which readers of prompts, names and settings do not need

    return torch.tensor(tokens, dtype=torch.long)


def end_of_turn(tokenizer) -> int | None:
    """The special token that the chat template renders last after a finished answer, white space aside, and nowhere
    inside an answer with reasoning (gpt-oss ends its reasoning with another token than its answer); None without one.
    """
    thoughts = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "alpha")  # as templates name them
    try:
        brief, long = (tokenizer.apply_chat_template(
            [*of_user("question"), {"role": "assistant", "content": "omega", **more}], tokenize=False).rstrip()
            for more in ({}, thoughts))
    except Exception:  # whatever a template raises of a dialogue that it does not take, or without a template
        return None
    ends = [(token.content, number) for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and brief.endswith(token.content) and long.endswith(token.content)]
    text, number = max(ends, key=lambda end: len(end[0]), default=("", None))
    inside = long[long.find("alpha" if "alpha" in long else "omega"):].removesuffix(text)
    return None if text in inside else number
