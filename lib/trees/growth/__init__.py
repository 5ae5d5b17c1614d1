"""Growth rules: how a tree grows from a drafter's probabilities in every round, without a model.

Start at `candidates` (what a rule is, and the loop that grows a tree); `rules` has the rules, `registry` their names.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    candidates=("Candidates", "Grown", "Growth", "grow"),
    registry=("RULES", "GrowthFamily", "at_budget", "parse", "shape_or_growth"),
    rules=("Beam", "BestFirst", "Costs", "Eagle2", "OptTree", "Smart"),
)
