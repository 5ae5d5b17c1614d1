"""How much of a stretch of time was spent in models: every forward through `tree_forward` is counted where asked.

Both contexts are classes, which cost a round less than generators do.
"""

import time
from contextvars import ContextVar


class ForwardClock:
    """Seconds spent in forwards since the clock was made; on a GPU, seconds of asking for them."""

    def __init__(self):
        self.seconds = 0.0


_CLOCK: ContextVar[ForwardClock | None] = ContextVar("forward_clock", default=None)


class clocked:
    """Counts the forwards made inside, in this thread and whoever makes them; an inner clock hides an outer one."""

    def __enter__(self) -> ForwardClock:
        self.token = _CLOCK.set(clock := ForwardClock())
        return clock

    def __exit__(self, *failure) -> None:
        _CLOCK.reset(self.token)


class forward:
    """One forward of a model."""

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *failure) -> None:
        if (clock := _CLOCK.get()) is not None:
            clock.seconds += time.perf_counter() - self.start
