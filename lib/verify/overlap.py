"""How much two distributions have in common when one of them is scaled."""

from functools import cached_property

from torch import Tensor

from lib.verify.masses import Masses


class Overlap:
    """sum min(p, rho q) of p, q float[V], for several rho."""

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.q = p, q

    @cached_property
    def whole(self) -> float:
        """The mass of p."""
        return Masses(self.p).mass

    def at(self, rho: float) -> float:
        """The sum for one rho, at most 1: what (p - rho q)+ leaves of p is not shared."""
        return min(1.0, max(0.0, self.whole - Masses(self.p, self.q, rho).mass))
