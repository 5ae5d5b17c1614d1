"""Costs of other hardware by a roofline: a check takes the longer of reading the weights once and of multiplying them
with all rows (Williams et al. 2009). Computed from data sheets, not measured: no caches, launches or attention.
"""

from dataclasses import dataclass

import numpy as np

from lib.cost.round_cost import FREE, Curve, RoundCost


@dataclass(frozen=True)
class Hardware:
    """A machine, and the bytes in which it keeps a weight.

    bandwidth: bytes per second from memory. rate: products and sums per second in the format that it multiplies in.
    """

    bandwidth: float
    rate: float
    weight_bytes: float

    @property
    def free_rows(self) -> float:
        """Tokens of a whole batch, roots included, that are multiplied in the time of reading the weights once."""
        return self.rate * self.weight_bytes / (2 * self.bandwidth)

    def step(self, parameters: float, batch: int = 1) -> float:
        """Seconds of a plain step of a batch, for a model of so many parameters."""
        return max(parameters * self.weight_bytes / self.bandwidth, 2 * parameters * batch / self.rate)

    def check(self, nodes, batch: int = 1) -> np.ndarray | float:
        """The time of checking drafted nodes per row, over that of a plain round of the batch; nodes: float[...]."""
        rows = batch * (1 + np.asarray(nodes, dtype=float))
        return np.maximum(1.0, rows / self.free_rows) / max(1.0, batch / self.free_rows)


# H100 SXM (data sheet); Xeon 8480+ with AMX: 56 cores x 1,024 per cycle at 2.0 GHz, 8 x DDR5-4800; a laptop with AVX2:
# 8 cores x 32 per cycle at 3.0 GHz, 2 x DDR5-5600, on which float32 products read weights that are numbers of 16 bits.
HARDWARE = {
    "H100, bfloat16": Hardware(3.35e12, 989e12, 2),
    "AMX server, bfloat16": Hardware(307e9, 115e12, 2),
    "AVX2 laptop, float32": Hardware(89.6e9, 768e9, 2),
    "AVX2 laptop, int8 weights": Hardware(89.6e9, 768e9, 1),
}
# Bytes per second from memory of GPUs by the names that PyTorch gives them (data sheets).
GPUS = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12}
WEIGHT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
MEASURED, LAUNCHES, COMPUTED = "measured", "launch-bound", "computed"  # how the costs of a hardware are known
LAUNCH_BOUND = 5.0  # times the time of reading the weights: a longer plain step is that of launching kernels


def reads(machine: str, dtype: str, parameters: float, step: float) -> float:
    """How many times a plain step of so many seconds would read all weights from memory; NaN where the bandwidth of the
    machine, or the bytes of the number format, are not known here.
    """
    if machine not in GPUS or dtype not in WEIGHT_BYTES:
        return float("nan")
    return step * GPUS[machine] / (parameters * WEIGHT_BYTES[dtype])


def checks(hardware: Hardware, most: int, batch: int = 1) -> Curve:
    """The time of a check by drafted nodes per row up to `most`, in plain rounds of the batch."""
    kink = hardware.free_rows / batch - 1
    at = sorted({1.0, *([kink] if 1 < kink < most else []), float(max(2, most))})
    return Curve(np.array(at), np.asarray(hardware.check(at, batch)))


def on(hardware: Hardware, measured: RoundCost, most: int, batch: int = 1) -> RoundCost:
    """The cost of rounds of up to `most` nodes on other hardware, in plain rounds; drafting takes as large a share of a
    plain round as was measured.
    """
    return RoundCost(1.0, 0.0, FREE, checks(hardware, most, batch)).drafting_as(measured)
