"""A fair clock: alternatives in shuffled rounds, synchronised, bounded in time; and what the machine is."""

import os
import platform
import time
from dataclasses import dataclass
from typing import Callable

import psutil
import torch

from lib.lab import processor

LEAST_REPEATS = 3  # quartiles of fewer say nothing
LEAST_FLUSHED = 2**27  # bytes read to flush caches of unknown size
ASLEEP = 2_000_000  # cycles, about a millisecond, that a GPU sleeps while the host goes ahead
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds a call of one alternative: quartiles over its repeats; or, with `skipped`, why there are none."""

    median: float = float("nan")
    lower: float = float("nan")
    upper: float = float("nan")
    repeats: int = 0
    skipped: str = ""


def wall_seconds(call: Call, device: str | torch.device) -> float:
    """Seconds of one call, from idle device to idle device."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def device_seconds(call: Call, device: str | torch.device) -> float:
    """Seconds of one call by the device's own clock: a GPU's without the launches, which a model's host makes ahead."""
    if torch.device(device).type != "cuda":
        return wall_seconds(call, device)
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(ASLEEP)
        start.record()
        call()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1e3


def interleaved(
    alternatives: dict[str, Call],
    *,
    repeats: int,
    seconds: float,
    generator: torch.Generator,
    device: str | torch.device = "cpu",
    before: Callable[[str], object] = lambda name: None,
    clock: Callable[[Call, str | torch.device], float] = wall_seconds,
) -> dict[str, Timing]:
    """Time alternatives against each other: rounds in shuffled order, so that a drift of the machine meets all alike.

    Each is first called once, in the order given, until that has taken `seconds`; then all share `seconds` again. Where
    LEAST_REPEATS of each do not fit, the slowest are skipped, saying so, and so is one whose first call fails; of the
    rest, one that cannot have all its `repeats` takes part in evenly spread rounds. `before`, called with the name before each call of it, is not timed:
    it flushes the caches, say, or puts back what a call changes.
    """
    once, failed = {}, {}
    for name, call in alternatives.items():
        if sum(once.values()) <= seconds:
            try:
                before(name)
                once[name] = clock(call, device)
            except Exception as error:  # whatever a compiler, a library or a device out of memory raises
                failed[name] = failure(error)
    counts = _repeats({name: once[name] for name in affordable(once, seconds)}, repeats, seconds)
    samples, names = {name: [] for name in counts}, list(counts)
    rounds = max(counts.values(), default=0)
    for index in range(rounds):
        for at in torch.randperm(len(names), generator=generator).tolist():
            name = names[at]
            if (index + 1) * counts[name] // rounds > index * counts[name] // rounds:
                before(name)
                samples[name].append(clock(alternatives[name], device))
    untried = f"time: not tried, one call of each of those before it took more than {seconds:g} s"
    skipped = {name: too_long(once[name], seconds) if name in once else untried for name in alternatives} | failed
    return {
        name: _quartiles(samples[name]) if name in samples else Timing(skipped=skipped[name]) for name in alternatives
    }


def affordable(once: dict[str, float], seconds: float) -> list[str]:
    """The alternatives, cheapest first, of which LEAST_REPEATS each fit into `seconds` together."""
    kept = sorted(once, key=once.get)
    while kept and LEAST_REPEATS * sum(once[name] for name in kept) > seconds:
        kept.pop()
    return kept


def failure(error: Exception) -> str:
    """The reason for skipping an alternative that raised this."""
    first_line = (str(error).splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first_line}"


def too_long(once: float, seconds: float) -> str:
    """The reason for skipping an alternative that takes `once` seconds a call."""
    return f"time: {LEAST_REPEATS} calls of {once:.3g} s and those of the faster ones do not fit into {seconds:g} s"


def _repeats(once: dict[str, float], repeats: int, seconds: float) -> dict[str, int]:
    """Repeats of each, cheapest first: an equal share of the time left; what one does not need is passed on."""
    counts, left = {}, seconds
    for index, (name, each) in enumerate(once.items()):
        share = left / (len(once) - index)
        counts[name] = int(min(repeats, max(LEAST_REPEATS, share / max(each, 1e-9))))
        left -= counts[name] * each
    return counts


def shortest(call: Call, device: str | torch.device, seconds: float) -> float:
    """Seconds, by the device's clock, of the shortest of at least three calls, and of as many as `seconds` hold, after
    one to warm up.
    """
    call()
    times, stop = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < stop:
        times.append(device_seconds(call, device))
    return min(times)


def synchronise(device: str | torch.device) -> None:
    """Wait until the device has done all that was asked of it; the CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def flusher(device: str | torch.device = "cpu") -> Callable[[str], object]:
    """For `before`: leaves in the device's caches nothing of what was there, by reading twice as much as they hold."""
    known = torch.device(device).type == "cpu" and processor.cache_bytes()
    data = torch.zeros(max(LEAST_FLUSHED, 2 * (known or 0)) // 4, device=device)  # writing might pass the caches by
    return lambda name: data.sum()


def _quartiles(samples: list[float]) -> Timing:
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    lower, median, upper = torch.tensor(samples, dtype=torch.float64).quantile(quarters).tolist()
    return Timing(median, lower, upper, len(samples))


# ------------------------------------------------------------------------------------------------------- the machine


def machine(device: str | torch.device = "cpu") -> dict[str, object]:
    """What a timing depends on: processor, cores, threads, memory, versions, dtypes. Names no host, user or path."""
    import transformers

    facts = {
        "device": torch.device(device).type,
        "processor": processor.name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "matrix_units": "AMX" if "amx_tile" in processor.flags() else "none",
        "bfloat16_units": bool({"avx512_bf16", "amx_bf16", "bf16"} & processor.flags()),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "gpu_processors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return facts


def free_memory(device: str | torch.device = "cpu") -> int:
    """Bytes that can still be allocated on the device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
