"""ik_llama.cpp: its worker against a stand-in of the engine's cache, and against the package where it is installed."""

import ctypes
from types import SimpleNamespace as Space

import pytest
import torch

from lib.drafters.combined import CombinedDrafter
from lib.drafters.text_drafters import LookupDrafter, NgramDrafter, SuffixAutomatonDrafter, save_tables
from lib.drafters.text_index import count_tables
from lib.engines.ik_llama_cpp import ENVIRONMENT, STORED, IkLlamaCpp, drafting
from lib.engines.methods import PLAIN_WAY, Way, forced
from lib.models import packages
from lib.tests import small_models
from lib.tests.engines.stand_in import import_worker, replayed
from lib.trees import named

VOCABULARY, PROMPT, TOKENS, BEYOND, END = 7, [1, 2, 3, 1, 2, 4], 60, 20, 5
SHAPES = ("chain:4", "independent:2@7", "kary:3@12")


def favourite(tokens: list[int]) -> int:
    """The stand-in's next token, which depends on the last four."""
    return sum(token * 3**place for place, token in enumerate(tokens[-4:])) % VOCABULARY


def interface() -> Space:
    """A stand-in for the C interface, whose cells have a token, a position and sequences."""
    cells: list[tuple[int, int, set[int]]] = []
    logits: dict[int, ctypes.Array] = {}

    def copy(context, source, target, first, last):
        for _, _, sequences in cells:
            sequences.update([target] if source in sequences else [])

    def remove(context, sequence, first, last):
        for _, position, sequences in cells:
            sequences.difference_update([sequence] if position >= first else [])
        cells[:] = [cell for cell in cells if cell[2]]

    def keep(context, sequence):
        cells[:] = [(token, position, {sequence}) for token, position, sequences in cells if sequence in sequences]

    def decode(context, batch):
        rows = range(batch.n_tokens)
        cells.extend((batch.token[row], batch.pos[row], set(batch.seq_id[row][: batch.n_seq_id[row]])) for row in rows)
        for row in rows:
            attended = sorted((position, token) for token, position, sequences in cells
                              if batch.seq_id[row][0] in sequences and position <= batch.pos[row])
            assert [position for position, _ in attended] == list(range(batch.pos[row] + 1)), "one path"
            logits[row] = (ctypes.c_float * VOCABULARY)()
            logits[row][favourite([token for _, token in attended])] = 1.0
        return 0

    def load(file, settings):
        listeners[0](4, b"unknown model architecture: 'new'", None)
        return file != b"new.gguf"

    def batch(tokens, embedding, sequences):
        return Space(token=[0] * tokens, pos=[0] * tokens, n_seq_id=[0] * tokens, logits=[0] * tokens,
                     seq_id=[[0] * sequences for _ in range(tokens)])

    class Library(dict):
        llama_log_set = staticmethod(lambda listener, _: listeners.append(listener))

    listeners = []
    return Space(
        _lib=Library(llama_kv_cache_seq_cp=copy, llama_kv_cache_seq_rm=remove, llama_kv_cache_seq_keep=keep),
        llama_backend_init=lambda: None, llama_model_default_params=Space, llama_model_load_from_file=load,
        llama_context_default_params=Space, llama_init_from_model=lambda *_: 1, llama_batch_free=lambda batch: None,
        llama_model_get_vocab=lambda _: 1, llama_vocab_n_tokens=lambda _: VOCABULARY, llama_decode=decode,
        llama_kv_cache_clear=lambda context: cells.clear(), llama_batch_init=batch,
        llama_get_logits_ith=lambda context, row: ctypes.cast(logits[row], ctypes.POINTER(ctypes.c_float)))


@pytest.fixture
def worker():
    return import_worker("ik_llama_cpp_worker", ik_llama_cpp=Space(_ctypes_api=interface()))


def decoded(worker, way: Way, num_tokens: int = TOKENS, ends=(), drafted=None) -> Space:
    worker.start("model.gguf", 100, 1, **drafting(way))
    return Space(**worker.decode([PROMPT], num_tokens, list(ends), drafted))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["lookup", "sam", "ngrams", "combined"])
def test_text_is_the_plain_one_and_counts_are_those_of_replay(worker, tmp_path, method, shape):
    (text,) = decoded(worker, PLAIN_WAY, TOKENS + BEYOND).tokens
    tables = count_tables([PROMPT], [text[:30]], VOCABULARY)
    save_tables(tables, tmp_path, {})
    ngrams, sam = NgramDrafter(tables), SuffixAutomatonDrafter()
    drafters = {"lookup": LookupDrafter(), "sam": sam, "ngrams": ngrams, "combined": CombinedDrafter(sam, ngrams)}
    folder = str(tmp_path) if method in ("ngrams", "combined") else ""
    way = Way("", method, named(shape), shape, drafters[method], weights=folder)
    found = decoded(worker, way)
    assert found.tokens == [text[:TOKENS]] and found.accepted > 10
    sizes = replayed(way, torch.tensor(PROMPT), text, TOKENS)
    assert (found.drafts, found.drafted, found.accepted) == ((sizes[:, 0] > 0).sum(), *sizes[:, :2].sum(0))
    assert found.steps == len(sizes) and 0 <= found.drafting < found.seconds


def test_forced_drafts_are_checked_and_none_is_accepted_and_texts_end(worker):
    (text,) = decoded(worker, PLAIN_WAY).tokens
    found = decoded(worker, forced(9), 20, drafted=6)
    assert found.tokens == [text[:20]] and (found.steps, found.drafted, found.accepted) == (19, 19 * 6, 0)
    (ended,) = decoded(worker, Way("", "sam", named("kary:2@6"), weights=""), ends=[END]).tokens
    assert ended == text[: text.index(END) + 1]


def test_what_it_cannot_do_is_named(worker, tmp_path):
    with pytest.raises(ValueError, match="6 tokens and 95 new ones exceed the window of 100 positions"):
        decoded(worker, PLAIN_WAY, 95)
    decoded(worker, forced(2))
    with pytest.raises(ValueError, match="a tree has 3 leaves, but the context 2 sequences"):
        worker.check([-1, 0, 0, 0], [1, 2, 3, 4], (len(PROMPT), []))
    with pytest.raises(RuntimeError, match="does not load new.gguf: .*unknown model architecture: 'new'"):
        worker.start("new.gguf", 100, 1, **drafting(PLAIN_WAY))
    recurrent = Space(gguf_file="m.gguf", config=Space(get_text_config=lambda: Space(layer_types=["linear_attention"])))
    with pytest.raises(ValueError, match="m.gguf has layers that keep a state"):
        IkLlamaCpp("ik_llama.cpp", target=recurrent).start(PLAIN_WAY, window=9, batch=1, log=tmp_path / "log")


@pytest.mark.skipif(not ENVIRONMENT.is_there, reason="ik_llama.cpp is not installed")
def test_trees_in_the_engine_itself_write_its_plain_text(tmp_path):
    target = small_models.llama(3)
    target.gguf_file = packages.SMOLLM2.file()
    engine, prompt = IkLlamaCpp("ik_llama.cpp:stored", STORED, target=target), list(range(300, 340)) * 2
    texts = []
    for way in (PLAIN_WAY, *(Way("", "sam", named(shape), shape, weights="") for shape in SHAPES)):
        with engine.start(way, window=200, batch=1, log=tmp_path / "log.txt") as running:
            texts.append(running.decode([prompt], 60).tokens)
    assert texts[1:] == texts[:1] * len(SHAPES)
