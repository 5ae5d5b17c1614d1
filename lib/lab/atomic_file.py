"""Files that are always whole: a file has its old content or its new one, whatever stops the writer."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of a file's content in one step; it is on disk when this returns."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
