"""How the shipped models, heads and text were made; `python -m lib training all` trains the members of the family again.

Start at `command`. `family` trains the members, `nano` a draft model of a chat model, `heads` the heads of a target,
`ngrams` counts its tables; `loop` and `optim` are the training itself, `data` and `corpus` the family's text,
`own_text` a chat model's dialogues.
"""
