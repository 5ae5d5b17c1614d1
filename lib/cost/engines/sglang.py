"""SGLang: steps, top-k and draft tokens on the command line. Top-k 1 is a chain; more is EAGLE-2's dynamic tree.

`--speculative-num-draft-tokens` counts the root: with top-k 1 SGLang sets it to the steps and one.
"""

from lib.cost.engines.forms import Dynamic, length_of_chain, options, whole
from lib.trees.shapes import chain
from lib.trees.tree import Tree

STEPS, TOP_K, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"


def write(tree: Tree, model: str = "DRAFTER", algorithm: str = "STANDALONE") -> str:
    """The options for a chain. algorithm: "STANDALONE" for a language model, "EAGLE", "EAGLE3"."""
    length = length_of_chain(tree, "SGLang with top-k 1")
    return write_dynamic(Dynamic(length, 1, length), model, algorithm)


def read(text: str) -> Tree:
    """The chain that the options mean, of as many tokens as steps, whatever they say of tokens. ValueError where top-k
    is not 1.
    """
    steps, top_k = whole(options(text), [STEPS, TOP_K], text)
    if top_k != 1:
        raise ValueError(f"--{TOP_K} is {top_k}, a dynamic tree and no chain: use read_dynamic")
    return chain(steps)


def write_dynamic(tree: Dynamic, model: str = "DRAFTER", algorithm: str = "STANDALONE") -> str:
    """The options for a dynamic tree."""
    return (f"--speculative-algorithm {algorithm} --speculative-draft-model-path {model} --{STEPS} {tree.steps} "
            f"--{TOP_K} {tree.top_k} --{TOKENS} {tree.nodes + 1}")


def read_dynamic(text: str) -> Dynamic:
    """The dynamic tree that the options mean. ValueError where one is missing."""
    steps, top_k, tokens = whole(options(text), [STEPS, TOP_K, TOKENS], text)
    return Dynamic(steps, top_k, tokens - 1)
