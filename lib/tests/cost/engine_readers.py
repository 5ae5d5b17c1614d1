"""The oracle of what `lib.cost.engines` writes: each line of text read back, by the engine's name in `ENGINES`: the
keywords of calls, the options of command lines.
"""

import ast
import json
import shlex
from collections.abc import Mapping, Sequence

from lib.cost.engines import CONFIG, NUM_TOKENS, SCHEDULE, STEPS, TOKENS, TOP_K, Dynamic
from lib.trees.shapes import chain
from lib.trees.tree import Tree


def whole(given: Mapping[str, object], names: Sequence[str], text: str) -> list[int]:
    """The whole numbers under these names among options or keywords. ValueError where one is missing or no number."""
    numbers = []
    for name in names:
        value = given.get(name)
        if isinstance(value, bool) or not str(value).isdecimal():
            raise ValueError(f"{text[:60]!r} has {name} {value}: give a whole number" if name in given else
                             f"{text[:60]!r} lacks {name}: give it, a whole number")
        numbers.append(int(value))
    return numbers


def options(text: str) -> dict[str, str]:
    """A command line's options by name without dashes, each with its value, after a space or "=". ValueError for a
    text that no shell accepts.
    """
    try:
        words = [part for word in shlex.split(text) for part in (word.split("=", 1) if word[:1] == "-" else [word])]
    except ValueError as reason:
        raise ValueError(f"{text[:60]!r} is no command line: {reason}") from None
    return {word.lstrip("-"): value for word, value in zip(words, words[1:])
            if word.startswith("-") and not value.startswith("-")}


def keywords(text: str) -> dict[str, object]:
    """The constant keywords of a Python call. ValueError for any other text."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (AttributeError, SyntaxError, ValueError):
        raise ValueError(f"{text[:60]!r} is no call with constant keywords") from None


def read_eagle_dynamic(text: str) -> Dynamic:
    """The dynamic tree of such a call; other keywords are ignored. ValueError where one is missing."""
    tokens, depth, top_k = whole(keywords(text), ["total_token", "depth", "top_k"], text)
    return Dynamic(depth + 1, top_k, tokens - 1)


def read_tensorrt_dynamic(text: str) -> Dynamic:
    """The dynamic tree of such a call. ValueError where the call asks for none, or for more nodes than it may."""
    given = keywords(text)
    if not given.get("use_dynamic_tree"):
        raise ValueError(f"{text[:60]!r} does not set use_dynamic_tree=True: set it, or give a static tree")
    steps, top_k, nodes = whole(given, ["max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens"], text)
    if not steps <= nodes <= steps * top_k:
        raise ValueError(f"{text[:60]!r} has {nodes} nodes: give {steps} to {steps * top_k}")
    return Dynamic(steps, top_k, nodes)


def read_transformers(text: str) -> Tree:
    """The chain of such a line. ValueError where its length is missing, or is not kept constant."""
    given = keywords(text.rpartition("; ")[2])
    if given.get("num_assistant_tokens_schedule") != "constant":
        raise ValueError(f"{text[:60]!r} gives no constant num_assistant_tokens: set num_assistant_tokens_schedule to "
                         "'constant'")
    return chain(*whole(given, ["num_assistant_tokens"], text))


def read_vllm(text: str) -> Tree:
    """The chain that the option sets."""
    return chain(*whole(_settings(text), [NUM_TOKENS], text))


def read_schedule(text: str, most_batch: int) -> list[int]:
    """The number of draft tokens at batch sizes 1 to `most_batch`, as vLLM's `build_dynamic_sd_schedule_lookup` has it:
    gaps, and what comes after the last range, have the number before them. ValueError where vLLM would refuse it.
    """
    given, found, last = _settings(text), {}, 0
    for first, end, tokens in given[SCHEDULE]:
        if not last < first <= end or (not last and first != 1) or not 0 <= tokens <= given[NUM_TOKENS]:
            raise ValueError(f"{[first, end, tokens]} is no further range of {given[SCHEDULE]}")
        found |= dict.fromkeys(range(first, end + 1), tokens)
        last = end
    told = []
    for batch in range(1, most_batch + 1):
        told.append(found.get(batch, told[-1] if told else 0))
    return told


def _settings(text: str) -> dict:
    given = options(text)
    try:
        settings = json.loads(given[CONFIG])
    except (KeyError, json.JSONDecodeError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{text[:60]!r} has no --{CONFIG} with a JSON object: write one, quoted for the shell")
    return settings


def read_sglang(text: str) -> Tree:
    """The chain that the options set, of as many tokens as steps, whatever number of draft tokens they give.

    ValueError where top-k is not 1.
    """
    steps, top_k = whole(options(text), [STEPS, TOP_K], text)
    if top_k != 1:
        raise ValueError(f"--{TOP_K} is {top_k}, a dynamic tree and no chain: use read_sglang_dynamic")
    return chain(steps)


def read_sglang_dynamic(text: str) -> Dynamic:
    """The dynamic tree that the options set. ValueError where one is missing."""
    steps, top_k, tokens = whole(options(text), [STEPS, TOP_K, TOKENS], text)
    return Dynamic(steps, top_k, tokens - 1)


def read_llama_cpp(text: str) -> Tree:
    """The longest chain that the options allow. ValueError where they set none."""
    return chain(*whole(options(text), ["spec-draft-n-max"], text))


def read_transformers_lookup(text: str) -> Tree:
    """The chain of such a call."""
    return chain(*whole(keywords(text.replace("**inputs, ", "")), ["prompt_lookup_num_tokens"], text))


def read_sglang_ngram(text: str) -> Tree:
    """The chain that the options set; the number of draft tokens counts the root."""
    given = options(text)
    tokens, breadth = whole(given, [TOKENS, "speculative-ngram-max-bfs-breadth"], text)
    if given.get("speculative-algorithm") != "NGRAM" or breadth != 1:
        raise ValueError(f"{text[:60]!r} is no chain of n-grams")
    return chain(tokens - 1)


def read_llama_cpp_ngram(text: str) -> Tree:
    """The longest chain that the options allow."""
    return chain(*whole(options(text), ["spec-ngram-simple-size-m"], text))


READERS = {
    "transformers, look-up": read_transformers_lookup, "vLLM, n-gram": read_vllm, "vLLM, suffix": read_vllm,
    "SGLang, n-gram": read_sglang_ngram, "llama.cpp, n-gram": read_llama_cpp_ngram,
    "EAGLE-2, EAGLE-3": read_eagle_dynamic, "vLLM, chain": read_vllm,
    "SGLang, chain": read_sglang, "SGLang, dynamic tree": read_sglang_dynamic,
    "TensorRT-LLM, dynamic tree": read_tensorrt_dynamic,
    "transformers": read_transformers, "llama.cpp": read_llama_cpp,
}
