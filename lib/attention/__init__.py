"""Tree attention: the operator, its backends, the choice among them, and their registration with transformers.

Start at `operator` (`tree_attention`, and `tree_forward`, one forward pass of a model over a tree). `backends` has one
file per backend, `choice` picks the fastest from measurements (choice.csv), `switch` sets a model's attention.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    operator=("TREE", "can_host_tree", "causal", "choose_backend", "register", "tree_attention", "tree_forward"),
    switch=("check_attention", "hosting_trees", "using_attention"),
)
