"""Draft trees: the tree itself, static shapes, growth rules and drawings.

Start at `tree` (the frozen `Tree`: parents determine depth, rank, mask and paths). `shapes` has the static shapes by
name, `grown_shapes` those that are grown from measured acceptance, `rank_model` a model of acceptance by rank,
`growth` the rules that grow a tree in every round, `picture` trees for screens, `drawing` figures of many shapes.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(__name__, tree=("NO_PARENT", "ROOT", "Tree"))
