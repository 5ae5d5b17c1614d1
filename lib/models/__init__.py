"""Models by name, their prompts, their key/value cache, and faster forms of their forward pass.

Start at `load` (`load_pair`: target, draft model, tokenizer) and `registry` (the names). `checks` says what is wrong
with a pair or its download, `gguf_files` converts GGUF files, which `gguf_tensors` reads and checks, `gguf_shards`
joins and `gguf_blocks` unpacks; `gguf_tokenizer`, with the table of `gguf_pretokenizers`, makes their tokenizers and
`gguf_rope` their scaling of positions. `prompts` reads and tokenises the prompts of a file, `held_out` finds real text
in installed packages, `dialogue` applies chat templates. `cache` holds keys and values of a tree, `prefill` fills it
with prompts, `quantize` rounds weights to int8, `stored` keeps a GGUF file's own blocks, `sizes` makes models of
published sizes with random weights, `reduced` models that know some of their tokens alone. `fused` gives a faster
stand-in for a model: native (`native_blocks`), over joined weights (`joined_blocks` on `packed`) or compiled
(`compiled`).
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(__name__, checks=("DTYPES", "PairError"),
                                    load=("Pair", "Served", "check_pairs", "load_pair", "load_pairs", "load_served"),
                                    registry=("FAMILY", "PAIRS", "PRESETS", "SHIPPED", "Source", "files_of", "sources"))
