"""Verification rules: (draft, warped target probabilities, draws) -> accepted path and bonus token."""

from lib.verify.draft import Draft, Draws
from lib.verify.draws import GeneratorDraws
from lib.verify.rules import RULES, Rule, verify
from lib.verify.warp import warp

__all__ = ["RULES", "Draft", "Draws", "GeneratorDraws", "Rule", "verify", "warp"]
