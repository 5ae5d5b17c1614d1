"""TensorRT-LLM: static trees as lists of lists of ranks, `MedusaDecodingConfig(medusa_choices=)` in versions with an
engine backend (until mid-2026), `EagleDecodingConfig(eagle_choices=)` until 1.3; and EAGLE-3's dynamic tree.
`max_total_draft_tokens` leaves the root out.
"""

from lib.cost.engines.forms import Dynamic, keywords, tree_of, whole, within
from lib.trees.tree import Tree

MOST_RANK = 10  # as in the checkpoints' own trees, which its plugins are built for


def write_medusa(tree: Tree, heads: int | None = None, model: str = "DRAFTER") -> str:
    """The call for Medusa. heads: of the checkpoint; as many as the tree is deep if not given."""
    return (f"MedusaDecodingConfig(max_draft_len={tree.budget}, speculative_model={model!r}, "
            f"num_medusa_heads={heads or tree.max_depth}, medusa_choices={_lists(tree)})")


def write_eagle(tree: Tree, model: str = "DRAFTER") -> str:
    """The call for EAGLE's static tree."""
    return (f"EagleDecodingConfig(max_draft_len={tree.max_depth}, max_total_draft_tokens={tree.budget}, "
            f"speculative_model={model!r}, eagle_choices={_lists(tree)})")


def read(text: str) -> Tree:
    """The static tree of either call. ValueError where there is none."""
    found = keywords(text)
    choices = found.get("medusa_choices") or found.get("eagle_choices")
    if not choices:
        raise ValueError(f"{text[:60]!r} has neither medusa_choices nor eagle_choices")
    return tree_of(choices, text)


def write_dynamic(tree: Dynamic, model: str = "DRAFTER") -> str:
    """The call for the dynamic tree of an EAGLE-3 drafter."""
    return (f"Eagle3DecodingConfig(max_draft_len={tree.steps}, max_total_draft_tokens={tree.nodes}, "
            f"speculative_model={model!r}, use_dynamic_tree=True, dynamic_tree_max_topK={tree.top_k})")


def read_dynamic(text: str) -> Dynamic:
    """The dynamic tree of such a call. ValueError where it does not ask for one."""
    found = keywords(text)
    if not found.get("use_dynamic_tree"):
        raise ValueError(f"{text[:60]!r} does not set use_dynamic_tree=True")
    return Dynamic(*whole(found, ["max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens"], text))


def _lists(tree: Tree) -> list[list[int]]:
    return [list(choice) for choice in within(tree, MOST_RANK).choices()]
