"""Models by name with their plain weights, their prompts, and their key/value cache.

Start at `load` (`load_pair`; `lib.forward` has one for weights of fewer bits) and `registry` (the names). `checks`
refuses pairs that cannot work, `gguf` converts GGUF files, `prompts` and `dialogue` make tokens.
"""

from lib.models.checks import DTYPES, PairError
from lib.models.load import Pair, Served, check_pairs, load_pair, load_pairs, load_served
from lib.models.registry import FAMILY, PAIRS, SHIPPED, Source, sources

__all__ = ["DTYPES", "FAMILY", "PAIRS", "SHIPPED", "Pair", "PairError", "Served", "Source", "check_pairs", "load_pair",
           "load_pairs", "load_served", "sources"]
