"""A real server, transformers' own: what it answers is what is recorded in process."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from lib.decoding import continuations
from lib.models.load import load_pair
from lib.models.registry import SHIPPED
from lib.replay import endpoint, logs, recording

pytestmark = pytest.mark.optional  # openai, fastapi, uvicorn
START_SECONDS = 180
NEW = 20
TEXTS = ("def main(argv):\n    return", "Question: who has the key?", "class Tree:\n    def size(self):\n",
         "import os\n", "The harbour at dawn")


@pytest.fixture
def url(tmp_path):
    """The address of a server on the loopback, up to /v1, which loads models by their folders."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("transformers"), "serve", "--device", "cpu", "--dtype", "float32",
               "--host", "127.0.0.1", "--port", str(port)]
    with open(tmp_path / "log.txt", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {
            "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                alive = server.poll() is None and time.monotonic() < deadline
                assert alive, (tmp_path / "log.txt").read_text()[-2000:]
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def test_a_servers_greedy_answers_are_what_is_recorded_in_process(url, tmp_path):
    """Their texts are; so are the ids of canonical ones, and the traces."""
    pair = load_pair("small/tiny-small", dtype="float32")
    prompts = [pair.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in TEXTS]
    requests = {f"q{number}": endpoint.request_of(str(SHIPPED / "small"), text, new_tokens=NEW, temperature=0.0, seed=0)
                for number, text in enumerate(TEXTS)}
    path = endpoint.collect(url, requests, dict.fromkeys(requests, "k"), tmp_path)
    eos = sorted(pair.eos_token_ids)
    rows = continuations(pair.target, prompts, max_new_tokens=NEW, rows=len(prompts), eos_token_id=eos)
    texts = [pair.tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in rows]
    lines = sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: line["id"])
    assert [line["response"]["choices"][0]["text"] for line in lines] == texts
    read = logs.read(path, pair.tokenizer, eos_token_id=eos)
    read = read.select([read.names.index(name) for name in requests])
    ids = pair.tokenizer(texts, add_special_tokens=False)["input_ids"]
    canonical = [number for number, row in enumerate(rows) if ids[number] + row[len(row) - (row[-1] in eos) :] == row]
    assert canonical and [read.written[number] for number in canonical] == [rows[number] for number in canonical]
    made = recording.read(None, {}, read.select(canonical))
    recorded = recording.record(pair.target, {}, [prompts[number] for number in canonical], names=made.prompts,
                                kinds=made.kinds, beyond=0, max_new_tokens=NEW, eos_token_id=eos)
    assert np.array_equal(made.tokens, recorded.tokens[:, : made.tokens.shape[1]])
    assert np.array_equal(made.ended, recorded.ended)
