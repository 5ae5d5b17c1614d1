"""The time of models' forward passes, as code counts it while it runs.

`tree_forward` and the drafters report each forward pass to the active clock. Its contexts are classes, which cost less
per round than generators do.
"""

import time
from contextvars import ContextVar


class clocked:
    """Counts the forward passes inside, in this thread; an inner clock hides an outer one.

    seconds: spent in forward passes so far; on a GPU, the seconds that launching them takes.
    """

    def __enter__(self) -> "clocked":
        self.seconds, self.token = 0.0, _CLOCK.set(self)
        return self

    def __exit__(self, *failure) -> None:
        _CLOCK.reset(self.token)


_CLOCK: ContextVar[clocked | None] = ContextVar("clock", default=None)


class forward:
    """One forward pass of a model."""

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *failure) -> None:
        if (clock := _CLOCK.get()) is not None:
            clock.seconds += time.perf_counter() - self.start
