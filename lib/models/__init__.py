"""Models by name with their plain weights, their prompts, and their key/value cache.

Start at `load` (`load_pair`; `lib.forward` has one for weights of fewer bits) and `registry` (the names). `checks`
refuses pairs that cannot work, `gguf` converts GGUF files, `prompts` and `dialogue` make tokens. What is imported here,
and `prompts`, need no torch.
"""

from lib.models.files import PairError
from lib.models.registry import FAMILY, PAIRS, SHIPPED, Source, sources

__all__ = ["FAMILY", "PAIRS", "SHIPPED", "PairError", "Source", "sources"]
