"""Logs: every form gives the texts that a model wrote, and a line that cannot be used is named."""

import gzip
import json
from copy import deepcopy
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from lib.lab import provenance, units
from lib.models import SHIPPED
from lib.replay import logs
from lib.tests import mutations

TOKENIZER, EOS = AutoTokenizer.from_pretrained(SHIPPED / "tiny"), 0
DIALOGUES = [[{"role": "user", "content": text}] for text in (
    "def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n", "12 + 30 = ")]
NAMES = tuple("abcd")
TEMPLATE = ("{% for tool in tools or [] %}<tool>{{ tool.function.name }}{{ '\\n' }}{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}<|turn|>{% endif %}"
            "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
WHO, BEGUN = [{"role": "user", "content": "who?"}], {"role": "assistant", "content": "now "}
WHO_IDS, CAT_IDS, OTHER_IDS = (TOKENIZER(text)["input_ids"] for text in ("who?", "the cat", "another text"))
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.fixture(scope="module")
def tokenizer():
    made = deepcopy(TOKENIZER)
    made.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    made.chat_template = TEMPLATE
    return made


def texts_of(lines, folder, tokenizer=TOKENIZER, eos=EOS, is_array=False):
    text = json.dumps(lines, indent=1) if is_array else "\n".join(map(json.dumps, lines))
    (folder / "log").write_bytes(gzip.compress(text.encode()) if is_array else text.encode())
    return logs.read(folder / "log", tokenizer, eos_token_id=eos)


def chat(text="the cat", request=None, usage=None, prompt_token_ids=None, **choice):
    """A request and its response, as an OpenAI-compatible server has them."""
    choice = {"message": {"content": text}, "finish_reason": "stop", **choice}
    return {"request": {"messages": DIALOGUES[1], "temperature": 0, **(request or {})}, "response": {
        "choices": [choice], "created": 1764000000, "usage": usage, "prompt_token_ids": prompt_token_ids}}


def pair(request, **choice):
    """A line of a request and of a response that has a choice alone."""
    return {"request": request, "response": {"choices": [choice]}}


GOOD = chat()


def in_form(form, name, messages, ids, ended):
    """A line with ids in one of the forms, and the request that the batch API's input file has for it."""
    text = TOKENIZER.decode(ids[:-1] if ended else ids, clean_up_tokenization_spaces=False)
    answer, finish = {"role": "assistant", "content": text}, "stop" if ended else "length"
    request = {"messages": messages, "temperature": 0.0}
    body = {"choices": [{"message": answer, "finish_reason": finish, "stop_reason": None, "token_ids": ids}]}
    return {"dialogue": {"id": name, "messages": [*messages, answer], "token_ids": ids, "finish_reason": finish,
                         "temperature": 0},
            "bare": {"id": name, **request, **body},
            "pair": {"id": name, "request": request, "response": {"status_code": "200", "body": json.dumps(body)}},
            "batch": {"custom_id": name, "error": None, "response": {"status_code": 200, "body": body}}}[form], request


@pytest.mark.parametrize("form", ["dialogue", "bare", "pair", "batch"])
def test_every_form_gives_the_texts_that_were_written(form, tmp_path):
    written, ended = ([*CAT_IDS, EOS], WHO_IDS, OTHER_IDS, [*WHO_IDS, EOS]), (True, False, False, True)
    lines, requests = zip(*(in_form(form, *row) for row in zip(NAMES, DIALOGUES, written, ended)))
    inputs = [{"custom_id": name, "body": body} for name, body in zip(NAMES, requests)] if form == "batch" else []
    texts = texts_of([*inputs, *lines], tmp_path, is_array=form == "bare")
    assert texts.names == NAMES and set(texts.known_by) == {logs.BY_IDS} and texts.temperatures == (0.0,)
    assert [*map(TOKENIZER.decode, texts.prompts)] == [messages[0]["content"] for messages in DIALOGUES]
    assert texts.written == written and texts.ended == ended


@pytest.mark.parametrize("request_body, prompt", [
    ({"prompt": ["who?"]}, "<|end|>who?"), ({"prompt": "who?", "add_special_tokens": False}, "who?"),
    ({"prompt": [[50, 51]]}, [50, 51]), ({"prompt": [3, 4, 5], "truncate_prompt_tokens": 2}, [4, 5]),
    ({"messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": [
        {"type": "text", "text": "who?"}, {"type": "text", "text": "they?"}]}], "tools": [TOOL]},
     "<tool>weather\n<system>Brief.\n<user>who?\nthey?\n<assistant>"),
    ({"messages": WHO, "add_generation_prompt": False}, "<user>who?\n"),
    ({"messages": WHO, "chat_template_kwargs": {"add_generation_prompt": False}}, "<user>who?\n"),
    ({"messages": WHO, "add_special_tokens": True, "chat_template": "{{ messages[0].content }}"}, "<|end|>who?"),
    ({"messages": WHO, "documents": [{"text": "a"}], "chat_template": "{{ documents[0].text }}"}, "a"),
    ({"messages": [*WHO, BEGUN], "continue_final_message": True}, "<user>who?\n<assistant>now ")])
def test_prompts_are_read_as_a_server_reads_them(request_body, prompt, tokenizer, tmp_path):
    """Control tokens come from the template alone; the parts of a message are lines; a server counts as many tokens."""
    tokenizer = deepcopy(tokenizer)
    tokenizer.add_bos_token = True
    line = pair(request_body, text="x")
    ids = texts_of([line], tmp_path, tokenizer).prompts[0].tolist()
    assert ids == prompt if isinstance(prompt, list) else tokenizer.decode(ids) == prompt
    assert tokenizer.convert_tokens_to_ids("<|turn|>") not in ids
    line["response"]["usage"] = {"prompt_tokens": len(ids)}
    assert texts_of([line], tmp_path, tokenizer).prompts[0].tolist() == ids
    line["response"]["usage"] = {"prompt_tokens": len(ids) + 3}
    with pytest.raises(ValueError, match=f"the server('s template)? adds 3 tokens to each prompt: log .*chat_template.*"
                                         f"counted {len(ids) + 3} tokens .* here it has {len(ids)}; log the ids"):
        texts_of([line], tmp_path, tokenizer)


def test_a_template_with_a_date_gets_the_day_of_the_log_and_tools_choose_among_named_ones(tokenizer, tmp_path):
    dated = deepcopy(tokenizer)
    dated.chat_template = {"default": "none", "tool_use": "{{ strftime_now('%d %B %Y') }}\n" + TEMPLATE}
    line = chat(request={"tools": [TOOL]})
    prompt = dated.decode(texts_of([line], tmp_path, dated).prompts[0])
    assert prompt.startswith("24 November 2025\n<tool>weather\n<user>")
    del line["response"]["created"]
    assert dated.decode(texts_of([line], tmp_path, dated).prompts[0]).endswith(prompt.partition("\n")[2])


@pytest.mark.parametrize("choice, stop, ends", [
    ({}, None, True), ({"finish_reason": "length"}, None, False), ({"finish_reason": None}, None, False),
    ({"stop_reason": "###"}, ["###"], False), ({"stop_reason": None}, ["###"], True), ({}, ["###"], False),
    ({"finish_reason": "eos_token"}, ["###"], True), ({"stop_reason": "end_turn"}, ["###"], True),
    ({"finish_reason": "stop_sequence"}, None, False), ({"finish_reason": "odd"}, None, False),
    ({"finish_reason": {"type": "stop", "matched": EOS}}, None, True)])
def test_an_answer_that_ended_by_itself_ends_in_eos(choice, stop, ends, tmp_path):
    found = texts_of([chat("def main", {"stop": stop}, **choice)], tmp_path)
    assert found.ended == (ends,) and (found.written[0][-1] == EOS) == ends
    assert ("finish reasons 'odd' (1), which are not known" in found.summary) == ("odd" in choice.values())


@pytest.mark.parametrize("of_server, eos, last", [
    (None, [7, 3], "<|turn|>"), (5, [7, 3], 5), (None, [7, 3], 7), (None, 3, 3)],
    ids=["template", "server", "first", "one"])
def test_the_end_is_the_servers_or_the_templates_or_the_first_of_eos(of_server, eos, last, tokenizer, tmp_path):
    tokenizer, turn = deepcopy(tokenizer), tokenizer.convert_tokens_to_ids("<|turn|>")
    if last != "<|turn|>":
        tokenizer.chat_template, turn = TEMPLATE.replace("<|turn|>", ""), last
    lines = [chat(stop_reason=of_server, token_ids=ids) for ids in (CAT_IDS, None, [*CAT_IDS, turn])]
    if last == "<|turn|>":  # a control token, which the text of an answer can hold
        lines += [chat("the cat" + end, {"skip_special_tokens": keeps}) for end, keeps in (
            (last, None), (last + "\n", None), (last, False))]
    found = texts_of(lines, tmp_path, tokenizer, eos=eos)
    assert found.written == ([*CAT_IDS, turn],) * len(lines) and all(found.ended)


@pytest.mark.parametrize("request_body, choice", [
    ({"prompt": ["who?"]}, {"text": "who?the cat"}), ({"prompt": WHO_IDS}, {"text": "who?the cat"}),
    ({"prompt": "who?"}, {"text": "who?the cat", "token_ids": CAT_IDS}),
    ({"prompt": "who?"}, {"text": "who?the cat", "token_ids": WHO_IDS + CAT_IDS, "prompt_token_ids": WHO_IDS}),
    ({"messages": WHO}, {"message": {"content": "the cat"}}),
    ({"messages": [*WHO, BEGUN], "continue_final_message": True}, {"message": {"content": "now the cat"}})])
def test_an_echo_of_the_prompt_is_no_answer(request_body, choice, tokenizer, tmp_path):
    assert texts_of([pair(request_body | {"echo": True}, **choice)], tmp_path, tokenizer).written == (CAT_IDS,)


@pytest.mark.parametrize("message", [{"content": "x", "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]},
                                     {"content": "x", "reasoning_content": "hm"}, {"content": "x", "reasoning": "hm"}])
def test_an_answer_beside_whose_text_there_is_more_needs_the_ids_of_prompt_and_answer(message, tokenizer, tmp_path):
    ids = {"token_ids": CAT_IDS, "prompt_token_ids": WHO_IDS}
    found = texts_of([chat(message=message, **ids)], tmp_path, tokenizer)
    assert (found.prompts[0].tolist(), found.written[0][:-1]) == (WHO_IDS, CAT_IDS) and found.ended == (True,)
    for lost in ids:
        line = chat(message=message, **ids | {lost: None})
        assert "log the ids of prompt and answer" in refusal(line, tokenizer, tmp_path)


def refusal(line, tokenizer, folder, count=1):
    """Why the last of so many equal lines among good ones is refused; "" where it is read."""
    found = texts_of([GOOD] * 10 + [line] * count, folder, tokenizer)
    assert len(found.names) + len(found.refused) == 10 + count and {*found.refused} <= {f"log, line {10 + count}"}
    return found.refused.get(f"log, line {10 + count}", "")


@pytest.mark.parametrize("case", [*map(json.loads, Path(__file__).with_name("refused.jsonl").open())],
                         ids=lambda case: case["reason"])
def test_a_line_that_cannot_be_used_is_named_with_the_reason(case, tokenizer, tmp_path):
    assert case["reason"] in refusal(case["line"], tokenizer, tmp_path)


def test_an_id_names_one_line(tokenizer, tmp_path):
    line = GOOD | {"id": 1}
    assert not refusal(line, tokenizer, tmp_path)
    assert refusal(line, tokenizer, tmp_path, 2) == "its id '1' stands in log, line 11 already; give each another"


BATCH = json.dumps({"custom_id": "a", "body": GOOD["request"]})


@pytest.mark.parametrize("text, log, message", [
    ("some text\n", "log", "has 0 answers that can be used, and 1 that cannot .log, line 1: no JSON in UTF-8"),
    ("", "log", "it has no line"), (json.dumps(GOOD) + "\n{", "log", "log, line 2: .*mend or remove these"),
    ("", "nothing", "No such file .*nothing"), ("", "", "is a folder; give a file of JSON Lines"),
    (f"{BATCH}\n{BATCH}", "log", "log, line 2: its id 'a' stands in log, line 1 already"),
    (json.dumps(GOOD).encode("utf-16"), "log", "log is in UTF-16; give JSON Lines in UTF-8"),
    (json.dumps(GOOD).replace("who", "w\xf6").encode("latin-1"), "log", "line 1: no JSON in UTF-8 .*0xf6"),
    ("data: {}\n\ndata: [DONE]\n", "log", "is a stream of events, in which an answer is in pieces"),
    ("INFO 10-01 18:43:28 logger.py:36] Received request a: prompt: 'b'", "log", "a server's own log"),
    (gzip.compress(b"[1]", mtime=0)[:-4], "log", "log is a damaged gzip file")])
def test_a_file_of_which_too_much_is_refused_or_that_is_not_there_is_no_log(text, log, message, tmp_path):
    (tmp_path / "log").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        logs.read(tmp_path / log, TOKENIZER, eos_token_id=EOS)


@pytest.mark.parametrize("lines", [
    (provenance.HOME / "data" / "logs" / "example.jsonl").read_text(encoding="utf-8").splitlines()[::3],
    list(map(json.dumps, [GOOD, pair({"prompt": "who?", "n": 2}, text="x") | {"custom_id": "a", "error": None},
                          {"id": "b", "messages": [*WHO, BEGUN]}]))], ids=["example", "forms"])
def test_a_broken_log_is_refused_or_has_no_other_answers_than_the_whole_one(lines, tmp_path):
    def found(path):
        texts = logs.read(path, TOKENIZER, eos_token_id=EOS)
        return {(TOKENIZER.decode(prompt), TOKENIZER.decode(ids, skip_special_tokens=True))
                for prompt, ids in zip(texts.prompts, texts.written)}

    mutations.check(found, lines, tmp_path / "log")


def test_answers_of_one_conversation_are_its_turns(tmp_path):
    """In any order, beside others whose first words are the same; further answers to one prompt are of its unit."""
    def turns(name, count):
        return [{"role": role, "content": f"{role} says {name} {number}."}
                for number, role in enumerate(["system", *["user", "assistant"] * count])]

    dialogues = {f"{name}{count}": turns(name, int(count)) for name, count in ("b2", "c1", "a1", "b1", "a3", "a2")}
    dialogues["d1"] = [*turns("a", 1)[:2], turns("d", 1)[-1]]
    texts = texts_of([{"id": name, "messages": messages} for name, messages in dialogues.items()], tmp_path)
    assert texts.names == ("b1 turn 2", "c1", "a1 turn 1 answer 1", "b1 turn 1", "a1 turn 3", "a1 turn 2",
                           "a1 turn 1 answer 2")
    several, again = pair({"prompt": "who?", "n": 2}, text="x"), pair({"prompt": "who?"}, text="z")
    several["response"]["choices"].append({"text": "y"})
    texts = texts_of([several | {"id": "n"}, again], tmp_path)
    assert texts.names == ("n answer 1", "n answer 2", "n answer 3") and {*map(units.unit, texts.names)} == {"n"}
    assert [*map(TOKENIZER.decode, texts.written)] == ["x", "y", "z"]
