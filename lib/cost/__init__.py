"""What a round costs on this machine, the speed that follows, and the recommendation of a drafter and a tree.

Start at `recommending`, the one procedure that recommends, with `racing`, its races, `judging`, what they decide, and
`recommendation`, what it finds, as JSON and text. `calibration` times rounds of the loop and `round_cost` makes a
`CostTable` of them: the cost of any round; `roofline` computes what other hardware would take. `on_gpus` compares trees
with chains on a GPU, for acceptance as `by_depth_and_rank` has it. `formats` sets the fastest number format beside the
recommendation, with its `quality`. `served` recommends from logged answers and costs of elsewhere. `candidates` are the
drafters and trees that compete, and `ways` those in which prompts are decoded and timed.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    calibration=("LEVELS", "calibrate", "check_shapes", "usual_prefix"),
    candidates=("Limits",),
    recommending=("Evidence", "recommend"),
    recommendation=("ForBatch", "Recommendation"),
    round_cost=("CostTable", "Curve", "RoundCost", "widths"),
)
