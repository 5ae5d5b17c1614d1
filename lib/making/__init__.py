"""Training of the shipped models and heads, and their text; `python -m lib making all` trains the members again.

Start at `command`. `family` trains the members, `heads` the heads of a target, `ngrams` counts its tables; `loop`,
`losses` and `optim` are the training itself, `data` and `corpus` the text. `distillation` and `boosting` compare ways
to train a drafter.
"""
