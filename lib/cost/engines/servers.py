"""Servers that take a draft setting on the command line: vLLM, SGLang and llama.cpp."""

import json
import shlex

from lib.cost.engines.forms import LONGEST, Dynamic, equal_levels, length_of_chain
from lib.trees.tree import Tree

# ---- vLLM: `--speculative-config` as JSON. A chain by `num_speculative_tokens`; versions with tree attention (0.11 to
# May 2026, EAGLE drafters alone) also have `speculative_token_tree`, whose levels must branch alike: the proposer takes
# the number of children per node of a level to be the level's nodes over those of the level above.

CONFIG, NUM_TOKENS, TOKEN_TREE = "speculative-config", "num_speculative_tokens", "speculative_token_tree"


def write_vllm(tree: Tree, model: str = "DRAFTER", method: str = "draft_model") -> str:
    """The option for a chain. method: "draft_model" for a language model, "eagle3", "medusa" and so on."""
    length = length_of_chain(tree, "vLLM without a token tree")
    return _config({"method": method, "model": model, NUM_TOKENS: length})


def write_vllm_tree(tree: Tree, model: str = "DRAFTER", method: str = "eagle3") -> str:
    """The option with a token tree. ValueError where nodes of one level have different numbers of children."""
    if not tree.budget or equal_levels(tree) is None:
        raise ValueError(f"vLLM's token tree gives all nodes of a level as many children, {tree!r} does not: "
                         "give a tree of equal levels, such as an expansion or a chain")
    return _config({"method": method, "model": model, NUM_TOKENS: tree.budget, TOKEN_TREE: str(tree.choices())})


def write_vllm_ngram(tree: Tree, longest: int = LONGEST) -> str:
    """The option for prompt look-up. longest: tokens of the n-grams that are looked up, at most."""
    return _config({"method": "ngram", NUM_TOKENS: length_of_chain(tree, "vLLM"), "prompt_lookup_max": longest,
                    "prompt_lookup_min": 1})


def write_vllm_suffix(tree: Tree) -> str:
    """The option for suffix decoding (Arctic), without its memory of earlier requests."""
    return _config({"method": "suffix", NUM_TOKENS: length_of_chain(tree, "vLLM"),
                    "suffix_decoding_max_cached_requests": 0})


def _config(settings: dict) -> str:
    return f"--{CONFIG} {shlex.quote(json.dumps(settings))}"


# ---- SGLang: steps, top-k and draft tokens. Top-k 1 is a chain, more is EAGLE-2's dynamic tree.
# `--speculative-num-draft-tokens` counts the root: with top-k 1 SGLang sets it to the steps and one.

STEPS, TOP_K, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"


def write_sglang(tree: Tree, model: str = "DRAFTER", algorithm: str = "STANDALONE") -> str:
    """The options for a chain. algorithm: "STANDALONE" for a language model, "EAGLE", "EAGLE3"."""
    length = length_of_chain(tree, "SGLang with top-k 1")
    return write_sglang_dynamic(Dynamic(length, 1, length), model, algorithm)


def write_sglang_dynamic(tree: Dynamic, model: str = "DRAFTER", algorithm: str = "STANDALONE") -> str:
    """The options for a dynamic tree."""
    return (f"--speculative-algorithm {algorithm} --speculative-draft-model-path {model} --{STEPS} {tree.steps} "
            f"--{TOP_K} {tree.top_k} --{TOKENS} {tree.nodes + 1}")


def write_sglang_ngram(tree: Tree) -> str:
    """The options for a chain from the text's own n-grams."""
    length = length_of_chain(tree, "SGLang with one branch")
    return f"--speculative-algorithm NGRAM --{TOKENS} {length + 1} --speculative-ngram-max-bfs-breadth 1"


# ---- llama.cpp: a chain by `--spec-draft-n-max` (`--draft-max` in older builds, which builds of mid-2026 refuse).
# `--spec-draft-p-min 0` keeps it from stopping at tokens of which the drafter is not sure. No smallest length is given:
# llama.cpp would then drop, and not shorten, a draft for which the end of the answer leaves no room.


def write_llama_cpp(tree: Tree, model: str = "DRAFTER", kind: str = "draft-simple") -> str:
    """The options of llama-server for a drafter in a file of its own. kind: "draft-simple" for a language model,
    "draft-eagle3".
    """
    length = length_of_chain(tree, "llama.cpp")
    return f"-md {model} --spec-type {kind} --spec-draft-n-max {length} --spec-draft-p-min 0"


def write_llama_cpp_ngram(tree: Tree, longest: int = LONGEST) -> str:
    """The options of llama-server for look-up. longest: tokens of the n-gram that must match; llama.cpp tries no
    shorter one.
    """
    length = length_of_chain(tree, "llama.cpp")
    return f"--spec-type ngram-simple --spec-ngram-simple-size-n {longest} --spec-ngram-simple-size-m {length}"
