"""A drafter that chooses among several ones while it runs: by their speed so far, or by the length of the text."""

import math
import time
from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper
from lib.drafters.registry import make
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

MEMORY = 0.8  # weight of a drafter's earlier rounds
IDLE = 24  # rounds without a drafter after which it is tried again


class FastestSoFar:
    """Of several choices the one of the most tokens per second so far, as a moving average; each is tried first, and
    again after IDLE rounds without it.
    """

    def __init__(self, count: int):
        self.speeds, self.idle_rounds = [math.inf] * count, [0] * count

    def choose(self) -> int:
        """The choice of the next round."""
        speeds = [math.inf if idle >= IDLE else speed for idle, speed in zip(self.idle_rounds, self.speeds)]
        return speeds.index(max(speeds))

    def learn(self, choice: int, speed: float) -> None:
        """Takes the tokens per second of a round with a choice."""
        earlier = self.speeds[choice]
        self.speeds[choice] = speed if earlier == math.inf else MEMORY * earlier + (1 - MEMORY) * speed
        self.idle_rounds = [0 if other == choice else idle + 1 for other, idle in enumerate(self.idle_rounds)]


class ChoosingDrafter(Wrapper):
    """Drafts each round with one of several drafters; the others read the committed tokens as new text.

    length: the first drafter drafts after texts of up to so many tokens, the last one beyond, by the longest row.
    Without it, the fastest so far, by whole rounds of all batches.
    """

    per_row = ("lengths",)

    def __init__(self, *drafters: Drafter, length: int | None = None):
        super().__init__(*drafters)
        self.length, self.fastest = length, FastestSoFar(len(drafters))

    @classmethod
    def of(cls, pair, *, length: int | None = None, among: str = "sam+model") -> "ChoosingDrafter":
        """Drafters of these kinds, joined by "+"; length: as of the constructor."""
        return cls(*(make(name, pair) for name in among.split("+")), length=length)

    def start(self, prompts: Sequence[Tensor]) -> None:
        super().start(prompts)
        self.lengths, self.active, self.began = [len(prompt) for prompt in prompts], 0, None

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        if self.length is None:
            self.active = self.fastest.choose()
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
            seconds = max(1e-9, time.perf_counter() - self.began)
            self.fastest.learn(self.active, sum(len(nodes) + 1 for nodes in accepted) / seconds)
