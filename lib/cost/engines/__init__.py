"""Draft settings as serving engines take them: one file an engine, each writes and reads back."""

from lib.cost.engines.forms import CHAIN, DYNAMIC, LEVELS, TREE, Dynamic, equal_levels
from lib.cost.engines.nearest import branchings, fastest, nearest
from lib.cost.engines.registry import ENGINES, Engine, Setting

__all__ = ["CHAIN", "DYNAMIC", "ENGINES", "LEVELS", "TREE", "Dynamic", "Engine", "Setting", "branchings",
           "equal_levels", "fastest", "nearest"]
