"""ik_llama.cpp with one setting, through its C interface: draft trees in an unmodified engine, one prompt at a time.

A token of the engine's cache may belong to several sequences. Each leaf of a tree has one, which begins as a copy of
the text's, and each node is decoded once, for the sequences of all leaves below it: so it attends to the text and to
its ancestors alone. Where the last cell of a block of 32 is free, the engine attends to no cell after it: so accepted
nodes stay in the cache as long as they lie side by side, and the next pass reads the others again.
"""

import ctypes
import sys
import time
from pathlib import Path

import numpy as np
from channel import serve
from ik_llama_cpp import _ctypes_api as api

sys.path.append(str(Path(__file__).parents[2] / "drafters"))  # where `text_index` is, also for `draft_proposer`
from draft_proposer import read_tables  # noqa: E402
from text_index import NO_PARENT, ROOT, indexes, paths  # noqa: E402

# At 32 rows and more, products with Q4_1 weights are wrong on processors without VNNI (logits differ by 10 and more);
# so passes have fewer, and larger batches take several. Flash attention, wrong where a tree lies across a multiple of
# 256 cells, stays off.
MOST_ROWS = 31
DEEPEST = 4  # levels of forced drafts, chains side by side
Int, Context = ctypes.c_int32, ctypes.c_void_p
copy, remove, keep = (api._lib[f"llama_kv_cache_seq_{name}"] for name in ("cp", "rm", "keep"))
copy.argtypes, remove.argtypes, keep.argtypes = [Context, *[Int] * 4], [Context, *[Int] * 3], [Context, Int]
Listener = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
messages: list[str] = []  # of the engine, the last ones
running = {}  # the context and how it drafts, once it has started


@Listener
def listen(level, text, _):
    """Keeps and prints what the engine says."""
    messages[:] = [*messages[-50:], text.decode(errors="replace").strip()]
    print(messages[-1], flush=True)


def favourites_first(parents, tokens):
    """The tree with all nodes below one before its next sibling, so that favourites take neighbouring cells."""
    order = [path[-1] for path in sorted(paths(parents))]
    place = {node: index for index, node in enumerate(order)} | {NO_PARENT: NO_PARENT}
    return [place[parents[node]] for node in order], [tokens[node] for node in order]


def start(model, window, threads, drafter, tables, parents, ranks):
    """Loads the model. window: positions of a text, beside which the tree has room; parents, ranks: of that."""
    api._lib.llama_log_set(listen, None)
    api.llama_backend_init()
    if not (weights := api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())):
        raise RuntimeError(f"ik_llama.cpp does not load {model}: {'; '.join(messages[-3:])}; give the file of a model "
                           "that it knows")
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 2 * (window + len(parents)), window, MOST_ROWS
    settings.n_threads = settings.n_threads_batch = threads
    settings.n_seq_max, settings.flash_attn = max(1, len(parents) - 1), False
    tokens = api.llama_vocab_n_tokens(api.llama_model_get_vocab(weights))
    running.update(context=api.llama_init_from_model(weights, settings), vocabulary=tokens, window=window,
                   sequences=settings.n_seq_max, drafter=drafter, shape=(parents, ranks),
                   tables=read_tables(tables, tokens) if tables else None)


def forward(tokens, positions, sequences, first):
    """The most likely next token after each row from the `first` on. sequences: those of each row."""
    batch = api.llama_batch_init(len(tokens), 0, running["sequences"])
    batch.n_tokens = len(tokens)
    for row, numbers in enumerate(sequences):
        batch.token[row], batch.pos[row], batch.n_seq_id[row] = tokens[row], positions[row], len(numbers)
        batch.logits[row] = row >= first
        for index, number in enumerate(numbers):
            batch.seq_id[row][index] = number
    failed = api.llama_decode(running["context"], batch)
    api.llama_batch_free(batch)
    if failed:
        raise RuntimeError(f"ik_llama.cpp does not decode {len(tokens)} tokens ({failed}): {messages[-1]}")
    logits = (api.llama_get_logits_ith(running["context"], row) for row in range(first, len(tokens)))
    return [int(np.ctypeslib.as_array(row, (running["vocabulary"],)).argmax()) for row in logits]


def check(parents, tokens, before, accepts=True):
    """The tokens of accepted nodes, the next token, and how many of the former stay in the cache.

    parents, tokens: of the tree, favourites first. before: [first position, tokens] of the text before the root that is
    not in the cache. ValueError for more leaves than the context has sequences.
    """
    leaves = sorted({*range(len(parents))} - {*parents})
    if len(leaves) > running["sequences"]:
        raise ValueError(f"a tree has {len(leaves)} leaves, but the context {running['sequences']} sequences; start it "
                         "with a shape of more nodes")
    context, (first, missing), ancestors = running["context"], before, paths(parents)
    below = [[] for _ in parents]
    for sequence, leaf in enumerate(leaves):
        if sequence:
            copy(context, 0, sequence, -1, -1)
        for node in ancestors[leaf]:
            below[node].append(sequence)
    root = first + len(missing)
    positions = [*range(first, root), *(root + len(path) - 1 for path in ancestors)]
    following = forward([*missing, *tokens], positions, [below[ROOT]] * len(missing) + below, len(missing))
    node, accepted = ROOT, []
    while accepts and (child := next((child for child in range(node + 1, len(parents)) if parents[child] == node and
                                      tokens[child] == following[node]), None)):
        accepted.append(node := child)
    staying = sum(node == place for place, node in enumerate(accepted, start=1))  # in cells without gaps
    if len(leaves) > 1:
        keep(context, 0)  # that of the favourites
    remove(context, 0, root + 1 + staying, -1)
    return [tokens[node] for node in accepted], following[node], staying


def decode(prompts, new_tokens, ends, drafted):
    """What `driver.Decoded` has, of one prompt. ValueError where it has no room in the window."""
    (prompt,), shape, cached = prompts, running["shape"], len(prompts[0])
    if len(prompt) + new_tokens > running["window"]:
        raise ValueError(f"a prompt of {len(prompt)} tokens and {new_tokens} new ones exceed the window of "
                         f"{running['window']} positions; give a shorter prompt, or start with a larger window")
    began, drafting, rounds = time.perf_counter(), 0.0, []
    api.llama_kv_cache_clear(running["context"])
    text = forward(prompt, range(len(prompt)), [[0]] * len(prompt), len(prompt) - 1)
    prefill, new = time.perf_counter() - began, [*prompt, *text]
    sources = indexes(running["drafter"], running["tables"])
    while len(text) < new_tokens and not {*ends} & {*text}:
        round_began, parents, tokens = time.perf_counter(), [NO_PARENT], text[-1:]
        for index in sources:
            index.extend(new)
        drafts = (index.draft(*shape) for index in sources)
        parents, tokens = next((draft for draft in drafts if len(draft[0]) > 1), (parents, tokens))
        if drafted is not None:
            width = -(-drafted // DEEPEST)
            parents += [max(ROOT, node - width) for node in range(1, drafted + 1)]
            tokens = tokens + [ROOT] * drafted
        tree = favourites_first(parents, tokens)
        drafting += time.perf_counter() - round_began
        before = cached, [*prompt, *text][cached:-1]
        accepted, following, staying = check(*tree, before, accepts=drafted is None)
        cached, new = len(prompt) + len(text) + staying, [*accepted, following]
        text += new
        rounds.append((len(parents) - 1, len(accepted)))
    stop = next((index + 1 for index, token in enumerate(text) if token in ends), new_tokens)
    return dict(tokens=[text[: min(stop, new_tokens)]], seconds=time.perf_counter() - began, prefill=prefill,
                drafting=drafting, steps=len(rounds), drafting_steps=len(rounds),
                drafts=sum(size > 0 for size, _ in rounds), drafted=sum(size for size, _ in rounds),
                accepted=sum(kept for _, kept in rounds))


if __name__ == "__main__":
    serve({"start": start, "decode": decode})
