"""A drafter that chooses among several ones while it runs: by their speed so far, or by the length of the text."""

import time
from typing import Callable, Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter
from lib.drafters.registry import make
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

SPEED = "speed"
MEMORY = 0.8  # weight of a drafter's earlier rounds
AGAIN = 24  # rounds after which a drafter that was not chosen is tried again


class ChoosingDrafter(Drafter):
    """Drafts each round with one of several drafters; the others read the committed tokens as new text.

    by: "speed" takes the drafter of the most tokens per second of whole rounds, as a moving average; each is tried
    first, and again after AGAIN rounds. A number of tokens takes the first drafter up to texts of this length and the
    last one beyond, by the longest row. clock: seconds.
    """

    calls = property(lambda self: sum(drafter.calls for drafter in self.drafters))
    window = property(lambda self: min((drafter.window for drafter in self.drafters if drafter.window), default=None))
    knows = property(lambda self: max((drafter.knows for drafter in self.drafters if drafter.knows), default=None))
    cache_bytes = property(lambda self: sum(drafter.cache_bytes for drafter in self.drafters))
    wants_hidden_states = property(lambda self: any(drafter.wants_hidden_states for drafter in self.drafters))

    def __init__(self, drafters: Sequence[Drafter], by: str | int = SPEED,
                 clock: Callable[[], float] = time.perf_counter):
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} drafters to choose among; give two or more")
        if by != SPEED and not (isinstance(by, int) and by > 0):
            raise ValueError(f"by is {by!r}; give {SPEED!r}, or a length of text in tokens")
        self.drafters, self.by, self.clock = list(drafters), by, clock
        self.speeds: list[float | None] = [None] * len(drafters)  # tokens per second
        self.used, self.rounds = [0] * len(drafters), 0  # the last round of each; rounds so far

    @classmethod
    def of(cls, pair, *, among: str = "sam+model", by: str | int = SPEED) -> "ChoosingDrafter":
        """Drafters of these kinds, joined by "+"; by: as of the constructor."""
        by = int(by) if str(by).isdecimal() else by
        return cls([make(name, pair) for name in among.split("+")], by)

    def ask_probs(self, wanted: bool) -> None:
        """Asks all of them."""
        for drafter in self.drafters:
            drafter.ask_probs(wanted)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts all of them on the prompts int64[T]; what was learned of their speeds stays."""
        for drafter in self.drafters:
            drafter.start(prompts)
        self.lengths, self.drafts = [len(prompt) for prompt in prompts], []
        self.active, self.begun = 0, None

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """The chosen drafter's drafts."""
        self.active, self.begun = self._choice(), self.clock()
        chosen, calls = self.drafters[self.active], self.calls
        self.drafts = chosen.propose(shape, draws)
        self.levels = chosen.levels or [self.calls - calls] * len(self.drafts)
        return self.drafts

    def _choice(self) -> int:
        if self.by != SPEED:
            return 0 if max(self.lengths) <= self.by else len(self.drafters) - 1
        if None in self.speeds:
            return self.speeds.index(None)
        oldest = min(range(len(self.used)), key=self.used.__getitem__)
        return oldest if self.rounds - self.used[oldest] > AGAIN else max(
            range(len(self.speeds)), key=self.speeds.__getitem__)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """All take the kept tokens; the time since the draft began is that of the chosen drafter's round."""
        for drafter in self.drafters:
            drafter.commit_of(self.drafts, accepted, bonus, target_outputs)
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        if self.begun is not None:
            speed = sum(len(nodes) + 1 for nodes in accepted) / max(1e-9, self.clock() - self.begun)
            known = self.speeds[self.active]
            self.speeds[self.active] = speed if known is None else MEMORY * known + (1 - MEMORY) * speed
            self.rounds += 1
            self.used[self.active], self.begun = self.rounds, None

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of all of them."""
        for drafter in self.drafters:
            drafter.select(rows)
        self.lengths = [self.lengths[row] for row in rows]
