"""Verification rules: draft, warped target probabilities and random draws in; accepted path and bonus token out.

Start at `rules` (the registry and `verify`) and `draft` (what a rule is given). `warping` makes the target's
distribution at a temperature, `draws` supplies randomness, `proof` checks the rules by enumeration.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    draft=("Draft", "Draws"),
    draws=("GeneratorDraws",),
    rules=("RULES", "Rule", "verify"),
    warping=("warp",),
)
