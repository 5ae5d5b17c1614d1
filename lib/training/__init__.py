"""How the shipped family was made: tokens, optimiser, loop, distillation; `python -m lib.training all` makes it
again.
"""
