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
from lib.replay import endpoint, logs, recording
from lib.tests.real_model import needs_real_model, real_pair

pytestmark = pytest.mark.optional  # openai, fastapi, uvicorn
START_SECONDS = 180
NEW = 20
TEXTS = ("def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n",
         "import os\n", "The harbour at dawn")
DIALOGUES = [[{"role": "user", "content": text}] for text in (
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


def check_same(pair, url, model, asked, prompts, folder):
    """A server's greedy answers are the texts that the target writes in process; so are the ids of canonical ones, and
    the traces.
    """
    requests = {f"q{number}": endpoint.request_of(str(model), prompt, new_tokens=NEW, temperature=0.0, seed=0)
                for number, prompt in enumerate(asked)}
    logged = logs.read(endpoint.collect(url, requests, dict.fromkeys(requests, "k"), folder, report=lambda line: None))
    logged = logs.Logged(sorted(logged.lines, key=lambda line: line.name), logged.refused)
    eos = sorted(pair.eos_token_ids)
    rows = continuations(pair.target, prompts, max_new_tokens=NEW, rows=len(prompts), eos_token_id=eos)
    texts = [pair.tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in rows]
    assert [line.choice.get("text") or line.choice["message"]["content"] for line in logged.lines] == texts
    read = logs.tokenised(logged, pair.tokenizer, eos_token_id=eos)
    assert all(map(torch.equal, read.prompts, prompts)) and not read.refused
    ids = pair.tokenizer(texts, add_special_tokens=False)["input_ids"]
    canonical = [number for number, row in enumerate(rows) if ids[number] + row[len(row) - (row[-1] in eos) :] == row]
    assert canonical and [read.written[number] for number in canonical] == [rows[number] for number in canonical]
    made = logs.trace_of(logs.select(read, canonical), {}, temperature=0.0)
    recorded = recording.record(pair.target, {}, [prompts[number] for number in canonical], names=made.prompts,
                                kinds=made.kinds, beyond=0, max_new_tokens=NEW, eos_token_id=eos)
    assert np.array_equal(made.tokens, recorded.tokens[:, : made.tokens.shape[1]])
    assert np.array_equal(made.ended, recorded.ended)


def test_completions_are_what_is_recorded_in_process(url, tmp_path):
    pair = load_pair("small/tiny-small", dtype="float32")
    prompts = [pair.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in TEXTS]
    check_same(pair, url, SHIPPED / "small", TEXTS, prompts, tmp_path)


@needs_real_model
def test_a_chat_is_what_is_recorded_in_process(url, tmp_path):
    pair = real_pair(dtype="float32")
    folder = tmp_path / "model"
    pair.target.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    try:
        prompts = [dialogue.tokenise(messages, pair.tokenizer) for messages in DIALOGUES]
        check_same(pair, url, folder, DIALOGUES, prompts, tmp_path)
    finally:
        shutil.rmtree(folder)  # half a gigabyte
