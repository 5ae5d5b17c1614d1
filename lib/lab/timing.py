"""A fair clock: it times alternatives in shuffled rounds, synchronised, within a limit of time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from lib.lab import processor

LEAST_REPEATS = 3  # fewer have no quartiles
LEAST_FLUSHED = 2**27  # bytes read to flush caches of unknown size
ASLEEP = 2_000_000  # cycles, about a millisecond, that a GPU sleeps while the host queues the call
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Quartiles of the seconds per call of one alternative over its repeats; or, with `skipped`, why there are none."""

    median: float = float("nan")
    lower: float = float("nan")
    upper: float = float("nan")
    repeats: int = 0
    skipped: str = ""


def device_seconds(call: Call, device: str | torch.device) -> float:
    """Seconds of one call by the device's own clock; on a GPU without the launches, which overlap with other work."""
    if torch.device(device).type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(ASLEEP)
        start.record()
        call()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1e3


def interleaved(alternatives: dict[str, Call], *, repeats: int, seconds: float, generator: torch.Generator,
                device: str | torch.device = "cpu",
                before: Callable[[str], object] = lambda name: None) -> dict[str, Timing]:
    """Times alternatives in rounds of shuffled order, so that drift of the machine affects all alike.

    Each is first called once; then all share `seconds` in evenly spread rounds. Where LEAST_REPEATS calls of each do
    not fit, the slowest are skipped with the reason, as are those whose first call fails. `before` is called with the
    name before each call and is not timed: it may flush the caches.
    """
    def timed(name: str) -> float:
        before(name)
        return device_seconds(alternatives[name], device)

    once, times = {}, {}
    for name in alternatives:
        try:
            once[name] = timed(name)
        except Exception as error:  # compilers, libraries and devices without memory raise errors of many kinds
            first_line = str(error).partition("\n")[0]
            times[name] = Timing(skipped=f"failed: {type(error).__name__}: {first_line}")
    names = sorted(once, key=once.get)
    while names and LEAST_REPEATS * sum(once[name] for name in names) > seconds:
        slowest = names.pop()
        times[slowest] = Timing(skipped=too_long(once[slowest], seconds))
    counts, remaining = {}, seconds
    for index, name in enumerate(names):  # cheapest first: an equal share each of the time that remains
        share = remaining / (len(names) - index)
        counts[name] = int(min(repeats, max(LEAST_REPEATS, share / max(once[name], 1e-9))))
        remaining -= counts[name] * once[name]
    samples, rounds = {name: [] for name in names}, max(counts.values(), default=0)
    for index in range(rounds):
        for position in torch.randperm(len(names), generator=generator).tolist():
            name = names[position]
            if (index + 1) * counts[name] // rounds > index * counts[name] // rounds:
                samples[name].append(timed(name))
    for name in names:
        lower, median, upper = np.quantile(samples[name], [0.25, 0.5, 0.75]).tolist()
        times[name] = Timing(median, lower, upper, counts[name])
    return times


def too_long(once: float, seconds: float) -> str:
    """The reason for skipping an alternative that takes `once` seconds a call."""
    return f"time: {LEAST_REPEATS} calls of {once:.3g} s and those of the faster ones do not fit into {seconds:g} s"


def shortest(call: Call, device: str | torch.device, seconds: float) -> float:
    """Seconds, by the device's clock, of the shortest call: at least three within `seconds`, after one to warm up."""
    call()
    times, stop = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < stop:
        times.append(device_seconds(call, device))
    return min(times)


def synchronise(device: str | torch.device) -> None:
    """Waits until the device has finished its queued work; a CPU has none."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def flusher(device: str | torch.device = "cpu") -> Callable[[str], object]:
    """For `before`: evicts everything from the device's caches by reading twice as much as they hold."""
    cached = processor.cache_bytes() if torch.device(device).type == "cpu" else 0
    data = torch.zeros(max(LEAST_FLUSHED, 2 * cached) // 4, device=device)  # writes might bypass the caches
    return lambda name: data.sum()
