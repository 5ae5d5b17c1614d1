"""Models by name with their plain weights, their prompts, and their key/value cache.

Start at `load` (`load_pair`: target, draft model, tokenizer) and `registry` (the names); `lib.forward.load_pair` loads
weights of fewer bits too. `checks` says what is wrong with a pair or its download. `gguf_files` joins and converts GGUF
files, which `gguf_tensors` reads and checks and `gguf_blocks` unpacks; `gguf_tokenizer` makes their tokenizers and
`gguf_rope` their scaling of positions. `prompts` reads and tokenises the prompts of a file, `dialogue` applies chat
templates. `cache` holds keys and values of a tree.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(__name__, checks=("DTYPES", "PairError"),
                                    load=("Pair", "Served", "check_pairs", "load_pair", "load_pairs", "load_served"),
                                    registry=("FAMILY", "PAIRS", "PRESETS", "SHIPPED", "Source", "sources"))
