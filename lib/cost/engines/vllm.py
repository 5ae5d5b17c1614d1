"""vLLM: `--speculative-config` as JSON. A chain by `num_speculative_tokens`; in the versions that had tree attention
(0.11 to May 2026, EAGLE drafters alone) also `speculative_token_tree`, whose levels must branch alike: the proposer
takes the children of a level to be its nodes over those of the level before.
"""

import json
import shlex

from lib.cost.engines.forms import ANY_RANK, equal_levels, favourites, length_of_chain, options, whole
from lib.trees.shapes import chain
from lib.trees.tree import Tree

OPTION, TOKENS, TREE = "speculative-config", "num_speculative_tokens", "speculative_token_tree"


def write(tree: Tree, model: str = "DRAFTER", method: str = "draft_model") -> str:
    """The option for a chain. method: "draft_model" for a language model, "eagle3", "medusa" and so on."""
    length = length_of_chain(tree, "vLLM without a token tree")
    return _option({"method": method, "model": model, TOKENS: length})


def read(text: str) -> Tree:
    """The chain that the option means."""
    return chain(*whole(_settings(text), [TOKENS], text))


def write_tree(tree: Tree, model: str = "DRAFTER", method: str = "eagle3") -> str:
    """The option with a token tree. ValueError where nodes of one level have different numbers of children."""
    if not tree.budget or equal_levels(tree) is None:
        raise ValueError(f"vLLM's token tree gives all nodes of a level as many children, {tree!r} does not: "
                         "give its nearest setting, see engines.nearest")
    return _option({"method": method, "model": model, TOKENS: tree.budget, TREE: str(tree.choices())})


def read_tree(text: str) -> Tree:
    """The tree that the option means. ValueError where its nodes are not as many as it says."""
    found = _settings(text)
    tree, (tokens,) = favourites(str(found.get(TREE, f"no {TREE}")), ANY_RANK), whole(found, [TOKENS], text)
    if tree.budget != tokens:
        raise ValueError(f"{TOKENS} is {tokens}, the token tree has {tree.budget} nodes: make them equal")
    return tree


def _option(settings: dict) -> str:
    return f"--{OPTION} {shlex.quote(json.dumps(settings))}"


def _settings(text: str) -> dict:
    found = options(text)
    try:
        settings = json.loads(found[OPTION])
    except (KeyError, json.JSONDecodeError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{text[:60]!r} has no --{OPTION} with a JSON object: write one, quoted for the shell")
    return settings
