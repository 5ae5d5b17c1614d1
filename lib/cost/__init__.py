"""What a round costs on this machine, from a short calibration of the loop itself, and what speed follows."""

from lib.cost.calibration import SHAPES, calibrate
from lib.cost.curves import Curve, monotone
from lib.cost.fit import Costs
from lib.cost.prediction import speeds
from lib.cost.rounds import RoundCost, mix, widths
from lib.cost.whole_batches import decoded, predict, running

__all__ = ["SHAPES", "Costs", "Curve", "RoundCost", "calibrate", "decoded", "mix", "monotone", "predict", "running",
           "speeds", "widths"]
