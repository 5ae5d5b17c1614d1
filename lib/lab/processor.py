"""What this machine is and can do: the processor's name, instruction sets and caches, and the free memory."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import torch


@cache
def info() -> dict[str, str]:
    """The facts of /proc/cpuinfo on its last core; none where there is no such file."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@cache
def flags() -> frozenset[str]:
    """Its instruction sets by Linux's names, such as avx512_bf16; empty where they are unknown, NEON alone on macOS."""
    listed = info().get("flags") or info().get("Features") or ("asimd" if platform.machine() == "arm64" else "")
    return frozenset(listed.split())


def has_bfloat16_units() -> bool:
    """Whether it multiplies bfloat16 in hardware; without, PyTorch's products are hundreds of times slower."""
    return not flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # the last is ARM's


def has_matrix_units() -> bool:
    """Whether it has matrix units for bfloat16."""
    return "amx_bf16" in flags()


def kind() -> str:
    """The widest of the instruction sets that distinguish generations of processors."""
    return next((flag for flag in ("amx_tile", "avx512_bf16", "avx512f", "avx2", "asimd") if flag in flags()), "plain")


@cache
def cache_bytes() -> int:
    """Bytes of its largest cache, as the operating system lists it; 0 where that is unknown."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=0)


def free_memory(device: str | torch.device = "cpu") -> int:
    """Bytes that can still be allocated on the device."""
    is_cuda = torch.device(device).type == "cuda"
    return torch.cuda.mem_get_info(device)[0] if is_cuda else psutil.virtual_memory().available


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's own operators run in the calling thread: for short work between forward passes, whose helping threads
    would spin on after it and take the cores from the next pass.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def machine(device: str | torch.device = "cpu") -> dict[str, object]:
    """What a timing depends on: processor, cores, threads, memory, system. Names no host, user or path."""
    facts = {
        "device": torch.device(device).type,
        "processor": info().get("model name") or platform.processor() or platform.machine(),
        "version": ", ".join(f"{name} {info()[name]}" for name in ("cpu family", "model", "stepping") if name in info()),
        "largest_cache_mb": cache_bytes() / 2**20,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "matrix_units": "AMX" if has_matrix_units() else "none",
        "system": platform.system(),
        "python": platform.python_version(),
    }
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no GPU; install its CUDA build and a driver, or take another profile")
        gpu = torch.cuda.get_device_properties(device)
        facts |= {"gpu": gpu.name, "gpu_memory_gb": round(gpu.total_memory / 1e9, 1), "cuda": torch.version.cuda}
    return facts


def title(facts: dict[str, object]) -> str:
    """The name of a machine in a sentence: its GPU, or its processor and units; facts: those of `machine`."""
    matrix_units = "" if facts["matrix_units"] == "none" else f" and {facts['matrix_units']}"
    return str(facts.get("gpu") or f"{facts['processor']}, {facts['vector_units']}{matrix_units}")
