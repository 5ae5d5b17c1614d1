"""Answers of a server that refuses, fails, cuts off and dies, in place of the network, and what is kept meanwhile."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from lib.replay import endpoint

pytestmark = pytest.mark.optional  # openai
URL, KEY = "http://127.0.0.1:9/v1", "sk-a-secret"
NAMES = [f"q{number}" for number in range(6)]
REQUESTS = {name: {"chat_template": "t"} | endpoint.request_of("served", name, new_tokens=4, temperature=0.0, seed=0)
            for name in NAMES}  # with a field that the package does not know


@pytest.fixture
def server(monkeypatch):
    """script: by prompt the steps before it is answered: statuses, "die" or "no json". ids: whether it gives ids.
    requests: those that it got. It is asked one by one, and again without waiting.
    """
    import httpx
    import openai

    server = SimpleNamespace(script={}, ids=True, requests=[])

    def answer(request):
        body = json.loads(request.content)
        server.requests.append(body)
        assert request.headers["Authorization"] == f"Bearer {KEY}" and body["chat_template"] == "t"
        steps, with_ids = server.script.get(body["prompt"], []), "return_token_ids" in body
        step = steps.pop(0) if steps else 400 if with_ids and not server.ids else 200
        if step == "die":
            raise httpx.ReadError("cut off")
        if step == "no json":
            return httpx.Response(200, text="<html>")
        choice = {"index": 0, "text": f"answer to {body['prompt']}", "finish_reason": "length", "logprobs": None}
        good = {"id": "x", "object": "text_completion", "created": 1, "model": "served",
                "choices": [choice | ({"token_ids": [1, 2]} if with_ids else {})]}
        return httpx.Response(step, json=good if step == 200 else {"error": {"message": f"status {step}"}})

    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setenv(endpoint.KEY, KEY)
    monkeypatch.setattr(openai, "OpenAI", partial(openai.OpenAI, http_client=client))
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(endpoint, "RETRIES", 3)
    monkeypatch.setattr(endpoint, "AT_ONCE", 1)
    return server


def collect(folder, requests=REQUESTS):
    path = endpoint.collect(URL, requests, dict.fromkeys(requests, "k"), folder)
    return path, sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: line["id"])


@pytest.mark.parametrize("ids", [True, False])
def test_answers_are_the_lines_of_a_log_and_what_fails_for_now_is_asked_again(ids, server, tmp_path):
    server.ids, server.script = ids, {"q0": [429, 500], "q1": ["die"], "q3": [503]}
    path, lines = collect(tmp_path)
    for name, line in zip(NAMES, lines, strict=True):
        choice, = line["response"]["choices"]
        assert (line["id"], line["category"], line["request"]) == (name, "k", REQUESTS[name])
        assert choice["text"] == f"answer to {name}" and choice.get("token_ids") == ([1, 2] if ids else None)
    assert len(server.requests) == len(NAMES) * (1 if ids else 2) + 4
    assert KEY.encode() not in path.read_bytes()


def test_a_server_that_dies_half_way_loses_nothing(server, tmp_path, capsys):
    server.script = {"q4": [500] * 9}
    with pytest.raises(ValueError, match=r"gave no answer of 'served' \(.*status 500.*then run again"):
        collect(tmp_path)
    path, = tmp_path.glob("answers-*.jsonl")
    assert len(path.read_text().splitlines()) == 4
    path.write_bytes(path.read_bytes() + b'{"id": "q4", "resp')  # as a kill in the middle of a line leaves it
    server.script.clear()
    server.requests.clear()
    for _ in range(2):
        again, lines = collect(tmp_path)
        assert again == path and [line["id"] for line in lines] == NAMES
        assert len(server.requests) == 2, "nothing is asked twice"
    assert "4 of 6 answers are there" in capsys.readouterr().out
    others, _ = collect(tmp_path, {"q0": REQUESTS["q0"] | {"temperature": 1.0}})
    assert others != path, "other requests have a file of their own"


@pytest.mark.parametrize("step, message", [
    (401, "AuthenticationError"), (404, "NotFoundError"), (400, "status 400"), ("no json", "served"),
    ("die", r"server at http://127.0.0.1:9/v1 gave no answer .*\(APIConnectionError")])
def test_a_refusal_is_shown_once_without_the_key(step, message, server, tmp_path):
    server.script = {name: [step] * 9 for name in NAMES}
    with pytest.raises(ValueError, match=message) as refused:
        collect(tmp_path)
    assert KEY not in str(refused.value) and refused.value.__cause__ is None


def test_messages_are_a_chat():
    messages = [{"role": "user", "content": "x"}]
    body = endpoint.request_of("m", messages, new_tokens=3, temperature=0.5, seed=1)
    assert body == {"model": "m", "messages": messages, "max_tokens": 3, "temperature": 0.5, "seed": 1}
