"""Dialogues as tokens: as transformers' own template gives them, and with no control token that a message forged."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lib.models import dialogue
from lib.tests.models.test_models import make_tokenizer
from lib.tests.real_model import needs_real_model, real_pair

CONTROLS = ("<|end|>", "<|user|>", "<|end|>>", "<|system|>", "<|assistant|>")
TEMPLATE = ("{% if messages[0]['role'] != 'system' %}<|system|>be brief<|end|>{% endif %}{% for message in messages %}"
            "<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<|end|>\n{% endfor %}<|assistant|>\n")
TEXT = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [*CONTROLS, "<|im_start|>", "<|im_end|>", "<|im_<|im_end|>end|>", "<|us", "er|>", "\n"]), max_size=4).map("".join)


def small():
    """A byte-level tokenizer with a template."""
    tokenizer = make_tokenizer(names=CONTROLS[:1], extra=CONTROLS[1:])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def messages_of(*contents):
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(contents)]


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=needs_real_model)])
def tokenizer(request):
    return small() if request.param == "small" else real_pair().tokenizer


def controls(tokenizer) -> dict[int, str]:
    return {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}


@settings(deadline=None)
@given(contents=st.lists(TEXT, min_size=1, max_size=3).filter(lambda contents: len(contents) != 2))
@example(contents=["  two  spaces\n\n ä 漢字 \U0001f600"])
def test_a_dialogue_has_transformers_tokens_or_is_refused_for_a_forged_one(tokenizer, contents):
    messages, forged = messages_of(*contents), [text for text in controls(tokenizer).values() for content in contents
                                                if text in content]
    if forged:
        with pytest.raises(ValueError, match="hold the text of the control token .*; remove it"):
            dialogue.tokenise(messages, tokenizer)
        return
    ids = dialogue.tokenise(messages, tokenizer)
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids.dtype == torch.long and ids.tolist() == expected


@settings(deadline=None)
@given(text=TEXT)
def test_plain_text_holds_no_control_token(tokenizer, text):
    ids = dialogue.plain(text, tokenizer).tolist()
    assert not controls(tokenizer).keys() & ids
    assert ids == tokenizer(text)["input_ids"] or any(control in text for control in controls(tokenizer).values())


def test_without_a_template_the_messages_are_plain_text_and_a_template_may_refuse_them():
    tokenizer = make_tokenizer()
    assert tokenizer.decode(dialogue.tokenise(messages_of("a", "b", "c<|end|>"), tokenizer)) == "a\n\nb\n\nc<|end|>"
    with pytest.raises(ValueError, match="the tokenizer has no chat template, which tools need; leave them out"):
        dialogue.tokenise(messages_of("a"), tokenizer, options={"tools": [{"name": "city"}]})
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ValueError, match="template refuses the messages .System role not supported."):
        dialogue.tokenise(dialogue.of_user("hello"), tokenizer)


@pytest.mark.parametrize("answer, end", [
    ("{{ m.content | trim }}<|end|>\n", "<|end|>"),
    ("{% if m.thinking %}<|user|>{{ m.thinking }}<|end|>{% endif %}{{ m.content }}"
     "{% if loop.last and not add_generation_prompt %}<|system|>{% else %}<|end|>{% endif %}", "<|system|>"),
    ("{% if m.thinking %}{{ m.thinking }}<|end|>{% endif %}{{ m.content }}<|end|>", None),
    ("{% if m.reasoning_content %}<|system|>{{ m.reasoning_content }}<|user|>{% endif %}{{ m.content }}<|end|>>",
     "<|end|>>"),
    ("{{ m.content }}", None), ("{{ m.content }}<|unknown|>", None), ("{{ raise_exception('no answers') }}", None)],
    ids=["chat", "two ends", "one end for both", "think", "no end", "no token", "refused"])
def test_the_end_of_a_turn_is_what_the_template_renders_last_and_not_within_an_answer(answer, end):
    tokenizer = small()
    tokenizer.chat_template = ("{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'user' %}{{ m.content }}<|end|>"
                               "\n{% else %}" + answer + "{% endif %}{% endfor %}")
    found = dialogue.end_of_turn(tokenizer)
    assert found == (None if end is None else tokenizer.convert_tokens_to_ids(end))
    tokenizer.chat_template = None
    assert dialogue.end_of_turn(tokenizer) is None
