"""Dynamic trees: how a tree grows from a drafter's probabilities. Pure rules, one registry, no model."""

from lib.growth.best_first import DySpec
from lib.growth.candidates import Candidates, Grown, Growth, grow
from lib.growth.layered import Beam, Eagle2, OptTree
from lib.growth.marginals import DDTree
from lib.growth.registry import RULES, Rule, at_budget, parse, shape_or_growth
from lib.growth.shallower import at_most
from lib.growth.smart import Costs, Smart

__all__ = ["RULES", "Beam", "Candidates", "Costs", "DDTree", "DySpec", "Eagle2", "Grown", "Growth", "OptTree", "Rule",
           "Smart", "at_budget", "at_most", "grow", "parse", "shape_or_growth"]
