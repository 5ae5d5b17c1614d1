"""Decoding with draft trees: draft, verify, commit; one record per round.

Start at `loop` (`generate`). `batch` decodes without speculation in the same loop, `custom_generate` offers the loop to
transformers' `generate`.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    batch=("continuations", "in_batches"),
    loop=("generate", "stack"),
    records=("Generation", "Hooks", "Observer", "Round"),
)
