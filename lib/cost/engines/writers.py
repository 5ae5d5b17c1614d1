"""How engines take a draft: the forms of draft that they know, and each setting as a line of text.

EAGLE and TensorRT-LLM take the size of a dynamic tree in a line of Python, transformers the length of a chain; servers
have options of the command line. None of them takes a static tree that branches: vLLM's token trees were removed in May
2026, TensorRT-LLM's lists of choices with its engine backend in mid-2026.
"""

import json
import shlex
from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.lookup.LookupDrafter` does
CHAIN, DYNAMIC = "chain", "dynamic tree"


@dataclass(frozen=True)
class Dynamic:
    """A tree that an engine grows anew in each round (EAGLE-2): `steps` levels; the best `top_k` nodes of each level
    get `top_k` children each, and the `nodes` best of all candidates are verified, root excluded.
    """

    steps: int
    top_k: int
    nodes: int

    @classmethod
    def like(cls, tree: Tree | Growth) -> "Dynamic":
        """The dynamic tree with a rule's depth and budget, and as top-k the nodes of a level that it expands; or with a
        static tree's depth and nodes, and as top-k its widest level of nodes with children or its largest family: it
        can grow every node of the static one.
        """
        if isinstance(tree, Growth):
            return cls(tree.max_depth, getattr(tree, "most", tree.width), tree.budget)
        families = np.bincount(tree.parents[1:])
        inner = np.unique(tree.parents[1:])
        return cls(tree.max_depth, int(max(families.max(), np.bincount(tree.depth[inner]).max())), tree.budget)


def length_of_chain(tree: Tree, engine: str) -> int:
    """The number of nodes of a chain of rank-0 nodes. ValueError for any other tree, and for an empty one."""
    if not tree.budget or tree.max_depth < tree.budget or tree.rank.any():
        raise ValueError(f"{engine} drafts chains, not {tree!r} with ranks {tree.rank.tolist()}: "
                         "give a chain")
    return tree.budget


# ---- EAGLE (SafeAILab/EAGLE): the dynamic tree of EAGLE-2 and -3


def write_eagle_dynamic(tree: Dynamic, model: str, use_eagle3: bool) -> str:
    """The call with the head's place: `total_token` counts the root, `depth` the levels after the first."""
    return (f"EaModel.from_pretrained(use_eagle3={use_eagle3}, ea_model_path={model!r}, "
            f"total_token={tree.nodes + 1}, depth={tree.steps - 1}, top_k={tree.top_k})")


# ---- TensorRT-LLM: EAGLE-3's dynamic tree. `max_total_draft_tokens` leaves out the root, and may be as many as the
# steps times the top-k.


def write_tensorrt_dynamic(tree: Dynamic, model: str) -> str:
    """The call for the dynamic tree of an EAGLE-3 drafter, with a top-k that has room for all nodes."""
    top_k = max(tree.top_k, -(-tree.nodes // tree.steps))
    return (f"Eagle3DecodingConfig(max_draft_len={tree.steps}, max_total_draft_tokens={tree.nodes}, "
            f"speculative_model={model!r}, use_dynamic_tree=True, dynamic_tree_max_topK={top_k})")


# ---- transformers' assisted generation and prompt look-up: a chain, at batch 1 alone


def write_transformers(tree: Tree, model: str) -> str:
    """The line before `model.generate(..., assistant_model=assistant_model)`.

    It sets the schedule to constant and the confidence threshold to 0; else the drafter stops and adapts on its own.
    """
    return (f"assistant_model = AutoModelForCausalLM.from_pretrained({model!r}); "
            f"assistant_model.generation_config.update(num_assistant_tokens={length_of_chain(tree, 'transformers')}, "
            'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)')


def write_transformers_lookup(tree: Tree, longest: int = LONGEST) -> str:
    """The call of prompt look-up. longest: tokens of the n-grams that are looked up, at most."""
    return (f"model.generate(**inputs, prompt_lookup_num_tokens={length_of_chain(tree, 'transformers')}, "
            f"max_matching_ngram_size={longest})")


# ---- vLLM: `--speculative-config` as JSON, a chain by `num_speculative_tokens`. With a schedule, a list of [first
# batch, last batch, tokens], both ends inclusive, the first from 1 on, the number depends on the batch size.

CONFIG, NUM_TOKENS, SCHEDULE = "speculative-config", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"


def write_vllm(tree: Tree, model: str, method: str = "draft_model") -> str:
    """The option for a chain. method: "draft_model" for a language model, "eagle3", "medusa" and so on."""
    return config_line({"method": method, "model": model, NUM_TOKENS: length_of_chain(tree, "vLLM")})


def write_vllm_ngram(tree: Tree, longest: int = LONGEST) -> str:
    """The option for prompt look-up. longest: tokens of the n-grams that are looked up, at most."""
    return config_line({"method": "ngram", NUM_TOKENS: length_of_chain(tree, "vLLM"), "prompt_lookup_max": longest,
                        "prompt_lookup_min": 1})


def write_vllm_suffix(tree: Tree) -> str:
    """The option for suffix decoding (Arctic), without its memory of earlier requests."""
    return config_line({"method": "suffix", NUM_TOKENS: length_of_chain(tree, "vLLM"),
                        "suffix_decoding_max_cached_requests": 0})


def config_line(settings: dict) -> str:
    """The option with these settings."""
    return f"--{CONFIG} {shlex.quote(json.dumps(settings))}"


def config_of(line: str) -> dict:
    """The settings of such an option."""
    return json.loads(shlex.split(line)[1])


# ---- SGLang: steps, top-k and draft tokens. Top-k 1 is a chain, more is EAGLE-2's dynamic tree.
# `--speculative-num-draft-tokens` counts the root: with top-k 1 SGLang sets it to the steps and one.

STEPS, TOP_K, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"


def write_sglang(tree: Tree, model: str, algorithm: str = "STANDALONE") -> str:
    """The options for a chain. algorithm: "STANDALONE" for a language model, "EAGLE", "EAGLE3"."""
    length = length_of_chain(tree, "SGLang with top-k 1")
    return write_sglang_dynamic(Dynamic(length, 1, length), model, algorithm)


def write_sglang_dynamic(tree: Dynamic, model: str, algorithm: str = "STANDALONE") -> str:
    """The options for a dynamic tree."""
    return (f"--speculative-algorithm {algorithm} --speculative-draft-model-path {shlex.quote(model)} "
            f"--{STEPS} {tree.steps} --{TOP_K} {tree.top_k} --{TOKENS} {tree.nodes + 1}")


def write_sglang_ngram(tree: Tree) -> str:
    """The options for a chain from the text's own n-grams."""
    length = length_of_chain(tree, "SGLang with one branch")
    return f"--speculative-algorithm NGRAM --{TOKENS} {length + 1} --speculative-ngram-max-bfs-breadth 1"


# ---- llama.cpp: a chain by `--spec-draft-n-max` (`--draft-max` in older builds, which builds of mid-2026 refuse).
# `--spec-draft-p-min 0` keeps it from stopping at tokens of which the drafter is not sure. No smallest length is given:
# llama.cpp would then drop, and not shorten, a draft for which the end of the answer leaves no room.


def write_llama_cpp(tree: Tree, model: str) -> str:
    """The options of llama-server for a language model in a GGUF file."""
    length = length_of_chain(tree, "llama.cpp")
    return f"-md {shlex.quote(model)} --spec-type draft-simple --spec-draft-n-max {length} --spec-draft-p-min 0"


def write_llama_cpp_ngram(tree: Tree, longest: int = LONGEST) -> str:
    """The options of llama-server for look-up. longest: tokens of the n-gram; no shorter one is tried."""
    length = length_of_chain(tree, "llama.cpp")
    return f"--spec-type ngram-simple --spec-ngram-simple-size-n {longest} --spec-ngram-simple-size-m {length}"
