"""The time of models' forward passes: `tree_forward` and the drafters report each of theirs to the active clock.

Both contexts are classes, which cost less per round than generators do.
"""

import time
from contextvars import ContextVar


class ForwardClock:
    """Seconds spent in forward passes since the clock was made; on a GPU, the seconds that launching them takes."""

    def __init__(self):
        self.seconds = 0.0


_CLOCK: ContextVar[ForwardClock | None] = ContextVar("forward_clock", default=None)


class clocked:
    """Counts the forward passes inside, in this thread; an inner clock hides an outer one."""

    def __enter__(self) -> ForwardClock:
        self.token = _CLOCK.set(clock := ForwardClock())
        return clock

    def __exit__(self, *failure) -> None:
        _CLOCK.reset(self.token)


class forward:
    """One forward pass of a model."""

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *failure) -> None:
        if (clock := _CLOCK.get()) is not None:
            clock.seconds += time.perf_counter() - self.start
