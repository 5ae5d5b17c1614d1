"""How the shipped models, heads and their text were made; `python -m lib making all` makes them again.
again.
"""
