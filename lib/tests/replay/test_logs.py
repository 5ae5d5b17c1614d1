"""Logs: every form gives the trace that recording in process gives, and a line that cannot be used is named."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from lib.decoding import continuations
from lib.models import SHIPPED, dialogue
from lib.models.load import load_pair
from lib.replay import logs, recording

PAIR = load_pair("small/tiny-small", dtype="float32")
EOS, NEW = 0, 24
DIALOGUES = [[{"role": "user", "content": text}] for text in (
    "def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n", "12 + 30 = ")]
PROMPTS = [dialogue.tokenise(messages, PAIR.tokenizer) for messages in DIALOGUES]
NAMES = tuple("abcd")
TEMPLATE = ("{% for tool in tools or [] %}<tool>{{ tool.function.name }}{{ '\\n' }}{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}<|turn|>{% endif %}"
            "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
IDS, PROMPT_IDS = [40, 41, 42, 43], [50, 51]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.fixture(scope="module")
def tokenizer():
    made = AutoTokenizer.from_pretrained(SHIPPED / "tiny")
    made.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    made.chat_template = TEMPLATE
    return made


def texts_of(lines, folder, tokenizer=PAIR.tokenizer, inputs="", eos=EOS):
    (folder / "log").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return logs.read(folder / "log", tokenizer, eos_token_id=eos, inputs=inputs)


def chat(message, request=None, usage=None, prompt_token_ids=None, **choice):
    """A request and its response, as an OpenAI-compatible server has them."""
    response = {"choices": [{"message": message, "finish_reason": "stop", **choice}], "created": 1764000000,
                "usage": usage, "prompt_token_ids": prompt_token_ids}
    return {"request": {"messages": DIALOGUES[1], "temperature": 0, **(request or {})}, "response": response}


GOOD = chat({"content": "the cat"})


def in_form(form, name, messages, ids, ended):
    """A line with ids in one of the forms, and the request that the batch API's input file has for it."""
    text = PAIR.tokenizer.decode(ids[:-1] if ended else ids, clean_up_tokenization_spaces=False)
    answer, finish = {"role": "assistant", "content": text}, "stop" if ended else "length"
    request = {"messages": messages, "temperature": 0.0}
    body = {"choices": [{"message": answer, "finish_reason": finish, "stop_reason": None, "token_ids": ids}]}
    return {"dialogue": {"id": name, "messages": [*messages, answer], "token_ids": ids, "finish_reason": finish,
                         "temperature": 0},
            "bare": {"id": name, **request, **body},
            "pair": {"id": name, "request": request, "response": body},
            "batch": {"custom_id": name, "error": None, "response": {"status_code": 200, "body": body}}}[form], request


@pytest.mark.parametrize("form", ["dialogue", "bare", "pair", "batch"])
def test_every_form_gives_the_trace_that_was_recorded(form, tmp_path):
    limits = dict(max_new_tokens=NEW, rows=4)
    eos = continuations(PAIR.target, PROMPTS, **limits)[1][9]  # a token at which one text ends
    written = continuations(PAIR.target, PROMPTS, **limits, eos_token_id=eos)
    ended = [row[-1] == eos for row in written]
    assert any(ended) and not all(ended)
    lines, requests = zip(*(in_form(form, *row) for row in zip(NAMES, DIALOGUES, written, ended)))
    (tmp_path / "input").write_text("\n".join(json.dumps({"custom_id": name, "body": body})
                                              for name, body in zip(NAMES, requests)))
    texts = texts_of(lines, tmp_path, inputs=tmp_path / "input" if form == "batch" else "", eos=eos)
    assert texts.names == NAMES and set(texts.known_by) == {logs.BY_IDS} and texts.temperatures == (0.0,)
    assert all(map(torch.equal, texts.prompts, PROMPTS))
    assert [*texts.written] == written and [*texts.ended] == ended
    made = recording.read(None, {"d": PAIR.draft_model}, texts)
    recorded = recording.record(PAIR.target, {"d": PAIR.draft_model}, PROMPTS, names=NAMES, kinds=NAMES, beyond=0,
                                max_new_tokens=NEW, eos_token_id=eos)
    width = made.tokens.shape[1]
    assert np.array_equal(made.tokens, recorded.tokens[:, :width]) and np.array_equal(made.ended, recorded.ended)
    assert np.array_equal(made.ranks["d"], recorded.ranks["d"][:, : width - 1])


def test_text_alone_is_its_canonical_tokens(tmp_path):
    written = continuations(PAIR.target, PROMPTS, max_new_tokens=NEW, rows=4)
    canonical = [PAIR.tokenizer(PAIR.tokenizer.decode(ids), add_special_tokens=False)["input_ids"] for ids in written]
    lines = [in_form("pair", *row, False)[0] for row in zip(NAMES, DIALOGUES, written)]
    for line in lines:
        del line["response"]["choices"][0]["token_ids"]
    texts = texts_of(lines, tmp_path)
    assert [*texts.written] == canonical and set(texts.known_by) == {logs.BY_TEXT}


@pytest.mark.parametrize("request_body, prompt", [
    ({"prompt": "who?"}, "who?"), ({"prompt": ["who?"]}, "who?"), ({"prompt": PROMPT_IDS}, PROMPT_IDS),
    ({"prompt": [PROMPT_IDS]}, PROMPT_IDS),
    ({"messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": [
        {"type": "text", "text": "who?"}, {"type": "text", "text": "they?"}]}], "tools": [TOOL]},
     "<tool>weather\n<system>Brief.\n<user>who?\nthey?\n<assistant>")])
def test_prompts_are_read_as_a_server_reads_them(request_body, prompt, tokenizer, tmp_path):
    """Control tokens come from the template alone; the parts of a message are lines."""
    found = texts_of([{"request": request_body, "response": {"choices": [{"text": "x"}]}}], tmp_path, tokenizer)
    ids = found.prompts[0].tolist()
    assert ids == prompt if isinstance(prompt, list) else tokenizer.decode(ids) == prompt
    assert tokenizer.convert_tokens_to_ids("<|turn|>") not in ids


def test_a_template_with_a_date_gets_the_day_of_the_log(tokenizer, tmp_path):
    dated = deepcopy(tokenizer)
    dated.chat_template = "{{ strftime_now('%d %B %Y') }}\n" + TEMPLATE
    assert dated.decode(texts_of([GOOD], tmp_path, dated).prompts[0]).startswith("24 November 2025\n")


@pytest.mark.parametrize("choice, request_body, ends", [
    ({"finish_reason": "stop"}, {}, True), ({"finish_reason": "length"}, {}, False),
    ({"stop_reason": "###"}, {"stop": ["###"]}, False), ({"stop_reason": None}, {"stop": ["###"]}, True),
    ({}, {"stop": ["###"]}, False), ({"finish_reason": None}, {}, False)])
def test_an_answer_that_ended_by_itself_ends_in_eos(choice, request_body, ends, tmp_path):
    found = texts_of([chat({"content": "def main"}, request_body, **choice)], tmp_path)
    assert found.ended == (ends,) and (found.written[0][-1] == EOS) == ends


@pytest.mark.parametrize("of_server, eos, last", [
    (None, [7, 3], "<|turn|>"), (5, [7, 3], 5), (None, [7, 3], 7), (None, 3, 3)],
    ids=["template", "server", "first", "one"])
def test_the_end_is_the_servers_or_the_templates_or_the_first_of_eos(of_server, eos, last, tokenizer, tmp_path):
    tokenizer = deepcopy(tokenizer)
    if last == "<|turn|>":
        last = tokenizer.convert_tokens_to_ids(last)
    else:
        tokenizer.chat_template = TEMPLATE.replace("<|turn|>", "")
    for choice in ({"token_ids": IDS}, {}, {"token_ids": [*IDS, last]}):
        found = texts_of([chat({"content": "the cat"}, stop_reason=of_server, **choice)], tmp_path, tokenizer, eos=eos)
        assert found.written[0][-1] == last and found.ended == (True,) and found.written[0].count(last) == 1


@pytest.mark.parametrize("message", [
    {"content": "x", "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]},
    {"content": "x", "reasoning_content": "hm"}, {"content": "x", "reasoning": "hm"}])
def test_an_answer_beside_whose_text_there_is_more_needs_the_ids_of_prompt_and_answer(message, tokenizer, tmp_path):
    exact_line = chat(message, token_ids=IDS, prompt_token_ids=PROMPT_IDS)
    found = texts_of([exact_line], tmp_path, tokenizer)
    assert found.known_by == (logs.BY_IDS,) and found.prompts[0].tolist() == PROMPT_IDS
    assert found.written[0][:-1] == IDS and found.ended == (True,)
    for line in (chat(message, token_ids=IDS), chat(message, prompt_token_ids=PROMPT_IDS)):
        assert "log the ids of prompt and answer" in refusal(line, tokenizer, tmp_path)


def refusal(line, tokenizer, folder):
    """Why a line among good ones is refused; "" where it is read."""
    found = texts_of([GOOD] * 10 + [line], folder, tokenizer)
    assert len(found.names) + len(found.refused) == 11 and set(found.refused) <= {"log, line 11"}
    return found.refused.get("log, line 11", "")


@pytest.mark.parametrize("line, reason", [
    (GOOD, ""), ([1], "another form"), (chat({"content": "x"}, {"temperature": "hot"}), "another form"),
    ({"text": "x"}, "it has text; a response, or messages"),
    ({"messages": DIALOGUES[0]}, "messages with the assistant's answer last"),
    ({"custom_id": "a", "response": {"body": {"choices": []}}}, "the request 'a' is in no input file"),
    ({"request": {}, "response": {"status_code": 500}}, "the request failed"),
    ({"request": {}, "response": {}, "error": {"code": "x"}}, "the request failed"),
    ({"request": {"prompt": "x"}, "response": {"choices": []}}, "has 0 choices; log one answer per line"),
    ({"request": {"prompt": "x"}, "response": {"choices": [{"text": "a"}, {"text": "b"}]}}, "has 2 choices"),
    ({"request": {}, "response": {"choices": [{"text": "x"}]}}, "neither messages nor a prompt"),
    ({"request": {"prompt": ["a", "b"]}, "response": {"choices": [{"text": "x"}]}}, "no numbers of tokens"),
    (chat({"content": ""}), "the answer is empty"), (chat({"content": None}), "has no text"),
    (chat("x"), "another form"), (chat({"content": "\ud800"}), "another form"),
    (chat({"content": [{"type": "image_url", "image_url": {}}]}), "type 'image_url', no text"),
    (chat({"content": "x"}, {"messages": [{"role": "user", "content": None}]}), "calls a tool, or has no text"),
    (chat({"content": "x"}, {"messages": [{"role": "user", "content": "y", "tool_calls": [CALL]}]}), "calls a tool"),
    (chat({"content": "x"}, {"messages": [{"content": "y"}]}), "another form (KeyError: 'role')"),
    (chat({"content": "x"}, token_ids=[1, -1]), "its token ids are [1, -1], no numbers of tokens"),
    (chat({"content": "x"}, token_ids=[9999999]), "it has token 9999999, the tokenizer has"),
    (chat({"content": "x"}, usage={"completion_tokens_details": {"reasoning_tokens": 5}}),
     "reasoning that is not logged"),
])
def test_a_line_that_cannot_be_used_is_named_with_the_reason(line, reason, tokenizer, tmp_path):
    found = refusal(line, tokenizer, tmp_path)
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize("text, log, inputs, message", [
    ("some text\n", "log", "", "has 0 answers that can be used, and 1 that cannot .log, line 1: it has another form"),
    ("", "log", "", "it has no line"), (json.dumps(GOOD) + "\n{", "log", "", "log, line 2: .*mend or remove these"),
    ("", "nothing", "", "No such file .*nothing"),
    (json.dumps(GOOD), "log", "log", "log, line 1 is no request .*the batch's own input file")])
def test_a_file_of_which_too_much_is_refused_or_that_is_not_there_is_no_log(text, log, inputs, message, tmp_path):
    (tmp_path / "log").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        logs.read(tmp_path / log, PAIR.tokenizer, eos_token_id=EOS, inputs=inputs and tmp_path / inputs)


def test_answers_of_one_conversation_are_its_turns(tmp_path):
    """In any order, beside others whose first words are the same."""
    def turns(name, count):
        return [{"role": role, "content": f"{role} says {name} {number}."}
                for number, role in enumerate(["system", *["user", "assistant"] * count])]

    dialogues = {f"{name}{count}": turns(name, int(count)) for name, count in ("b2", "c1", "a1", "b1", "a3", "a2")}
    dialogues["d1"] = [*turns("a", 1)[:2], turns("d", 1)[-1]]
    texts = texts_of([{"id": name, "messages": messages} for name, messages in dialogues.items()], tmp_path)
    assert texts.names == ("b1 turn 2", "c1", "a1 turn 1", "b1 turn 1", "a1 turn 3", "a1 turn 2", "d1")
