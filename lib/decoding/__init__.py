"""Decoding by speculation: `generate` decodes any number of rows, each with its own prompt length, tree, accepted
length and end; `continuations` is plain decoding in the same loop.
"""

from lib.decoding.batch import in_batches, stack
from lib.decoding.hooks import Hooks, Observer
from lib.decoding.loop import generate
from lib.decoding.plain import NoDrafter, continuations
from lib.decoding.records import Generation, Round

__all__ = ["Generation", "Hooks", "NoDrafter", "Observer", "Round", "continuations", "generate", "in_batches", "stack"]
