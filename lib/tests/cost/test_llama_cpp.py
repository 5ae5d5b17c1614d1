"""llama.cpp as a way of decoding: with a stand-in for its package, and with the package itself where it is there."""

import sys
from importlib.util import find_spec
from itertools import count
from types import ModuleType

import pytest
import torch

from lib.cost import llama_cpp
from lib.forward.load import load_pair
from lib.models import gguf_files
from lib.models.registry import SMOLLM2

EOS = 7


class Llama:
    """Writes the tokens 100, 101, ...; EOS in place of the one after the last token of the prompt, if that is 104."""

    def __init__(self, file, **settings):
        self.file = file

    def generate(self, tokens, **settings):
        yield from (EOS if tokens[-1] == 104 and token == 103 else token for token in count(100))


@pytest.fixture
def run(monkeypatch):
    package = ModuleType("llama_cpp")
    package.Llama = Llama
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    ticks = count()
    return llama_cpp.llama("model.gguf", [EOS], 6, 128, clock=lambda: float(next(ticks)))


def test_it_stops_at_the_limit_or_at_the_end_of_the_text_and_notes_when_prefill_ended(run):
    long, ended = run([torch.tensor([5])]), run([torch.tensor([5, 104])])
    assert long.tokens == [[100, 101, 102, 103, 104, 105]] and ended.tokens == [[100, 101, 102, EOS]]
    assert (long.prefilled, ended.prefilled) == (0.0, 1.0) and not long.rounds


def test_only_gguf_files_are_served(monkeypatch, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: object())
    assert llama_cpp.file_of(str(file)) == file and llama_cpp.file_of("base/small") is None
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    assert llama_cpp.file_of(str(file)) is None


@pytest.mark.skipif(not (find_spec("llama_cpp") and gguf_files.packaged()), reason="llama-cpp-python is not installed")
def test_it_begins_as_the_target_does():
    pair = load_pair(SMOLLM2)
    prompt = pair.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    whole = pair.target.generate(prompt, max_new_tokens=4, do_sample=False, eos_token_id=list(pair.eos_token_ids))
    own = whole[0, prompt.shape[1] :].tolist()
    run = llama_cpp.llama(llama_cpp.file_of(SMOLLM2), pair.eos_token_ids, 4, 256)
    assert run([prompt[0]]).tokens == [own]
