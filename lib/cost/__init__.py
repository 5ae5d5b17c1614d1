"""What a round costs on this machine, the speed that follows, and the fastest tree.

Start at `calibration` (times rounds of the loop) and `fit` (`Costs`, what any round costs). `prediction` gives speeds,
`best_tree` the fastest tree, `formulas` what published formulas would say, `engines` settings for serving engines.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    calibration=("SHAPES", "calibrate"),
    curves=("Curve", "monotone"),
    fit=("Costs",),
    prediction=("speeds",),
    rounds=("RoundCost", "mix", "widths"),
    whole_batches=("decoded", "predict", "running"),
)
