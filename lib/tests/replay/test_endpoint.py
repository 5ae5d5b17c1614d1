"""Answers of a server: a small fake one that refuses, fails, cuts off and dies, and what is kept meanwhile."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.replay import endpoint

pytestmark = pytest.mark.optional  # openai
KEY = "sk-a-secret"
NAMES = [f"q{number}" for number in range(6)]
REQUESTS = {name: endpoint.request_of("served", f"text of {name}", new_tokens=4, temperature=0.0, seed=0)
            for name in NAMES}


class Fake:
    """A server with a script: by request's text the statuses, or "die" or "slow", that it gives before it answers."""

    def __init__(self, script=(), ids=True, status=None):
        self.script = {name: list(steps) for name, steps in dict(script).items()}
        self.ids, self.status, self.requests, self.keys = ids, status, [], set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append(request)
                fake.keys.add(self.headers["Authorization"])
                steps = fake.script.get(request.get("prompt"), [])
                step = fake.status or (steps.pop(0) if steps else 200)
                if step == "die":
                    self.connection.close()
                    return
                if step == "slow":
                    time.sleep(1.0)
                    step = 200
                with_ids = "return_token_ids" in request
                if with_ids and not fake.ids and step == 200:
                    step = 400
                choice = {"index": 0, "text": f"answer to {request['prompt']}", "finish_reason": "length",
                          "logprobs": None} | ({"token_ids": [1, 2]} if with_ids else {})
                good = {"id": "x", "object": "text_completion", "created": 1, "model": "served", "choices": [choice]}
                body = json.dumps(good if step == 200 else {"error": {"message": f"status {step}"}}).encode()
                if step == "no json":
                    step, body = 200, b"<html>"
                self.send_response(step)
                for name, value in {"Content-Type": "application/json", "Retry-After": "0",
                                    "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv(endpoint.KEY, KEY)
    monkeypatch.setattr("openai._constants.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name, value in {"RETRIES": 3, "SECONDS": 0.5, "AT_ONCE": 1}.items():
        monkeypatch.setattr(endpoint, name, value)


def collect(fake, folder, requests=REQUESTS):
    return endpoint.collect(fake.url, requests, dict.fromkeys(requests, "k"), folder)


def lines_of(path):
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: line["id"])


@pytest.mark.parametrize("ids", [True, False])
def test_answers_are_the_lines_of_a_log(ids, tmp_path):
    with Fake(ids=ids) as fake:
        path = collect(fake, tmp_path)
    for name, line in zip(NAMES, lines_of(path), strict=True):
        choice, = line["response"]["choices"]
        assert (line["id"], line["category"], line["request"]) == (name, "k", REQUESTS[name])
        assert choice["text"] == f"answer to text of {name}" and choice.get("token_ids") == ([1, 2] if ids else None)
    assert fake.keys == {f"Bearer {KEY}"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_what_fails_for_now_is_asked_again(tmp_path):
    script = {"text of q0": [429, 500], "text of q1": ["die"], "text of q2": ["slow"], "text of q3": [503]}
    with Fake(script) as fake:
        assert len(lines_of(collect(fake, tmp_path))) == len(NAMES)
        assert len(fake.requests) == len(NAMES) + 5


def test_a_server_that_dies_half_way_loses_nothing(tmp_path, capsys):
    with Fake({"text of q4": [500] * 9}) as fake:
        with pytest.raises(ValueError, match=r"gave no answer of 'served' \(.*status 500.*goes on from there"):
            collect(fake, tmp_path)
        path, = tmp_path.glob("answers-*.jsonl")
        assert len(path.read_text().splitlines()) == 4
        path.write_bytes(path.read_bytes() + b'{"id": "q4", "resp')  # as a kill in the middle of a line leaves it
        fake.script.clear()
        fake.requests.clear()
        assert collect(fake, tmp_path) == path
        assert len(fake.requests) == 2 and "4 of 6 answers are there" in capsys.readouterr().out
        assert [line["id"] for line in lines_of(path)] == NAMES
        collect(fake, tmp_path)
        assert len(fake.requests) == 2, "nothing is asked twice"
        others = {"q0": REQUESTS["q0"] | {"temperature": 1.0}}
        assert collect(fake, tmp_path, others) != path, "other requests have a file of their own"


@pytest.mark.parametrize("status, message", [
    (401, "AuthenticationError"), (404, "NotFoundError"), (400, "status 400"), (403, "status 403"),
    ("no json", "served")])
def test_what_a_server_refuses_is_said_once(status, message, tmp_path):
    with Fake(status=status) as fake:
        with pytest.raises(ValueError, match=message) as refused:
            collect(fake, tmp_path)
    assert KEY not in str(refused.value) and refused.value.__cause__ is None


def test_no_server_is_named_with_its_url(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "RETRIES", 0)
    with pytest.raises(ValueError, match=r"server at http://127.0.0.1:9/v1 gave no answer .*\(APIConnectionError"):
        endpoint.collect("http://127.0.0.1:9/v1", REQUESTS, dict.fromkeys(REQUESTS, "k"), tmp_path)


def test_messages_are_a_chat():
    messages = [{"role": "user", "content": "x"}]
    body = endpoint.request_of("m", messages, new_tokens=3, temperature=0.5, seed=1)
    assert body == {"model": "m", "messages": messages, "max_tokens": 3, "temperature": 0.5, "seed": 1}
