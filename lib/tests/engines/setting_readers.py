"""The oracle of what `lib.engines.settings` writes: each line of text read back, by the engine's name in `ENGINES`: the
keywords of calls, the options of command lines. A line that an engine would refuse fails an assertion.
"""

import ast
import json
import shlex
from collections.abc import Mapping

from lib.engines.settings import STEPS, TOKENS, TOP_K
from lib.engines.vllm import CONFIG, NUM_TOKENS, SCHEDULE
from lib.engines.writer import Dynamic
from lib.trees.shapes import chain
from lib.trees.tree import Tree


def whole(given: Mapping[str, object], *names: str) -> list[int]:
    """The whole numbers under these names among options or keywords."""
    assert all(str(given[name]).isdecimal() and not isinstance(given[name], bool) for name in names), given
    return [int(given[name]) for name in names]


def options(text: str) -> dict[str, str]:
    """A command line's options by name without dashes, each with its value."""
    words = shlex.split(text)
    return {word.lstrip("-"): value for word, value in zip(words, words[1:])
            if word.startswith("-") and not value.startswith("-")}


def keywords(text: str) -> dict[str, object]:
    """The constant keywords of a Python call."""
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in ast.parse(text, mode="eval").body.keywords}


def read_eagle_dynamic(text: str) -> Dynamic:
    """`total_token` counts the root, `depth` the levels after the first."""
    tokens, depth, top_k = whole(keywords(text), "total_token", "depth", "top_k")
    return Dynamic(depth + 1, top_k, tokens - 1)


def read_tensorrt_dynamic(text: str) -> Dynamic:
    """As many nodes as the steps times the top-k at most, without the root."""
    given = keywords(text)
    steps, top_k, nodes = whole(given, "max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens")
    assert given["use_dynamic_tree"] and steps <= nodes <= steps * top_k
    return Dynamic(steps, top_k, nodes)


def read_transformers(text: str) -> Tree:
    """The length is that of every round under a constant schedule alone."""
    given = keywords(text.rpartition("; ")[2])
    assert given["num_assistant_tokens_schedule"] == "constant"
    return chain(*whole(given, "num_assistant_tokens"))


def read_vllm(text: str) -> Tree:
    """The chain that the option sets."""
    return chain(*whole(json.loads(options(text)[CONFIG]), NUM_TOKENS))


def read_schedule(text: str, most_batch: int) -> list[int]:
    """The number of draft tokens at batch sizes 1 to `most_batch`, as vLLM's `build_dynamic_sd_schedule_lookup` has it:
    gaps, and what comes after the last range, have the number before them.
    """
    given, found, last = json.loads(options(text)[CONFIG]), {}, 0
    for first, end, tokens in given[SCHEDULE]:
        assert last < first <= end and (last or first == 1) and 0 <= tokens <= given[NUM_TOKENS], given[SCHEDULE]
        found |= dict.fromkeys(range(first, end + 1), tokens)
        last = end
    told = []
    for batch in range(1, most_batch + 1):
        told.append(found.get(batch, told[-1] if told else 0))
    return told


def read_sglang(text: str) -> Tree:
    """With top-k 1 the chain has as many tokens as steps, whatever number of draft tokens is given."""
    steps, top_k = whole(options(text), STEPS, TOP_K)
    assert top_k == 1, "a dynamic tree and no chain"
    return chain(steps)


def read_sglang_dynamic(text: str) -> Dynamic:
    """The number of draft tokens counts the root."""
    steps, top_k, tokens = whole(options(text), STEPS, TOP_K, TOKENS)
    return Dynamic(steps, top_k, tokens - 1)


def read_sglang_ngram(text: str) -> Tree:
    """The number of draft tokens counts the root."""
    given = options(text)
    tokens, breadth = whole(given, TOKENS, "speculative-ngram-max-bfs-breadth")
    assert given["speculative-algorithm"] == "NGRAM" and breadth == 1
    return chain(tokens - 1)


READERS = {
    "transformers, look-up": lambda text: chain(*whole(keywords(text.replace("**inputs, ", "")),
                                                       "prompt_lookup_num_tokens")),
    "transformers": read_transformers, "vLLM, chain": read_vllm, "vLLM, n-gram": read_vllm, "vLLM, suffix": read_vllm,
    "SGLang, chain": read_sglang, "SGLang, n-gram": read_sglang_ngram, "SGLang, dynamic tree": read_sglang_dynamic,
    "llama.cpp": lambda text: chain(*whole(options(text), "spec-draft-n-max")),
    "llama.cpp, n-gram": lambda text: chain(*whole(options(text), "spec-ngram-simple-size-m")),
    "OpenVINO GenAI, look-up": lambda text: chain(*whole(keywords(text.rpartition("; ")[2]), "num_assistant_tokens")),
    "EAGLE-2, EAGLE-3": read_eagle_dynamic, "TensorRT-LLM, dynamic tree": read_tensorrt_dynamic,
}
