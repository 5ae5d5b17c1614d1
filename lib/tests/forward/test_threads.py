"""Threads that decode with one pair at the same time write the texts that they write alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import pytest

from lib.attention.registration import using_attention
from lib.decoding import generate
from lib.drafters import make
from lib.forward import load_pair
from lib.forward.passes import LAYERS, NATIVE
from lib.kernels import build
from lib.tests import small_heads, small_models

THREADS = 4
needs_kernels = pytest.mark.skipif(build.unavailable() is not None, reason="the kernels do not run here")


def at_once(function):
    """The results of function(thread) for threads 0, 1, ... that begin together."""
    start = threading.Barrier(THREADS)

    def begin(thread: int):
        start.wait()
        return function(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.fixture(scope="module")
def pair():
    return load_pair("base/small")


@pytest.mark.parametrize("forward", [pytest.param(NATIVE, marks=needs_kernels), LAYERS])
@pytest.mark.parametrize("spec, shape", [("none", "chain:0"), ("model", "kary:2@6"), ("eagle3", "kary:2@6")])
def test_a_text_is_that_of_one_thread(pair, spec, shape, forward, monkeypatch):
    """Each thread has a drafter and a prompt of its own length; the thread that comes first makes the kernels."""
    options = {"folder": small_heads.folder(spec, pair.target)} if spec == "eagle3" else {}

    def text(thread: int) -> list[int]:
        prompt, = small_models.prompts(thread, (5 + 4 * thread,), pair.target.config.vocab_size)
        return generate(pair.target, make(spec, pair, options), prompt[None], shape=shape, forward=forward,
                        max_new_tokens=16 if forward == NATIVE else 3).new_tokens[0]

    monkeypatch.setattr("lib.forward.passes._BLOCKS", WeakKeyDictionary())
    together = at_once(text)
    assert together == [text(thread) for thread in range(THREADS)]


def test_an_attention_is_set_by_one_thread_at_a_time():
    """Else a thread that ends would take it from one that still decodes."""
    model = small_models.llama(0)
    model.set_attn_implementation("eager")

    def inside(thread: int) -> set[str]:
        with using_attention(model, "tree"):
            return {model.config._attn_implementation for _ in range(100)}

    assert at_once(inside) == [{"tree"}] * THREADS and model.config._attn_implementation == "eager"
