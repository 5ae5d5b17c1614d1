"""Proofs of verification rules by enumeration: the law of what they emit, on small languages, and bounds for any rule.

Start at `enumeration` (the exact law of a round); `forks` enumerates random draws, `languages` has the languages,
`bounds` the most that a lossless rule can accept, `sources` an acceptance that is published and not lossless.
"""
