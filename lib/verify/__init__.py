"""Verification rules: a draft, target probabilities and random draws in; accepted path and bonus token out.

Start at `rules` (each as its paper states it, and `verify`) and `draft` (their input). `warping` makes the target's
distribution at a temperature, `proof` enumerates what rules emit.
"""

from lib.verify.draft import Draft, Draws, GeneratorDraws
from lib.verify.rules import RULES, Rule, verify
from lib.verify.warping import warp

__all__ = ["Draft", "Draws", "GeneratorDraws", "RULES", "Rule", "verify", "warp"]
