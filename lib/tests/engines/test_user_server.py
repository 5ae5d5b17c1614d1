"""A server of the user's own: what is read of its answers and of its counters, against a stand-in of it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from lib.engines.driver import EngineError
from lib.engines.served import Server, counts_of, of_counters

HISTOGRAM = {"acceptance_histogram": [3, 2, 1], "num_spec_steps": 6, "num_draft_tokens": 12}


class StandIn(BaseHTTPRequestHandler):
    """Streams two tokens; its counters grow by a draft of two tokens, of which the first is accepted."""

    drafts = 0

    def do_GET(self):
        counts = [("drafts_total{engine=\"0\"}", self.drafts), ("draft_tokens_total{engine=\"0\"}", 2 * self.drafts)]
        accepted = "accepted_tokens_per_pos_total"
        counts += [(f'{accepted}{{position="{place}"}}', self.drafts * (1 - place)) for place in (0, 1)]
        self.answer("".join(f"vllm:spec_decode_num_{name} {float(count)}\n" for name, count in counts))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != "known" or self.headers["Authorization"] != "Bearer secret":
            self.answer("no such model", 404)
            return
        type(self).drafts += 1
        parts = [{"choices": [{"token_ids": [token]}]} for token in asked["prompt"][:2]]
        if asked["prompt"] == [1]:  # as llama.cpp's
            parts = [{"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 3}}]
        self.answer("".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n")

    def answer(self, text: str, status: int = 200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        """Says nothing."""


@pytest.fixture
def url(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_tokens_come_from_the_stream_and_counts_from_what_changed(url):
    for _ in range(2):
        done = Server(url, "known").decode([[7, 8, 9], [4, 5]], 2)
        assert done.tokens == ([7, 8], [4, 5]) and 0 < done.prefill <= done.seconds
        assert (done.drafts, done.drafted, done.accepted) == (2, 4, [2, 0])


def test_tokens_without_ids_are_counted(url):
    assert Server(url, "known").decode([[1]], 3).tokens == ([-1, -1, -1],)
    with pytest.raises(EngineError, match="neither token ids nor how many"):
        Server(url, "known").decode([[]], 3)


def test_what_the_server_refuses_is_told_without_the_key(url):
    with pytest.raises(EngineError, match="status 404 .no such model.; give the url up to /v1") as refused:
        Server(url, "other").decode([[7]], 2)
    assert "secret" not in str(refused.value)
    with pytest.raises(EngineError, match="no answer from http://127.0.0.1:1/v1/completions"):
        Server("http://127.0.0.1:1/v1", "known").decode([[7]], 2)
    with pytest.raises(ValueError, match="cannot be made to draft a number"):
        Server(url, "known").decode([[7]], 2, drafted=3)


def test_metrics_of_requests_come_first_and_timings_last():
    assert counts_of([{"metrics": {"speculative_decoding": HISTOGRAM}}] * 2) == (12, 24, [6, 2])
    assert counts_of([{}]) is None and of_counters({}, [{}]) == (-1, -1, [])
    assert of_counters({}, [{"timings": {"draft_n": 5}}, {"timings": {"draft_n": 2}}]) == (-1, 7, [])
