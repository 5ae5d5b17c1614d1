"""Verification rules: draft, warped target probabilities and random draws in; accepted path and bonus token out.

Start at `rules` (every rule as its paper states it, the registry and `verify`) and `draft` (the input of a rule).
`warping` makes the target's distribution at a temperature, `proof` checks the rules by enumeration.
"""

from lib.verify.draft import Draft, Draws, GeneratorDraws
from lib.verify.rules import RULES, Rule, verify
from lib.verify.warping import warp

__all__ = ["Draft", "Draws", "GeneratorDraws", "RULES", "Rule", "verify", "warp"]
