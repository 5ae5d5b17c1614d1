"""A trace as one safetensors file: whole numbers in the smallest type that holds them, the rest in half precision."""

import json
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lib.replay.trace import BY_DRAFTER, BY_ROW, Trace

WHOLE = {"tokens": np.int32, "lengths": np.int64, "loops": np.int64, "ranks": np.int32}


def save(trace: Trace, path: str | Path) -> None:
    """Writes a trace, atomically."""
    path = Path(path)
    arrays = {name: getattr(trace, name) for name in BY_ROW}
    arrays |= {f"{kind}.{name}": array for kind in BY_DRAFTER for name, array in getattr(trace, kind).items()}
    packed = {name: np.ascontiguousarray(_packed(array)) for name, array in arrays.items()}
    about = {name: json.dumps(getattr(trace, name)) for name in ("about", "prompts", "kinds")}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(packed, partial, metadata=about)
    os.replace(partial, path)


def load(path: str | Path) -> Trace:
    """Reads a trace that `save` wrote; probabilities have lost what half precision does not hold.

    FileNotFoundError where there is none; ValueError where the file is damaged, or holds something else.
    """
    try:
        with safe_open(path, "numpy") as file:
            about = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
            arrays = {name: _unpacked(name, file.get_tensor(name)) for name in file.keys()}
    except (SafetensorError, json.JSONDecodeError) as reason:
        raise ValueError(f"{path} cannot be read ({reason}): delete it, and record the trace again") from None
    missing = {*BY_ROW, "about", "prompts", "kinds"} - {*arrays, *about}
    if missing:
        lacks = ", ".join(sorted(missing))
        raise ValueError(f"{path} is no trace: it lacks {lacks}; give a file that trace.save wrote")
    by = {
        kind: {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(kind + ".")}
        for kind in BY_DRAFTER
    }
    return Trace(
        **{name: arrays[name] for name in BY_ROW},
        **by,
        prompts=tuple(about["prompts"]),
        kinds=tuple(about["kinds"]),
        about=about["about"],
    )


def _packed(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype(np.float16)
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    fits = (kind for kind in (np.int8, np.int16, np.int32) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return array.astype(next(fits, np.int64))


def _unpacked(name: str, array: np.ndarray) -> np.ndarray:
    return array.astype(WHOLE.get(name.split(".")[0], np.float32))
