"""How much of a stretch of time was spent in models: every forward through `tree_forward` is counted where asked."""

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator


class ForwardClock:
    """Seconds spent in forwards since the clock was made; on a GPU, seconds of asking for them."""

    def __init__(self):
        self.seconds = 0.0


_CLOCK: ContextVar[ForwardClock | None] = ContextVar("forward_clock", default=None)


@contextmanager
def clocked() -> Iterator[ForwardClock]:
    """Counts the forwards made inside, in this thread and whoever makes them; an inner clock hides an outer one."""
    token = _CLOCK.set(clock := ForwardClock())
    try:
        yield clock
    finally:
        _CLOCK.reset(token)


class forward:
    """One forward of a model. A class, which costs a round less than a generator does."""

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *failure) -> None:
        if (clock := _CLOCK.get()) is not None:
            clock.seconds += time.perf_counter() - self.start
