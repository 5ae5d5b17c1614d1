"""Draft trees: the tree itself, static shapes, growth rules, their names and drawings.

Start at `tree` (the frozen `Tree`: parents determine depth, rank, mask and paths). `shapes` has the static shapes,
`growth` the rules that grow a tree in every round, `names` reads both by name (`named`), `picture` draws trees.
"""

from lib.trees.names import named
from lib.trees.tree import NO_PARENT, ROOT, Tree

__all__ = ["NO_PARENT", "ROOT", "Tree", "named"]
