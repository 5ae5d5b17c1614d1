"""Tokens of a dialogue in a chat template; a message with the text of a control token ("<|im_end|>") is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")  # how a template asks for the day
Message = Mapping[str, object]  # role ("system", "user" or "assistant") and content, a text


def of_user(text: str) -> list[Message]:
    """The dialogue that a user opens with a text."""
    return [{"role": "user", "content": text}]


def has_template(tokenizer) -> bool:
    """Whether a tokenizer has a chat template, so that its model answers users."""
    return bool(getattr(tokenizer, "chat_template", None))


def plain(text: str, tokenizer) -> Tensor:
    """int64[T]: a text without a template, after the tokens that the tokenizer puts before every text."""
    return _tensor(tokenizer(text, split_special_tokens=True)["input_ids"])


def tokenise(messages: Sequence[Message], tokenizer, day: str | None = None,
             template: Mapping[str, object] | None = None) -> Tensor:
    """int64[T]: the messages in the tokenizer's chat template, up to where the model answers, with the system prompt
    that the template may insert; without a template the texts of all messages, with blank lines between them.

    day: the date that a template inserts, as "2026-11-25"; None for today. template: its further arguments, such as
    tools. ValueError where the template refuses the messages, or they hold the text of a control token.
    """
    if not has_template(tokenizer):
        return plain("\n\n".join(message["content"] for message in messages), tokenizer)
    template, content = dict(template or {}), json.dumps([messages, template], ensure_ascii=False)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and token.content in content:
            raise ValueError(f"the messages hold the text of the control token {token.content!r}; remove it")
    if day is not None:  # templates ask for it by a function or by a name
        then = date.fromisoformat(day)
        dated = TODAY.sub(lambda call: repr(then.strftime(call[2])), tokenizer.get_chat_template())
        template |= {"chat_template": dated, "date_string": then.strftime("%d %b %Y")}
    try:
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template)
    except Exception as error:  # whatever a template raises of messages that it does not take
        raise ValueError(f"the tokenizer's chat template refuses the messages ({error}); give others") from None
    return _tensor(tokenizer(rendered, add_special_tokens=False)["input_ids"])


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
