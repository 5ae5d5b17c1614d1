"""Tree attention: the operator, its backends, and their registration with transformers.

Start at `operator` (`tree_attention`, and the rule by which it chooses a backend) and `registration` (`tree_forward`,
one forward pass of a model over a tree, and what a model's attention has to be for that). `backends` holds the
implementations.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    operator=("choose_backend", "tree_attention"),
    registration=("TREE", "can_host_tree", "check_attention", "hosting_trees", "register", "tree_forward",
                  "using_attention"),
)
