"""Tree attention: the operator, its backends, the choice among them, and their registration with transformers.

Start at `operator` (`tree_attention`) and `registration` (`tree_forward`, one forward pass of a model over a tree, and
what a model's attention has to be for that). `backends` holds the implementations, `choice` picks the fastest one from
measurements (choice.csv).
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    operator=("choose_backend", "tree_attention"),
    registration=("TREE", "can_host_tree", "check_attention", "hosting_trees", "register", "tree_forward",
                  "using_attention"),
)
