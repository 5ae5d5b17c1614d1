"""vLLM: `--speculative-config` as JSON. A chain by `num_speculative_tokens`; in the versions that had tree attention
(0.11 to early 2026, EAGLE drafters alone) also `speculative_token_tree`, whose levels must branch alike: the proposer
takes the children of a level to be its nodes over those of the level before.
"""

import ast
import json
import shlex

from lib.engines.forms import equal_levels, length_of_chain, options
from lib.shapes import chain
from lib.tree import Tree

OPTION = "speculative-config"


def write(tree: Tree, model: str = "DRAFTER", method: str = "draft_model") -> str:
    """The option for a chain. method: "draft_model" for a language model, "eagle3", "medusa" and so on."""
    length = length_of_chain(tree, "vLLM without a token tree")
    return _option({"method": method, "model": model, "num_speculative_tokens": length})


def read(text: str) -> Tree:
    """The chain that the option means."""
    return chain(_settings(text)["num_speculative_tokens"])


def write_tree(tree: Tree, model: str = "DRAFTER", method: str = "eagle3") -> str:
    """The option with a token tree. ValueError where nodes of one level have different numbers of children."""
    if not tree.budget or equal_levels(tree) is None:
        raise ValueError(f"vLLM's token tree gives all nodes of a level as many children, {tree!r} does not: "
                         "give its nearest setting, see engines.nearest")
    return _option({"method": method, "model": model, "num_speculative_tokens": tree.budget,
                    "speculative_token_tree": str(tree.choices())})


def read_tree(text: str) -> Tree:
    """The tree that the option means. ValueError where its nodes are not as many as it says."""
    found = _settings(text)
    tree = Tree.from_choices(ast.literal_eval(found["speculative_token_tree"]))
    if tree.budget != found["num_speculative_tokens"]:
        raise ValueError(f"num_speculative_tokens is {found['num_speculative_tokens']}, the token tree has "
                         f"{tree.budget} nodes: make them equal")
    return tree


def _option(settings: dict) -> str:
    return f"--{OPTION} {shlex.quote(json.dumps(settings))}"


def _settings(text: str) -> dict:
    found = options(text)
    if OPTION not in found:
        raise ValueError(f"{text[:60]!r} lacks --{OPTION}")
    return json.loads(found[OPTION])
