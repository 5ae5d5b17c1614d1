"""Engines that take a draft tree in a line of Python: Medusa, EAGLE and TensorRT-LLM, by lists of paths of ranks (here
called choices) or by the size of a dynamic tree; and transformers, by the length of a chain.
"""

from lib.cost.engines.forms import LONGEST, Dynamic, length_of_chain, within
from lib.trees.tree import Tree

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
