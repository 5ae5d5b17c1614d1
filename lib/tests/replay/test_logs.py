"""Logs: every form gives the trace that recording in process gives, and what cannot be used is named."""

import json

import numpy as np
import pytest
import torch

from lib.decoding import continuations
from lib.models import SHIPPED, dialogue, load_pair
from lib.replay import exact, log_lines, logs, recording
from lib.trees import named, shapes

PAIR = load_pair("small/tiny-small", dtype="float32")
EOS = 0
ASKED = [[{"role": "user", "content": text}] for text in (
    "def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n", "12 + 30 = ")]
PROMPTS = [dialogue.tokenise(messages, PAIR.tokenizer) for messages in ASKED]
NAMES = tuple("abcd")
NEW = 24


def written(eos=EOS):
    return continuations(PAIR.target, PROMPTS, max_new_tokens=NEW, rows=4, eos_token_id=eos)


def body(ids, ended, with_ids=True, **more):
    """The body of a chat completion, as vLLM writes it."""
    text = PAIR.tokenizer.decode(ids[:-1] if ended else ids, clean_up_tokenization_spaces=False)
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop" if ended else "length",
              "stop_reason": None} | ({"token_ids": ids} if with_ids else {}) | more
    return {"choices": [choice], "created": 1764000000}


def as_dialogues(rows, ended):
    for name, messages, ids, end in zip(NAMES, ASKED, rows, ended):
        text = PAIR.tokenizer.decode(ids[:-1] if end else ids, clean_up_tokenization_spaces=False)
        yield json.dumps({"id": name, "messages": [*messages, {"role": "assistant", "content": text}],
                          "token_ids": ids, "finish_reason": "stop" if end else "length", "temperature": 0})


def as_pairs(rows, ended):
    for name, messages, ids, end in zip(NAMES, ASKED, rows, ended):
        yield json.dumps({"id": name, "request": {"messages": messages, "temperature": 0.0},
                          "response": body(ids, end)})


def as_batch(rows, ended):
    for name, ids, end in zip(NAMES, rows, ended):
        yield json.dumps({"custom_id": name, "error": None, "response": {"status_code": 200, "body": body(ids, end)}})


def as_server(rows, ended):
    for name, prompt, ids, end in zip(NAMES, PROMPTS, rows, ended):
        text = PAIR.tokenizer.decode(ids[:-1] if end else ids, clean_up_tokenization_spaces=False)
        yield (f"INFO 11-25 10:00:00 [logger.py:43] Received request {name}: prompt: "
               f"{PAIR.tokenizer.decode(prompt)!r}, params: SamplingParams(n=1, temperature=0.0, stop=[], "
               f"include_stop_str_in_output=False), prompt_token_ids: {prompt.tolist()}, lora_request: None.")
        yield f"INFO 11-25 10:00:01 [logger.py:80] Generated response {name} (streaming delta): output: 'x', " \
              "output_token_ids: [1], finish_reason: None"
        yield f"INFO 11-25 10:00:02 [logger.py:80] Generated response {name} (streaming complete): output: {text!r}, " \
              f"output_token_ids: {ids}, finish_reason: {'stop' if end else 'length'}"


def inputs(tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_text("\n".join(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {
        "messages": messages, "temperature": 0}}) for name, messages in zip(NAMES, ASKED)))
    return path


def texts_of(lines, tmp_path, asked="", eos=EOS):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return logs.tokenised(log_lines.read(path, asked), PAIR.tokenizer, eos_token_id=eos)


@pytest.mark.parametrize("form", [as_dialogues, as_pairs, as_batch, as_server])
def test_every_form_gives_the_trace_that_was_recorded(form, tmp_path):
    eos = written()[1][9]  # a token at which one text ends
    rows = written(eos)
    ended = [row[-1] == eos for row in rows]
    assert any(ended) and not all(ended)
    texts = texts_of(form(rows, ended), tmp_path, inputs(tmp_path) if form is as_batch else "", eos)
    assert texts.names == NAMES and set(texts.known_by) == {logs.BY_IDS} and texts.temperatures == (0.0,)
    assert all(torch.equal(own, prompt) for own, prompt in zip(texts.prompts, PROMPTS))
    assert [list(own) for own in texts.written] == rows and list(texts.ended) == ended
    found = logs.trace_of(texts, {"d": PAIR.draft_model}, temperature=0.0)
    recorded = recording.record(PAIR.target, {"d": PAIR.draft_model}, PROMPTS, names=NAMES, kinds=NAMES, beyond=0,
                                max_new_tokens=NEW, eos_token_id=eos)
    width = found.tokens.shape[1]
    assert np.array_equal(found.tokens, recorded.tokens[:, :width])
    assert np.array_equal(found.ranks["d"], recorded.ranks["d"][:, : width - 1])
    assert np.array_equal(found.ended, recorded.ended)
    for name in ("chain:3", "kary:2@6"):
        tree = named(name)
        own, other = (exact.chained(exact.rounds(each, tree, "d")) for each in (found, recorded))
        last = {row: end - tree.max_depth for row, end in enumerate(found.ends) if not ended[row]}
        kept = [(row, start, count) for row, start, count in zip(other.rows, other.starts, other.accepted)
                if start < last.get(row, np.inf)]
        assert list(zip(own.rows, own.starts, own.accepted)) == kept and kept


def test_text_alone_is_its_canonical_tokens(tmp_path):
    rows = written()
    lines = [json.dumps({"id": name, "request": {"messages": messages}, "response": body(ids, False, with_ids=False)})
             for name, messages, ids in zip(NAMES, ASKED, rows)]
    texts = texts_of(lines, tmp_path)
    again = [PAIR.tokenizer(PAIR.tokenizer.decode(ids), add_special_tokens=False)["input_ids"] for ids in rows]
    assert list(texts.written) == again and set(texts.known_by) == {logs.BY_TEXT}
    known = texts_of(as_pairs(rows, [False] * 4), tmp_path)
    made = logs.canonicalised(logs.select(known, [2, 0]), PAIR.tokenizer)
    assert list(made.written) == [again[2], again[0]] and made.names == ("c", "a")


def test_logged_tokens_tell_where_the_text_was_cut(tmp_path):
    """Pieces that the tokenizer would not cut so; a piece that is no token's text leaves the text alone."""
    pieces = list("def main")
    ids = [PAIR.tokenizer.convert_tokens_to_ids(piece.replace(" ", "Ġ")) for piece in pieces]
    canonical = PAIR.tokenizer("def main", add_special_tokens=False)["input_ids"]
    assert None not in ids and ids != canonical
    def line(tokens):
        choice = {"message": {"role": "assistant", "content": "def main"}, "finish_reason": "length",
                  "logprobs": {"content": [{"token": token, "logprob": -1.0} for token in tokens]}}
        return json.dumps({"request": {"messages": ASKED[0]}, "response": {"choices": [choice]}})
    found = texts_of([line(pieces), line(["def m", "ain"]), line([f"token_id:{token}" for token in ids])], tmp_path)
    assert found.known_by == (logs.BY_PIECES, logs.BY_TEXT, logs.BY_IDS)
    assert [list(row) for row in found.written] == [ids, canonical, ids]


@pytest.mark.parametrize("more, asked, ends", [
    ({"finish_reason": "stop"}, {}, True), ({"finish_reason": "length"}, {}, False),
    ({"finish_reason": "stop", "stop_reason": "###"}, {"stop": ["###"]}, False),
    ({"finish_reason": "stop", "stop_reason": None}, {"stop": ["###"]}, True),
    ({"finish_reason": "stop"}, {"stop": ["###"]}, False), ({}, {}, False)])
def test_an_answer_that_ended_by_itself_ends_in_eos(more, asked, ends, tmp_path):
    choice = {"message": {"role": "assistant", "content": "def main"}, **more}
    line = json.dumps({"request": {"messages": ASKED[0], **asked}, "response": {"choices": [choice]}})
    found = texts_of([line], tmp_path)
    assert found.ended == (ends,) and (found.written[0][-1] == EOS) == ends
    tree = shapes.chain(2)
    trace = logs.trace_of(found, {"d": PAIR.draft_model}, temperature=0.0)
    assert trace.starts(2)[0] == (len(found.written[0]) - 1 if ends else max(0, len(found.written[0]) - 3))
    assert exact.rounds(trace, tree, "d").rows.size == trace.starts(2)[0]


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no log at .*nothing"):
        log_lines.read(tmp_path / "nothing")
    (tmp_path / "other").write_text("some text\n")
    with pytest.raises(ValueError, match="has 0 answers .*no line of a known form"):
        log_lines.read(tmp_path / "other")


def test_a_template_with_a_date_gets_the_days_of_the_log(tmp_path):
    tokenizer = type(PAIR.tokenizer).from_pretrained(SHIPPED / "tiny")
    tokenizer.chat_template = "{{ strftime_now('%d %B %Y') }}\n{% for m in messages %}{{ m.content }}\n{% endfor %}"
    rows = [json.dumps({"request": {"messages": ASKED[0]}, "response": body([5, 6], False) | day})
            for day in ({"created": 1764000000}, {"created": None})]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    found = logs.tokenised(log_lines.read(tmp_path / "log.jsonl"), tokenizer, eos_token_id=EOS)
    assert tokenizer.decode(found.prompts[0]).startswith("24 November 2025\n")
    assert found.notes == ("the chat template inserts the day, which the log does not tell for 1 of 2 answers: today's "
                           "was taken",)
