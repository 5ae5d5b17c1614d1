"""A drafter that chooses among several ones while it runs: by their speed so far, or by the length of the text."""

import math
import time
from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import make
from lib.drafters.vocabulary import drafting
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

MEMORY = 0.8  # weight of a drafter's earlier rounds
IDLE = 24  # rounds without a drafter after which it is tried again


class ChoosingDrafter(Wrapper):
    """Drafts each round with one of several drafters; the others read the committed tokens as new text.

    length: the first drafter drafts after texts of up to so many tokens, the last one beyond, by the longest row.
    Without it, the one of the most tokens per second of whole rounds, as a moving average over all batches; each is
    tried first, and again after IDLE rounds without it.
    """

    def __init__(self, *drafters: Drafter, length: int | None = None):
        super().__init__(*drafters)
        self.length = length
        self.speeds = [math.inf] * len(drafters)  # tokens per second; of a drafter that was not tried yet the highest
        self.idle_rounds = [0] * len(drafters)

    @classmethod
    def of(cls, pair, *, length: int | None = None, among: str = "sam+model",
           models: Sequence = ()) -> "ChoosingDrafter":
        """Drafters of these kinds, joined by "+", or these draft models; length: as of the constructor."""
        drafters = [LanguageModelDrafter(drafting(model, pair, None)) for model in models]
        return cls(*(drafters or [make(name, pair) for name in among.split("+")]), length=length)

    def start(self, prompts: Sequence[Tensor]) -> None:
        super().start(prompts)
        self.lengths, self.active, self.began = [len(prompt) for prompt in prompts], 0, None

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        if self.length is None:
            speeds = [math.inf if idle >= IDLE else speed for idle, speed in zip(self.idle_rounds, self.speeds)]
            self.active = speeds.index(max(speeds))
        else:
            self.active = 0 if max(self.lengths) <= self.length else len(self.drafters) - 1
        self.began = time.perf_counter()
        self.drafts = self.drafters[self.active].propose(shape, draws)
        self.levels = self.drafters[self.active].levels
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None, drafts=None) -> None:
        """As `Drafter.commit`; the time since the draft began is that of the chosen drafter's round."""
        super().commit(accepted, bonus, target_outputs, drafts)
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        if self.began is not None:
            speed = sum(len(nodes) + 1 for nodes in accepted) / max(1e-9, time.perf_counter() - self.began)
            earlier = self.speeds[self.active]
            self.speeds[self.active] = speed if earlier == math.inf else MEMORY * earlier + (1 - MEMORY) * speed
            self.idle_rounds = [0 if one == self.active else idle + 1 for one, idle in enumerate(self.idle_rounds)]

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.lengths = [self.lengths[row] for row in rows]
