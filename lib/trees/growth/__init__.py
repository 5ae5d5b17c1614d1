"""Growth rules: how a tree grows from a drafter's probabilities in every round, without a model.

Start at `candidates` (what a rule is, and the loop that grows a tree) and `registry` (the rules by name). `best_first`,
`layered` and `smart` have the rules.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    best_first=("DDTree", "DySpec"),
    candidates=("Candidates", "Grown", "Growth", "grow"),
    layered=("Beam", "Eagle2", "OptTree"),
    registry=("RULES", "Rule", "at_budget", "at_most", "parse", "shape_or_growth"),
    smart=("Costs", "Smart"),
)
