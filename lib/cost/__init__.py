"""What a round costs on this machine, from a short calibration of the loop itself, and what speed follows."""

from lib.cost.calibration import SHAPES, calibrate
from lib.cost.curves import Curve, monotone
from lib.cost.fit import Costs
from lib.cost.prediction import predict_rows, speeds
from lib.cost.rounds import RoundCost, mix, widths

__all__ = ["SHAPES", "Costs", "Curve", "RoundCost", "calibrate", "mix", "monotone", "predict_rows", "speeds", "widths"]
