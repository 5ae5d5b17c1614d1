"""Compiles this package's C++ at its first use and keeps the library in the user's cache folder.

All sources make one library, since they share their threads. Its name changes with sources, compiler and options.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from lib.lab import processor

# Instruction sets, the best first: what the processor must have, and the compiler's options.
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}
VNNI = AVX512 | {"avx512_vnni"}
INSTRUCTION_SETS = {
    "AVX-512 with bfloat16": (VNNI | {"avx512_bf16"}, ("-mamx-tile", "-mamx-bf16", "-mamx-int8")),
    "AVX-512 with products of bytes": (VNNI, ()),
    "AVX-512": (AVX512, ()),
    "AVX2": ({"avx2", "fma", "f16c"}, ()),
    "NEON with bfloat16": ({"asimd", "bf16"}, ("-march=armv8.2-a+bf16",)),
    "NEON": ({"asimd"}, ()),
}
NOT_OPTIONS = {"asimd", "bf16"}  # flags that are no -m option of the compiler
OPTIONS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-w")
HERE = Path(__file__).parent
SOURCES = tuple(sorted(HERE.glob("*.cpp")))


class CannotServe(ValueError):
    """Why this machine or this code cannot run a model, a layer or weights; callers then take PyTorch's operators."""


def served(make: Callable, *parts):
    """What make(*parts) gives; None where it raises `CannotServe`."""
    try:
        return make(*parts)
    except CannotServe:
        return None


@cache
def instructions(flags: frozenset[str]) -> tuple[str, ...] | None:
    """The compiler's options for the best instruction set of a processor with these flags; None where it has none."""
    for needed, further in INSTRUCTION_SETS.values():
        if needed <= flags:
            return *(f"-m{flag.replace('_', '')}" for flag in sorted(needed - NOT_OPTIONS)), *further
    return None


def unavailable(*sources: Path) -> str | None:
    """Why this machine cannot run the library of `sources`; None if it can."""
    try:
        library(*sources)
    except CannotServe as reason:
        return str(reason)


def library(*sources: Path) -> ctypes.CDLL:
    """The library of all sources, or of the given ones. CannotServe where this machine cannot run or compile it."""
    made = _library(instructions(processor.flags()), sources or SOURCES)
    if isinstance(made, str):
        raise CannotServe(made)
    return made


@cache
def _library(chosen: tuple[str, ...] | None, sources: tuple[Path, ...]) -> ctypes.CDLL | str:
    """The library, or why there is none: what fails once is not tried again at each call."""
    if chosen is None:
        return "the processor has neither AVX2, AVX-512 nor NEON"
    try:
        return _built(chosen, sources)
    except PermissionError as error:
        return f"permission denied: {error.filename or error} (set XDG_CACHE_HOME to a folder that you may change)"
    except (OSError, subprocess.SubprocessError) as error:
        errors = [line for line in (getattr(error, "stderr", None) or "").splitlines() if "error" in line]
        return f"it cannot be compiled: {[*errors, error][0]} (set CXX to a C++ compiler, XDG_CACHE_HOME to a folder)"


def compiler() -> str:
    """The path of the C++ compiler. FileNotFoundError where there is none."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError("no C++ compiler (g++ or clang++) is on the path")


def _built(chosen: tuple[str, ...], sources: tuple[Path, ...]) -> ctypes.CDLL:
    headers = sorted(path for folder in {HERE, *(path.parent for path in sources)} for path in folder.glob("*.h"))
    text = b"".join(path.read_bytes() for path in (*sources, *headers)) + repr((OPTIONS, chosen, compiler())).encode()
    made_of = hashlib.sha256(text).hexdigest()[:16]
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "draft_trees"
    cache_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = cache_folder / f"{sources[0].stem}-{made_of}.so"
    if not target.exists():
        with open(target.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():  # another process may have made it meanwhile
                _compile(chosen, sources, target)
    return ctypes.CDLL(str(target))


def _compile(chosen: tuple[str, ...], sources: tuple[Path, ...], target: Path) -> None:
    """Makes the library, each source in a process of its own."""
    logging.getLogger(__name__).info("compiling %s; this takes some seconds, once", sources[0].name)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, ThreadPoolExecutor() as pool:
        made = Path(folder) / target.name  # moved when finished, so that no process loads a part of it
        parts = [f"{made}.{source.stem}.o" for source in sources]
        run = partial(subprocess.run, check=True, capture_output=True, text=True, errors="replace",
                      timeout=600)
        list(pool.map(lambda part, source: run([compiler(), *OPTIONS, *chosen, "-c", "-o", part, source]), parts,
                      sources))
        run([compiler(), "-shared", "-pthread", "-o", made, *parts, "-ldl"])
        os.replace(made, target)
