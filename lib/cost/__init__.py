"""What a round costs on this machine, the speed that follows, the fastest tree, and the recommendation.

Start at `calibration` (times rounds of the loop) and `fit` (`Costs`: the cost of any round, a `round_cost.RoundCost`).
`prediction` gives speeds, `best_tree` the fastest tree, `advice` the recommendation by replay and calibrated costs,
`choice` the one by replay and timed candidates, `formulas` what published formulas would choose, `engines` settings for
serving engines.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    advice=("Advice", "advise"),
    best_tree=("Limits",),
    calibration=("SHAPES", "calibrate"),
    fit=("Costs",),
    prediction=("decoded", "predict", "running", "speeds"),
    round_cost=("Curve", "RoundCost", "mix", "widths"),
)
