"""Dynamic trees: how a tree grows from a drafter's probabilities. Pure rules, one registry, no model."""

from lib.trees.growth.best_first import DySpec
from lib.trees.growth.candidates import Candidates, Grown, Growth, grow
from lib.trees.growth.layered import Beam, Eagle2, OptTree
from lib.trees.growth.marginals import DDTree
from lib.trees.growth.registry import RULES, Rule, at_budget, parse, shape_or_growth
from lib.trees.growth.shallower import at_most
from lib.trees.growth.smart import Costs, Smart

__all__ = ["RULES", "Beam", "Candidates", "Costs", "DDTree", "DySpec", "Eagle2", "Grown", "Growth", "OptTree", "Rule",
           "Smart", "at_budget", "at_most", "grow", "parse", "shape_or_growth"]
