"""Which verification rules are lossless, what each accepts, and what it costs: notebook 04.

Start at `findings`. `measure` and `verification_cost` make the tables that `schema` declares, `figures` draws them.
"""
