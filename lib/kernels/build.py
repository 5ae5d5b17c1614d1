"""Compiles this package's C++ at its first use and keeps the libraries in the user's cache folder.

A library's name changes with its sources, the compiler and its options, so that it is never out of date.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from lib.lab import processor

NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}
INSTRUCTIONS = tuple(f"-m{flag}" for flag in sorted(NEEDED))
INSTRUCTIONS += ("-mavx512bf16", "-mamx-tile", "-mamx-bf16")  # used by bfloat16 entries alone
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-w", *INSTRUCTIONS)
log = logging.getLogger(__name__)


@cache
def unavailable(*sources: Path) -> str | None:
    """Why this machine cannot run a library: no AVX-512, no compiler, or a failing one; None if it can."""
    missing = sorted(NEEDED - processor.flags())
    if missing:
        return f"the processor has no {', '.join(missing)}"
    try:
        library(*sources)
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be compiled: {error}"
    return None


@cache
def library(*sources: Path) -> ctypes.CDLL:
    """The library of the first source, which includes the others. OSError or SubprocessError where compiling fails."""
    compiler = next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))), None)
    if compiler is None:
        raise FileNotFoundError("no C++ compiler (g++ or clang++) is on the path")
    text = b"".join(path.read_bytes() for path in sources) + repr((OPTIONS, compiler)).encode()
    made_of = hashlib.sha256(text).hexdigest()[:16]
    target = _cache_folder() / f"{sources[0].stem}-{made_of}.so"
    if not target.exists():
        log.info("compiling %s; this takes a few seconds, once", sources[0].name)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name  # moved when finished, so that no process loads a part of it
            _compile([compiler, *OPTIONS, "-o", str(made), str(sources[0])])
            os.replace(made, target)
    return ctypes.CDLL(str(target))


def _compile(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or [""]
        raise OSError(f"{command[0]} ended with {error.returncode}: {errors[0]}") from error


def _cache_folder() -> Path:
    """The user's cache folder; where it is not writable, a folder for temporary files that this user owns."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "draft_trees"
    spare = Path(tempfile.gettempdir()) / f"draft_trees-{os.getuid()}"
    for folder in (home, spare):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK) and (folder is home or folder.stat().st_uid == os.getuid()):
                return folder
    raise PermissionError(f"neither {home} nor {spare} can hold compiled code; set XDG_CACHE_HOME")
