"""Decoding with draft trees: draft, verify, commit; one record per round.

Start at `loop` (`generate`). `plain` decodes without speculation in the same loop, `custom_generate` offers the loop to
transformers' `generate`.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    batch=("in_batches", "stack"),
    loop=("generate",),
    plain=("continuations",),
    records=("Generation", "Hooks", "Observer", "Round"),
)
