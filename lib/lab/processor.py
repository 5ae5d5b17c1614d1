"""What the processor can do, as the operating system lists it."""

import platform
from functools import cache
from pathlib import Path


@cache
def info() -> tuple[str, ...]:
    """The lines of /proc/cpuinfo; none where there is no such file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return tuple(file)
    except OSError:
        return ()


def name() -> str:
    """The processor's name."""
    names = [line.split(":", 1)[1].strip() for line in info() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def flags() -> frozenset[str]:
    """Its instruction sets by Linux's names, such as avx512_bf16; empty where they cannot be known."""
    lines = [line.split() for line in info() if line.startswith(("flags", "Features"))]
    return frozenset(lines[0]) if lines else frozenset()


def kind() -> str:
    """The widest of the instruction sets that tell generations of processors apart, for measurements to be compared."""
    return next((flag for flag in ("amx_tile", "avx512_bf16", "avx512f", "avx2", "asimd") if flag in flags()), "plain")


@cache
def cache_bytes() -> int | None:
    """Bytes of its largest cache, as the operating system lists it; None where that cannot be known."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=None)
