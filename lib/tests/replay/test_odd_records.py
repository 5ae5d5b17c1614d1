"""Records of logs as servers and clients really write them: each is read as what the model wrote, or refused by a line
that names the record and the reason.
"""

import json
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lib.models import SHIPPED
from lib.replay import log_lines, logs

TEMPLATE = ("{% for tool in tools or [] %}<tool>{{ tool.function.name }}{{ '\\n' }}{% endfor %}"
            "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant', 'tool', 'developer') %}"
            "<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}"
            "{% endfor %}{% if m.role == 'assistant' %}<|turn|>{% endif %}{{ '\\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
EOS = 0
IDS, PROMPT_IDS = [40, 41, 42, 43], [50, 51]
ASKED = [{"role": "user", "content": "who has the key?"}]
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def tokenizer():
    found = AutoTokenizer.from_pretrained(SHIPPED / "tiny")
    found.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def turn(tokenizer):
    return tokenizer.convert_tokens_to_ids("<|turn|>")


def texts(lines, tokenizer, tmp_path, inputs="", eos=EOS):
    (tmp_path / "log").write_text("\n".join(lines), encoding="utf-8")
    return logs.tokenised(log_lines.read(tmp_path / "log", inputs), tokenizer, eos_token_id=eos)


def chat(message, request=None, **choice):
    """A request and its response, as an OpenAI-compatible server has them; "usage" and "prompt_token_ids" are its."""
    response = {name: choice.pop(name) for name in ("usage", "prompt_token_ids") if name in choice}
    return {"request": {"messages": ASKED, **(request or {})},
            "response": {"choices": [{"message": message, "finish_reason": "stop", **choice}], **response}}


def refusal(record, tokenizer, tmp_path):
    """Why a record among good ones is refused; "" where it is read."""
    line = record if isinstance(record, str) else json.dumps(record)
    found = texts([GOOD] * 10 + [line], tokenizer, tmp_path)
    assert len(found.names) + len(found.refused) == 11 and set(found.refused) <= {"log, line 11"}
    return found.refused.get("log, line 11", "")


GOOD = json.dumps(chat({"content": "the cat"}))


# ------------------------------------------------------------------------------------------------------- vLLM's own log


def server(rows, most=None, debug=True, newest=False, streamed=False):
    """The lines of a vLLM server's log. rows: (name, prompt, prompt ids, text, ids, finish); most: --max-log-len."""
    yield '{"level": "INFO", "message": "starting"}'
    yield "(APIServer pid=7) INFO:     Application startup complete."
    for name, prompt, prompt_ids, text, ids, finish in rows:
        if debug:
            yield (f"(APIServer pid=7) DEBUG 11-25 10:00:00 [logger.py:49] Request {name} details: prompt: "
                   f"{prompt[:most]!r}, prompt_token_ids: {prompt_ids[:most]}, prompt_embeds shape: None.")
        yield (f"(APIServer pid=7) INFO 11-25 10:00:00 [logger.py:60] Received request {name}: params: SamplingParams("
               "n=1, temperature=0.0, stop=[], stop_token_ids=[], include_stop_str_in_output=False), lora_request: "
               "None.")
        head = "(APIServer pid=7) INFO 11-25 10:00:02 [logger.py:80] Generated response"
        if newest:
            yield f"{head.replace('INFO', 'DEBUG')} {name} details: output_token_ids: {ids[:most]}"
            yield f"{head} {name}: output: {text[:most]!r}, finish_reason: {finish}"
        elif streamed:
            yield f"{head} {name} (streaming delta): output: 'x', output_token_ids: [9], finish_reason: None"
            yield (f"{head} {name} (streaming complete): output: {text[:most]!r}, output_token_ids: None, "
                   "finish_reason: streaming_complete")
        else:
            yield f"{head} {name}: output: {text[:most]!r}, output_token_ids: {ids[:most]}, finish_reason: {finish}"


def answers(tokenizer, lengths, end=(EOS,)):
    """Answers of so many tokens, which ended by themselves."""
    for number, length in enumerate(lengths):
        ids = [400 + (number + 7 * place) % 900 for place in range(length)]
        yield f"q{number}", "who?", PROMPT_IDS, tokenizer.decode(ids), ids + list(end), "stop"


@pytest.mark.parametrize("newest", [False, True])
def test_a_servers_log_is_read_by_its_ids_after_a_first_line_of_json(newest, tokenizer, tmp_path):
    rows = list(answers(tokenizer, [5, 9, 7]))
    found = texts(server(rows, newest=newest), tokenizer, tmp_path)
    assert [list(ids) for ids in found.written] == [row[4] for row in rows] and found.ended == (True,) * 3
    assert set(found.known_by) == {logs.BY_IDS} and found.temperatures == (0.0,) and not found.refused
    assert all(prompt.tolist() == PROMPT_IDS for prompt in found.prompts)
    more = texts([*server(rows, newest=newest), GOOD], tokenizer, tmp_path)
    assert len(more.names) == 4, "a record among the server's lines is read too"


def test_what_max_log_len_cut_has_no_end(tokenizer, turn, tmp_path):
    rows = list(answers(tokenizer, [5, 30, 40, 6, 50, 60]))
    found = texts(server(rows, most=20), tokenizer, tmp_path)
    assert found.ended == (True, False, False, True, False, False)
    assert [list(ids) for ids in found.written] == [row[4][:20] for row in rows]
    assert "of 4 of 6 answers the log holds the beginning alone" in found.notes[0]
    whole = texts(server(answers(tokenizer, [5, 30, 40], end=[]), most=500), tokenizer, tmp_path)
    assert whole.ended == (True,) * 3 and {ids[-1] for ids in whole.written} == {turn}
    assert [ids[:-1] for ids in whole.written] == [row[4] for row in answers(tokenizer, [5, 30, 40], end=[])]


def test_what_was_cut_and_is_known_by_its_text_has_no_end(tokenizer, turn, tmp_path):
    said = ("the key is under the mat near the door", "nobody has it", "the cat took it away in the night",
            "ask the keeper of the lighthouse for it")
    rows = [(f"q{number}", "who?", PROMPT_IDS, text, None, "stop") for number, text in enumerate(said)]
    lines = [line.replace("output_token_ids: [1], ", "output_token_ids: None, ") for line in server(
        [(*row[:4], [1], row[5]) for row in rows], most=20)]
    found = texts(lines, tokenizer, tmp_path)
    assert found.ended == (False, True, False, False) and set(found.known_by) == {logs.BY_TEXT}
    assert [ids[-1] == turn for ids in found.written] == list(found.ended)
    assert tokenizer.decode(found.written[0]) == said[0][:20]


def test_a_cut_prompt_is_refused(tokenizer, tmp_path):
    rows = [(f"q{number}", f"{number} " * (30 + number), [number] * 50, *row[3:])
            for number, row in enumerate(answers(tokenizer, [5] * 4))]
    with pytest.raises(ValueError, match="log, line 5: its prompt was cut: log with a greater --max-log-len"):
        texts(server(rows, most=40), tokenizer, tmp_path)
    assert len(texts(server(rows), tokenizer, tmp_path).names) == 4


@pytest.mark.parametrize("text, why", [
    ("<streaming_complete: 123 tokens>", "it was streamed, and the log has '<streaming_complete: 123 tokens>'"),
    ('[tool_calls: weather({"city": "Oslo"})]', "the answer calls a tool"),
    ("[reasoning: the mat]", "the answer is reasoning")])
def test_what_a_server_writes_in_place_of_an_answer_is_none(text, why, tokenizer, tmp_path):
    good = list(server(answers(tokenizer, [5] * 20)))
    odd = list(server([("odd", "who?", PROMPT_IDS, text, [], "stop")], streamed=True))
    found = texts([*good, *odd], tokenizer, tmp_path)
    [(where, reason)] = found.refused.items()
    assert reason.startswith(why) and where == f"log, line {len(good) + len(odd)}" and len(found.names) == 20
    exact = texts(server([("odd", "who?", PROMPT_IDS, text, IDS, "stop")]), tokenizer, tmp_path)
    assert list(exact.written[0])[:4] == IDS, "with its ids it is what the model wrote"


def test_without_prompts_the_log_says_what_to_do(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="log with VLLM_LOGGING_LEVEL=DEBUG"):
        texts(server(answers(tokenizer, [5]), debug=False), tokenizer, tmp_path)


# ------------------------------------------------------------------------------------------------- responses with ids


@pytest.mark.parametrize("message", [
    {"content": None, "tool_calls": [CALL]}, {"content": None, "reasoning": "hm"}, {"content": "x", "reasoning": "hm"},
    {"content": "x", "reasoning_content": "hm"}, {"tool_calls": [CALL]}, {"content": None},
    {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "x"}]}])
@pytest.mark.parametrize("inside", [True, False])
def test_an_answer_is_its_ids_whatever_the_message_holds(message, inside, tokenizer, tmp_path):
    record = chat(message, {"tools": [TOOL]}, token_ids=IDS, prompt_token_ids=PROMPT_IDS)
    if inside:
        record["response"]["choices"][0]["prompt_token_ids"] = record["response"].pop("prompt_token_ids")
    found = texts([json.dumps(record)], tokenizer, tmp_path)
    assert found.known_by == (logs.BY_IDS,) and found.prompts[0].tolist() == PROMPT_IDS
    assert list(found.written[0][:-1]) == IDS and found.ended == (True,)
    if message != {"content": None}:
        for name, holder in (("prompt_token_ids", record["response"]), ("prompt_token_ids",
                             record["response"]["choices"][0]), ("token_ids", record["response"]["choices"][0])):
            without = deepcopy(record)
            if name in holder:
                part = without["response"] if holder is record["response"] else without["response"]["choices"][0]
                del part[name]
                assert "log the ids of prompt and answer" in refusal(without, tokenizer, tmp_path)


def test_each_choice_has_its_own_prompt(tokenizer, tmp_path):
    choices = [{"text": "x", "token_ids": IDS, "prompt_token_ids": [50 + place], "finish_reason": "length"}
               for place in range(2)]
    row = {"id": "a", "request": {"prompt": ["who?", "what?"]}, "response": {"choices": choices}}
    found = texts([json.dumps(row)], tokenizer, tmp_path)
    assert [prompt.tolist() for prompt in found.prompts] == [[50], [51]] and found.names == ("a/0", "a/1")
    for choice in choices:
        del choice["prompt_token_ids"]
    assert "neither messages nor one prompt" in refusal(row, tokenizer, tmp_path)


def test_a_choice_that_cannot_be_used_leaves_the_others_their_own_names(tokenizer, tmp_path):
    choices = [{"message": {"content": text}, "finish_reason": "length"} for text in ("the cat", "", "the key")]
    rows = [json.dumps({"id": "a", "request": {"messages": ASKED}, "response": {"choices": choices}})]
    found = texts(rows + [GOOD] * 10, tokenizer, tmp_path)
    assert found.refused == {"log, line 1": "the answer is empty"} and len(found.names) == len(found.written) == 12
    assert [(name, tokenizer.decode(ids)) for name, ids in zip(found.names, found.written)][:2] == [
        ("a/0", "the cat"), ("a/2", "the key")]


@pytest.mark.parametrize("counted, ended", [(None, True), (4, True), (5, True), (6, False), (90, False)])
def test_a_count_above_the_logged_ids_shows_a_cut(counted, ended, tokenizer, turn, tmp_path):
    """Of one token more the last is the end itself."""
    record = chat({"content": "x"}, token_ids=IDS, usage={"completion_tokens": counted})
    found = texts([json.dumps(record)], tokenizer, tmp_path)
    assert found.ended == (ended,) and list(found.written[0]) == IDS + [turn] * ended


def test_many_answers_of_one_length_are_cut_there_and_a_longer_one_shows_that_they_are_not(tokenizer, turn, tmp_path):
    rows = [json.dumps(chat({"content": "x"}, token_ids=[60 + place] * 12)) for place in range(4)]
    found = texts([*rows, GOOD], tokenizer, tmp_path)
    assert found.ended == (False,) * 4 + (True,) and "4 of 5 answers" in found.notes[0]
    longer = json.dumps(chat({"content": "x"}, token_ids=[70] * 13 + [turn]))
    assert texts([*rows, longer], tokenizer, tmp_path).ended == (True,) * 5
    assert texts(rows[:1] * 4, tokenizer, tmp_path).ended == (True,) * 4, "the same answer four times has one length"


@pytest.mark.parametrize("reason, eos, last", [
    (None, [7, 3], "turn"), (5, [7, 3], 5), (None, [7, 3], 7), (None, 3, 3)],
    ids=["template", "server", "first", "one"])
def test_the_end_is_the_servers_or_the_templates_or_the_first_listed(reason, eos, last, tokenizer, turn, tmp_path):
    tokenizer = deepcopy(tokenizer)
    if last != "turn":
        tokenizer.chat_template = TEMPLATE.replace("<|turn|>", "")
    for more in ({"token_ids": IDS}, {}):
        record = chat({"content": "the cat"}, stop_reason=reason, **more)
        found = texts([json.dumps(record)], tokenizer, tmp_path, eos=eos)
        assert found.written[0][-1] == (turn if last == "turn" else last) and found.ended == (True,)
    for own in (turn, 7, 3) if last == "turn" else (7,) if last == 7 else ():
        record = chat({"content": "x"}, token_ids=[*IDS, own])
        assert list(texts([json.dumps(record)], tokenizer, tmp_path, eos=eos).written[0]) == [*IDS, own]


# ----------------------------------------------------------------------------------------------- messages and Responses


def test_messages_of_parts_and_of_all_roles_are_what_the_template_makes_of_them(tokenizer, tmp_path):
    asked = [{"role": "developer", "content": "be brief"},
             {"role": "user", "content": [{"type": "text", "text": "weather"}, {"type": "text", "text": "now?"}]},
             {"role": "assistant", "content": None, "tool_calls": [CALL]},
             {"role": "tool", "tool_call_id": "c", "content": "rain <|turn|>"}]
    record = chat({"content": [{"type": "text", "text": "the "}, {"type": "text", "text": "rain"}]},
                  {"messages": asked, "tools": [TOOL]})
    row = {"messages": [*asked, {"role": "assistant", "content": "the rain"}], "tools": [TOOL], "finish_reason": "stop"}
    found = texts([json.dumps(record), json.dumps(row)], tokenizer, tmp_path)
    shown = ("<tool>weather\n<developer>be brief\n<user>weather\nnow?\n<assistant>Oslo<|turn|>\n<tool>rain <|turn|>\n"
             "<assistant>")
    assert [tokenizer.decode(prompt) for prompt in found.prompts] == [shown] * 2
    marks = (found.prompts[0] == tokenizer.convert_tokens_to_ids("<|turn|>")).sum()
    assert marks == 1, "what a tool said is text"
    assert [tokenizer.decode(ids[:-1]) for ids in found.written] == ["the rain"] * 2


@pytest.mark.parametrize("role", ["tool", "developer"])
def test_a_role_that_the_template_leaves_out_is_refused(role, tokenizer, tmp_path):
    record = chat({"content": "the cat"}, {"messages": [{"role": role, "content": "x"}, *ASKED]})
    assert refusal(record, tokenizer, tmp_path) == ""
    without = deepcopy(tokenizer)
    without.chat_template = TEMPLATE.replace(f", '{role}'", "")
    assert f"leaves out messages of the {role}" in refusal(record, without, tmp_path)
    strict = deepcopy(tokenizer)
    strict.chat_template = "{% if messages[0].role not in ('user',) %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
    assert "template refuses the messages (no)" in refusal(record, strict, tmp_path)


def test_the_template_gets_what_the_request_gave_it(tokenizer, tmp_path):
    own = deepcopy(tokenizer)
    own.chat_template += "{% if not thinking %}<think>{% endif %}{{ reasoning_effort }}"
    record = chat({"content": "x"}, {"chat_template_kwargs": {"thinking": False}, "reasoning_effort": "low"})
    plain = chat({"content": "x"}, {"chat_template_kwargs": {"thinking": True}})
    found = texts([json.dumps(record), json.dumps(plain)], own, tmp_path)
    assert [own.decode(prompt).partition("<assistant>")[2] for prompt in found.prompts] == ["<think>low", ""]


def response(items, **more):
    return {"object": "response", "status": "completed", "created_at": 1764000000, "temperature": 0.5,
            "output": items} | more


SAID = {"type": "message", "role": "assistant", "status": "completed", "content": [
    {"type": "output_text", "text": "the cat", "annotations": [], "logprobs": []}]}
RAW = {"input_messages": [{"type": "raw_message_tokens", "message": "who?", "tokens": PROMPT_IDS}],
       "output_messages": [{"type": "raw_message_tokens", "message": "the cat", "tokens": IDS}]}


def test_a_batch_of_responses(tokenizer, turn, tmp_path):
    inputs = tmp_path / "input.jsonl"
    bodies = [{"input": "who?"}, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "who?"}]}]},
              {"input": "who?"}, {"input": "who?", "tools": [{"type": "web_search"}]},
              {"instructions": "be brief", "input": "who?", "tools": [{"type": "function", "name": "weather"}]}]
    inputs.write_text("\n".join(json.dumps({"custom_id": f"r{place}", "method": "POST", "url": "/v1/responses",
                                            "body": body}) for place, body in enumerate(bodies)))
    cut = response([SAID], status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    pieces = deepcopy(SAID)
    pieces["content"][0]["logprobs"] = [{"token": letter} for letter in "the cat"]
    call = {"type": "function_call", "name": "weather", "arguments": "{}"}
    thought = response([{"type": "reasoning", "summary": []}, call], **RAW)
    answered = [response([SAID]), response([pieces]), cut, thought, response([SAID])]
    lines = [json.dumps({"custom_id": f"r{place}", "error": None, "response": {"status_code": 200, "body": body}})
             for place, body in enumerate(answered)]
    found = texts(lines, tokenizer, tmp_path, inputs)
    assert found.names == ("r0", "r1", "r2", "r3", "r4") and found.temperatures == (0.5,)
    assert [tokenizer.decode(prompt) for prompt in found.prompts[:3]] == ["<user>who?\n<assistant>"] * 3
    assert tokenizer.decode(found.prompts[4]) == "<tool>weather\n<system>be brief\n<user>who?\n<assistant>"
    assert found.prompts[3].tolist() == PROMPT_IDS and list(found.written[3][:4]) == IDS
    assert found.known_by == (logs.BY_TEXT, logs.BY_PIECES, logs.BY_TEXT, logs.BY_IDS, logs.BY_TEXT)
    assert found.ended == (True, True, False, True, True)
    assert tokenizer.decode(found.written[1][:-1]) == "the cat" and len(found.written[1]) == 8


def asked_and(answered, **asked):
    """A pair of a Responses request and its response."""
    return {"request": {"input": "x"} | asked, "response": answered}


def said_by(message, asked=ASKED):
    """A dialogue whose last message this is."""
    return {"messages": [*asked, {"role": "assistant"} | message]}


BATCH = {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": []}}}
THOUGHT = {"reasoning_tokens": 5}


@pytest.mark.parametrize("record, why", [
    ("{", "no JSON"), ('{"messages": [', "it is no JSON"), ([1], "a list, no object"),
    ({"text": "x"}, "it has text; messages with an answer"), ({"messages": ASKED}, "not the assistant's answer"),
    (said_by({"content": "", "tool_calls": [{}]}), "calls a tool"),
    (said_by({"content": "x", "reasoning_content": "y"}), "has reasoning"),
    (said_by({"content": None}), "no text"), (said_by({"content": ""}), "the answer is empty"),
    (said_by({"content": "x"}) | {"token_ids": [9999]}, "token 9999"),
    (said_by({"content": "x"}, [{"role": "user", "content": ["x"]}]), "of the type 'str', no text"),
    (BATCH | {"response": {"status_code": 429, "body": {}}}, "the request failed"), (BATCH, "give its input file"),
    ({"request": {"messages": ASKED}, "response": {"choices": []}}, "no choices"),
    ({"request": {}, "response": {"choices": [{"text": "x"}]}}, "neither messages nor one prompt"),
    (chat({"content": [{"type": "image_url", "image_url": {}}]}), "type 'image_url', no text"),
    (chat({"content": "x"}, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}), "'input_audio'"),
    (chat({"content": "x"}, {"messages": [{"role": "robot", "content": "x"}]}), "but of 'robot'"),
    (chat({"content": "x"}, {"messages": [{"role": "user", "content": None}]}), "a message of the user has no text"),
    (chat({"content": "x"}, {"messages": [{"role": "assistant", "tool_calls": [3]}]}), "no list of functions"),
    (chat({"content": "x"}, {"tools": {}}), ""), (chat({"content": "x"}, {"tools": [3]}), "no list of objects"),
    (chat({"content": "x"}, token_ids=[1, -1]), "its token ids are [1, -1], no numbers of tokens"),
    (chat({"content": "x"}, token_ids=[10**30]), "no numbers of tokens"),
    (chat({"content": "x"}, token_ids=IDS, prompt_token_ids=["a"]), "no numbers of tokens"),
    (chat({"content": "\ud800"}), "half of a character"),
    (chat({"content": "x"}, {"messages": [{"role": "user", "content": "\udc00"}]}), "half of a character"),
    (chat({"content": "x"}, usage={"completion_tokens": 9, "completion_tokens_details": THOUGHT}),
     "has reasoning that is not logged"),
    (chat({"content": "x"}, {"temperature": 10**400}), ""),
    (asked_and(response([SAID], status="failed")), "the response's status is 'failed'"),
    (asked_and(response("x")), "the response has no output"),
    (asked_and(response([{"type": "function_call"}])), "calls a tool"),
    (asked_and(response([{"type": "reasoning"}, SAID])), "has reasoning"),
    (asked_and(response([SAID, SAID])), "has reasoning"),
    (asked_and(response([SAID], usage={"output_tokens": 9, "output_tokens_details": THOUGHT})),
     "has reasoning that is not logged"),
    (asked_and(response([SAID]), previous_response_id="r"), "a part of its input is in its previous_response"),
    (asked_and(response([SAID]), input=[{"type": "function_call_output", "output": "x"}]), "'function_call_output'"),
    (asked_and(response([SAID]), tools=[{"type": "web_search"}]), "tool of the type 'web_search'"),
    (asked_and(response([SAID]), input=[]), "it has no messages"), (asked_and(response([])), "the answer has no text")])
def test_odd_records_are_named_with_the_reason(record, why, tokenizer, tmp_path):
    reason = refusal(record, tokenizer, tmp_path)
    assert why in reason and bool(why) == bool(reason)


def test_a_log_of_which_too_much_is_refused_is_no_log(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="log, line 2: .*mend or remove these"):
        texts([GOOD, "{"], tokenizer, tmp_path)
    with pytest.raises(ValueError, match="log, line 2: the answer is empty.*mend or remove these"):
        texts([GOOD, json.dumps(said_by({"content": ""}))], tokenizer, tmp_path)


# --------------------------------------------------------------------------------------------------------- properties

KINDS = [chat({"content": "x"}, {"tools": [TOOL]}, token_ids=IDS, prompt_token_ids=PROMPT_IDS, stop_reason=3,
              usage={"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 0}}),
         chat({"content": [{"type": "text", "text": "x"}], "tool_calls": [CALL], "reasoning": "hm"}, {"messages": [
             {"role": "developer", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
             {"role": "tool", "content": "x", "tool_call_id": "c"}], "chat_template_kwargs": {"thinking": True}}),
         chat({"content": "x"}, logprobs={"content": [{"token": "x", "logprob": -1.0}]}),
         {"messages": [*ASKED, {"role": "assistant", "content": "x"}], "tools": [TOOL], "created": 1764000000},
         {"request": {"input": [*ASKED], "instructions": "x", "tools": [{"type": "function", "name": "f"}]},
          "response": response([SAID, {"type": "reasoning"}], usage={"output_tokens": 3}, **RAW)},
         {"request": {"prompt": [[50, 51]]}, "response": {"choices": [{"text": "x", "finish_reason": "stop"}]}}]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(
    [10**400, "\ud800", [], {}, "tool", "stop", "<|turn|>"])
NAMES = st.sampled_from(["type", "text", "content", "role", "function", "arguments", "tokens"])
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
                      max_leaves=5)


def places(value, path=()):
    """The paths of all values within a value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def with_value(record, path, value):
    if not path:
        return value
    copy = deepcopy(record)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_record_with_any_value_anywhere_is_read_or_refused(tokenizer, tmp_path_factory, data):
    record = data.draw(st.sampled_from(KINDS))
    for _ in range(data.draw(st.integers(1, 2))):
        record = with_value(record, data.draw(st.sampled_from([path for path in places(record) if path] or [()])),
                            data.draw(VALUES))
    folder = tmp_path_factory.mktemp("fuzz")
    found = texts([GOOD] * 12 + [json.dumps(record)], tokenizer, folder)
    assert len(found.names) >= 12 and set(found.refused) <= {"log, line 13"}
    assert len(found.names) > 12 or found.refused
    assert all(torch.is_tensor(prompt) and len(ids) and max(ids) < len(tokenizer)
               for prompt, ids in zip(found.prompts, found.written))
