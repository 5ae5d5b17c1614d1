"""Decoding with draft trees: draft, verify, commit; one record per round.

Start at `loop` (`generate`). `custom_generate` offers the loop to transformers' `generate`; `walkthrough` shows the
rounds of one prompt with their tokens.
"""

from lib.decoding.loop import continuations, generate, in_batches, stack
from lib.decoding.records import Generation, Hooks, Observer, Round

__all__ = ["Generation", "Hooks", "Observer", "Round", "continuations", "generate", "in_batches", "stack"]
