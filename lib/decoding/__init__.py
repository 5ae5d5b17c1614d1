"""Decoding with draft trees: draft, verify, commit; one record per round.

Start at `loop` (`generate`). `custom_generate` offers the loop to transformers' `generate`, `walkthrough` tells the
rounds of one prompt with their tokens.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    loop=("continuations", "generate", "in_batches", "stack"),
    records=("Generation", "Hooks", "Observer", "Round"),
)
