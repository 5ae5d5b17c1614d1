"""A real server, transformers' own: what it answers is what is recorded in process."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.decoding import continuations
from lib.models import dialogue, load_pair
from lib.models.registry import SHIPPED
from lib.replay import endpoint, log_lines, logs, recording
from lib.tests.real_model import needs_real_model, real_pair

for package in ("openai", "fastapi", "uvicorn"):
    pytest.importorskip(package)
START_SECONDS = 180
NEW = 20
TEXTS = ("def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n",
         "import os\n", "The harbour at dawn")
ASKED = [[{"role": "user", "content": text}] for text in (
    "Name three colours.", "What is 12 + 30?", "Write a line about the sea.")]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a server on the loopback, up to /v1, which loads models by their folders."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("server")
    command = [Path(sys.executable).with_name("transformers"), "serve", "--device", "cpu", "--dtype", "float32",
               "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "log.txt", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {
            "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)})
    try:
        for _ in range(2 * START_SECONDS):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, (home / "log.txt").read_text()[-2000:]
                time.sleep(0.5)
        else:
            pytest.fail((home / "log.txt").read_text()[-2000:])
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def answered(url, name, asked, folder):
    """The served model's greedy answers, in the order in which they were asked for."""
    requests = {f"q{number}": endpoint.request_of(str(name), each, new_tokens=NEW, temperature=0.0, seed=0)
                for number, each in enumerate(asked)}
    found = log_lines.read(endpoint.collect(url, requests, dict.fromkeys(requests, "k"), folder, retries=1,
                                            report=lambda line: None))
    assert not found.refused
    return log_lines.Logged(sorted(found.answers, key=lambda each: each.name), {})


def check_same(pair, found, prompts, eos):
    """The texts of a server's answers are those that the target writes in process; so are the ids of canonical ones,
    and the traces.
    """
    rows = continuations(pair.target, prompts, max_new_tokens=NEW, rows=len(prompts), eos_token_id=eos)
    texts = [pair.tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in rows]
    assert [answer.text for answer in found.answers] == texts
    read = logs.tokenised(found, pair.tokenizer, eos_token_id=eos)
    assert all(torch.equal(own, prompt) for own, prompt in zip(read.prompts, prompts))
    ids = pair.tokenizer(texts, add_special_tokens=False)["input_ids"]
    canonical = [row for row, own in enumerate(rows) if ids[row] + own[len(own) - (own[-1] in eos) :] == own]
    assert canonical and [read.written[row] for row in canonical] == [rows[row] for row in canonical]
    own = logs.trace_of(logs.select(read, canonical), {}, temperature=0.0)
    recorded = recording.record(pair.target, {}, [prompts[row] for row in canonical], names=own.prompts,
                                kinds=own.kinds, beyond=0, max_new_tokens=NEW, eos_token_id=eos)
    assert np.array_equal(own.tokens, recorded.tokens[:, : own.tokens.shape[1]])
    assert np.array_equal(own.ended, recorded.ended)


def test_completions_are_what_is_recorded_in_process(url, tmp_path):
    pair = load_pair("small/tiny-small", dtype="float32")
    found = answered(url, SHIPPED / "small", TEXTS, tmp_path)
    prompts = [pair.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in TEXTS]
    check_same(pair, found, prompts, sorted(pair.eos_token_ids))


@needs_real_model
def test_a_chat_is_what_is_recorded_in_process(url, tmp_path):
    pair = real_pair(dtype="float32")
    folder = tmp_path / "model"
    pair.target.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    try:
        found = answered(url, folder, ASKED, tmp_path)
    finally:
        shutil.rmtree(folder)  # half a gigabyte
    check_same(pair, found, [dialogue.tokenise(messages, pair.tokenizer) for messages in ASKED],
               sorted(pair.eos_token_ids))
