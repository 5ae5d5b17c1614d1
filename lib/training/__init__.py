"""How draft models, heads, n-gram tables and their text are made: `python -m lib training COMMAND`.

Start at `command`. `own_text` lets a target write text; `heads`, `nano` and `ngrams` learn from it; `loop` trains.
"""
