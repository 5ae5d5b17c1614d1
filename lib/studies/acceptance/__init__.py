"""Acceptance by shape, budget, drafter, text and temperature. Start at `measure` (rows by replay) and `findings`.

The names below are values of text columns, which `measure` writes and the findings read.
"""

OWN, ALL, AS_FEW = "its own kind", "all kinds", "all kinds, as few prompts"  # the text that a tree is chosen from
UNIFORM, CHAINED = "uniform starts", "chained rounds"  # the objective that it is chosen for
EVERY_START, CHAINED_REPLAY = "replay, every start", "replay, chained rounds"  # ways to find what a tree accepts
INDEX, LIVE = "index of the trace, once", "live decoding"
