"""How engines take a draft: the forms of draft that they know, and each setting as a line of text.

Medusa, EAGLE and TensorRT-LLM take a tree in a line of Python, by lists of paths of ranks (here called choices) or by
the size of a dynamic tree; transformers takes the length of a chain; servers have options of the command line.
"""

import json
import shlex
from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

ANY_RANK = 1 << 20  # for engines without a limit on ranks
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.lookup.LookupDrafter` does
TREE, LEVELS, CHAIN, DYNAMIC = "any tree", "equal levels", "chain", "dynamic tree"


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


def equal_levels(tree: Tree) -> list[int] | None:
    """[k1, k2, ..]: the number of children of every node at each level; None where nodes of one level differ."""
    families = np.bincount(tree.parents[1:], minlength=tree.size)
    levels = []
    for depth in range(tree.max_depth):
        own = set(families[tree.depth == depth].tolist())
        if len(own) != 1:
            return None
        levels.append(own.pop())
    gapless = all(tree.rank[list(tree.children(node))].tolist() == list(range(families[node]))
                  for node in range(tree.size))
    return levels if gapless else None


def length_of_chain(tree: Tree, engine: str) -> int:
    """The number of nodes of a chain of rank-0 nodes. ValueError for any other tree, and for an empty one."""
    if not tree.budget or tree.max_depth < tree.budget or tree.rank.any():
        raise ValueError(f"{engine} drafts chains, not {tree!r} with ranks {tree.rank.tolist()}: "
                         "give a chain")
    return tree.budget


def within(tree: Tree, most_rank: int) -> Tree:
    """The tree itself. ValueError where it has a rank that the engine does not know."""
    if tree.rank.max(initial=0) >= most_rank:
        raise ValueError(f"the tree has a child of rank {tree.last_rank}; the engine keeps the {most_rank} best "
                         "tokens of a position: give a tree without it")
    return tree


MOST_RANK = 10  # Medusa and EAGLE look at the 10 best tokens (their TOPK), for which TensorRT-LLM's plugins are built

# ---- Medusa: `medusa_choices` of medusa_choices.py (FasterDecoding/Medusa); a depth is one head


def write_medusa(tree: Tree) -> str:
    """The line that sets the tree. ValueError for ranks that Medusa does not look at."""
    return f"medusa_choices = {within(tree, MOST_RANK).choices()}"


# ---- EAGLE (SafeAILab/EAGLE): the first version's `tree_choices`, and the dynamic tree of EAGLE-2 and -3


def write_eagle(tree: Tree) -> str:
    """EAGLE-1's line. ValueError for ranks that it does not look at."""
    return f"tree_choices = {_lists(tree)}"


def write_eagle_dynamic(tree: Dynamic) -> str:
    """EAGLE-2's and -3's keywords: `total_token` counts the root, `depth` the levels after the first."""
    return f"EaModel.from_pretrained(total_token={tree.nodes + 1}, depth={tree.steps - 1}, top_k={tree.top_k})"


# ---- TensorRT-LLM: `MedusaDecodingConfig(medusa_choices=)` in versions with an engine backend (until mid-2026),
# `EagleDecodingConfig(eagle_choices=)` until 1.3, and EAGLE-3's dynamic tree. `max_total_draft_tokens` leaves out the
# root.


def write_tensorrt_medusa(tree: Tree, heads: int | None = None, model: str = "DRAFTER") -> str:
    """The call for Medusa. heads: of the checkpoint; as many as the tree is deep if not given."""
    return (f"MedusaDecodingConfig(max_draft_len={tree.budget}, speculative_model={model!r}, "
            f"num_medusa_heads={heads or tree.max_depth}, medusa_choices={_lists(tree)})")


def write_tensorrt_eagle(tree: Tree, model: str = "DRAFTER") -> str:
    """The call for EAGLE's static tree."""
    return (f"EagleDecodingConfig(max_draft_len={tree.max_depth}, max_total_draft_tokens={tree.budget}, "
            f"speculative_model={model!r}, eagle_choices={_lists(tree)})")


def write_tensorrt_dynamic(tree: Dynamic, model: str = "DRAFTER") -> str:
    """The call for the dynamic tree of an EAGLE-3 drafter."""
    return (f"Eagle3DecodingConfig(max_draft_len={tree.steps}, max_total_draft_tokens={tree.nodes}, "
            f"speculative_model={model!r}, use_dynamic_tree=True, dynamic_tree_max_topK={tree.top_k})")


# ---- transformers' assisted generation and prompt look-up: a chain, at batch 1 alone


def write_transformers(tree: Tree) -> str:
    """The line before `model.generate(..., assistant_model=assistant_model)`.

    It sets the schedule to constant and the confidence threshold to 0; else the drafter stops and adapts on its own.
    """
    return (f"assistant_model.generation_config.update(num_assistant_tokens={length_of_chain(tree, 'transformers')}, "
            'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)')


def write_transformers_lookup(tree: Tree, longest: int = LONGEST) -> str:
    """The call of prompt look-up. longest: tokens of the n-grams that are looked up, at most."""
    return (f"model.generate(**inputs, prompt_lookup_num_tokens={length_of_chain(tree, 'transformers')}, "
            f"max_matching_ngram_size={longest})")


def _lists(tree: Tree) -> list[list[int]]:
    return [list(choice) for choice in within(tree, MOST_RANK).choices()]


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
    """The options of llama-server. kind: "draft-simple" for a language model, "draft-eagle3"."""
    length = length_of_chain(tree, "llama.cpp")
    return f"-md {model} --spec-type {kind} --spec-draft-n-max {length} --spec-draft-p-min 0"


def write_llama_cpp_ngram(tree: Tree, longest: int = LONGEST) -> str:
    """The options of llama-server for look-up. longest: tokens of the n-gram; no shorter one is tried."""
    length = length_of_chain(tree, "llama.cpp")
    return f"--spec-type ngram-simple --spec-ngram-simple-size-n {longest} --spec-ngram-simple-size-m {length}"
