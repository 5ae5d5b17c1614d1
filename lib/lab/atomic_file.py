"""Files that are always whole: a file has its old content or its new one, whatever stops the writer."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of a file's content in one step; it is on disk when this returns.

    OSError names the file where it cannot be written, on a full disk for example; the old content then stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, f"{error.strerror}; the file cannot be written", str(path)) from None


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file; it is on disk when this returns. A writer that is killed leaves a part of it.

    OSError as from `replace`; the file is then cut back to its old content.
    """
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(size)
            raise OSError(error.errno, f"{error.strerror}; the file cannot be written", str(path)) from None
