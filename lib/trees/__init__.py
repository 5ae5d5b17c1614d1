"""The draft tree, the shapes it can have, how it grows and how it is drawn.

Start at `tree` (the frozen `Tree`: parents give depth, rank, mask and paths). `shapes` has the static shapes by name,
`grown_shapes` those grown from measured acceptance, `rank_model` a model of acceptance by rank, `growth` the rules that
grow a tree in every round, `layout` and `drawing` pictures of trees.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    tree=("NO_PARENT", "ROOT", "Tree"),
)
