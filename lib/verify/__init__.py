"""Verification rules: draft, warped target probabilities and random draws in; accepted path and bonus token out.

Start at `plain` (the definition of every rule), `rules` (the registry and `verify`) and `draft` (the input of a rule).
`fast` has the forms that decode where they differ from the definitions, `warping` makes the target's distribution at a
temperature, `proof` checks the rules by enumeration.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(__name__, draft=("Draft", "Draws", "GeneratorDraws"),
                                    rules=("RULES", "Rule", "verify"), warping=("warp",))
