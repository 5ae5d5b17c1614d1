"""How much two distributions have in common when one of them is scaled, for several scales at little cost."""

import math

import torch
from torch import Tensor


class Overlap:
    """sum min(p, rho q) of p, q float[V], for several rho.

    As sum q min(p / q, rho) each costs two passes over one buffer, which falling rho cut down; a larger one divides
    anew.
    """

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.q = p, q
        self.cut_at = 0.0
        self._ratios: Tensor | None = None  # float[V]: min(p / q, cut_at)

    def at(self, rho: float) -> float:
        """The sum for one rho, at most 1."""
        ratios = self._cut(rho)
        found = float(torch.dot(self.q, ratios))
        if math.isnan(found):  # of tokens that neither has: 0 / 0
            found = float(torch.dot(self.q, ratios.nan_to_num_(nan=0.0)))
        return min(1.0, found)

    def spent(self) -> Tensor | None:
        """The buffer float[V], if there is one, to be written over."""
        self.cut_at, buffer, self._ratios = 0.0, self._ratios, None
        return buffer

    def _cut(self, rho: float) -> Tensor:
        if rho > self.cut_at:
            self._ratios = torch.div(self.p, self.q, out=self._ratios)
        self.cut_at = rho
        return self._ratios.clamp_max_(rho)
