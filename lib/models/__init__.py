"""Models by name with their plain weights, their prompts, and their key/value cache.

Start at `load` (`load_pair`: target, draft model, tokenizer) and `registry` (the names); `lib.forward.load_pair` loads
weights of fewer bits too. `checks` refuses pairs that cannot work, `gguf` converts GGUF files, `prompts` reads files of
prompts, `dialogue` applies chat templates, `cache` holds keys and values of a tree.
"""

from lib.models.checks import DTYPES, PairError
from lib.models.load import Pair, Served, check_pairs, load_pair, load_pairs, load_served
from lib.models.registry import FAMILY, PAIRS, SHIPPED, Source, sources

__all__ = ["DTYPES", "FAMILY", "PAIRS", "SHIPPED", "Pair", "PairError", "Served", "Source", "check_pairs", "load_pair",
           "load_pairs", "load_served", "sources"]
