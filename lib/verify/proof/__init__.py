"""Proofs of verification rules by enumeration: the law of the tokens that they emit, on small languages.

Start at `enumeration` (the exact law of a round); `forks` enumerates random draws, `languages` has the languages.
"""
