"""Tokens of a dialogue in a chat template, from which alone control tokens come: the text of one inside a message, such
as "<|im_end|>", is tokenised as text.
"""

import json
import re
from collections import defaultdict
from datetime import date
from typing import Mapping, Sequence

import torch
from torch import Tensor

TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")  # how a template asks for the day
Message = Mapping[str, object]  # role ("system", "user" or "assistant") and content, a text


def of_user(text: str) -> list[Message]:
    """The dialogue that a user opens with a text."""
    return [{"role": "user", "content": text}]


def has_template(tokenizer) -> bool:
    """Whether a tokenizer has a chat template, so that its model answers users."""
    return bool(getattr(tokenizer, "chat_template", None))


def tokenise(messages: Sequence[Message], tokenizer, day: str | None = None,
             template: Mapping[str, object] | None = None) -> Tensor:
    """int64[T]: the messages in the tokenizer's chat template, up to where the model answers.

    day: the date that a template inserts, as "2026-11-25"; None for today. template: its further arguments, such as
    tools.

    A system prompt that the template inserts stays. Without a template the result is the plain text of all messages,
    with blank lines between them. ValueError where the template refuses the messages, as some do with a system message,
    or leaves out those of a tool or developer.
    """
    if not has_template(tokenizer):
        return plain("\n\n".join(message["content"] for message in messages), tokenizer)
    tokens = [token for token in tokenizer.added_tokens_decoder.values() if token.special]  # others are ordinary text
    longest_first = sorted((re.escape(token.content) for token in tokens), key=len, reverse=True)
    controls = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
    # While the template is rendered, a character that no message has stands for each text of a control token.
    said = json.dumps([messages, template], ensure_ascii=False)
    private = (character for character in map(chr, range(0xE000, 0xF900)) if character not in said)
    stand_ins: dict[str, str] = defaultdict(private.__next__)

    def hidden(value):
        if isinstance(value, str):
            return controls.sub(lambda match: stand_ins[match[0]], value)
        if isinstance(value, Mapping):
            return {name: part if name == "role" else hidden(part) for name, part in value.items()}
        return [hidden(part) for part in value] if isinstance(value, list) else value

    given = hidden(dict(template or {})) | _dated(tokenizer, day)
    rendered = _rendered(hidden(list(messages)), tokenizer, given, next(private))
    if not stand_ins:
        return torch.tensor(tokenizer(rendered, add_special_tokens=False)["input_ids"], dtype=torch.long)
    for token in tokens:  # some swallow the white space beside them
        before, after = r"\s*" * token.lstrip, r"\s*" * token.rstrip
        rendered = re.sub(f"{before}({re.escape(token.content)}){after}", r"\1", rendered)
    ids: list[int] = []
    for place, stretch in enumerate(controls.split(rendered)):
        if place % 2:  # the template's own control token
            ids.append(tokenizer.convert_tokens_to_ids(stretch))
        elif stretch:
            for text, character in stand_ins.items():
                stretch = stretch.replace(character, text)
            stretch_ids = tokenizer(stretch, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            if forged := stand_ins.keys() & {*tokenizer.convert_ids_to_tokens(stretch_ids)}:
                raise ValueError(f"the tokenizer makes a control token of the text {forged.pop()!r}; remove it")
            ids += stretch_ids
    return torch.tensor(ids, dtype=torch.long)


def _rendered(messages: Sequence[Message], tokenizer, given: Mapping[str, object], mark: str) -> str:
    """The chat template's text. ValueError as for `tokenise`; mark: a character that no message has."""
    given = {**given, "add_generation_prompt": True, "tokenize": False}
    others = {message["role"] for message in messages} - {"system", "user", "assistant"}
    try:
        text = tokenizer.apply_chat_template(messages, **given)
        marked = [{**message, "content": mark} if message["role"] in others else message for message in messages]
        seen = tokenizer.apply_chat_template(marked, **given).count(mark) if others else 0
    except Exception as error:  # whatever a template raises of messages that it does not take
        raise ValueError(f"the tokenizer's chat template refuses the messages ({error}); give others") from None
    if seen < sum(message["role"] in others for message in messages):
        raise ValueError(f"the tokenizer's chat template leaves out messages of the {' and '.join(sorted(others))}; "
                         "give others")
    return text


def end_of_turn(tokenizer) -> int | None:
    """The special token that the chat template renders last after a finished answer, white space aside, and nowhere
    inside an answer with reasoning (gpt-oss ends its reasoning with another token than its answer); None without one.
    """
    if not has_template(tokenizer):
        return None
    thoughts = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "alpha")  # as templates name them
    try:
        brief, long = (tokenizer.apply_chat_template(
            [*of_user("question"), {"role": "assistant", "content": "omega", **more}], tokenize=False).rstrip()
            for more in ({}, thoughts))
    except Exception:  # whatever a template raises of a dialogue that it does not take
        return None
    ends = [(token.content, number) for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and brief.endswith(token.content) and long.endswith(token.content)]
    text, number = max(ends, key=lambda end: len(end[0]), default=("", None))
    inside = long[long.find("alpha" if "alpha" in long else "omega"):].removesuffix(text)
    return None if number is None or text in inside else number


def _dated(tokenizer, day: str | None) -> dict[str, str]:
    """The chat template with the day in the place of today, and under the name by which others ask for it."""
    if day is None:
        return {}
    then = date.fromisoformat(day)
    template = TODAY.sub(lambda call: repr(then.strftime(call[2])), tokenizer.get_chat_template())
    return {"chat_template": template, "date_string": then.strftime("%d %b %Y")}


def plain(text: str, tokenizer) -> Tensor:
    """int64[T]: a text without a template, after the tokens that the tokenizer puts before every text."""
    return torch.tensor(tokenizer(text, split_special_tokens=True)["input_ids"], dtype=torch.long)
