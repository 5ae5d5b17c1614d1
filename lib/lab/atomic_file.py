"""Files that grow by whole appends: what a writer that was killed midway has added reads as if it had not begun.

An append first notes the file's length beside it, and takes the note away when its bytes are on disk. Compressed files
hold one xz stream an append.
"""

import lzma
import os
from pathlib import Path


def append(path: Path, data: bytes) -> None:
    """Add bytes to a file that exists; they are on disk when this returns."""
    note = _note(path)
    replace(note, str(path.stat().st_size).encode())
    with open(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    note.unlink()


def roll_back(path: Path) -> None:
    """Take away what an append that was stopped midway has left."""
    note = _note(path)
    if note.exists():
        os.truncate(path, int(note.read_text()))
        note.unlink()


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of a file's content in one step."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def committed(path: Path) -> bytes:
    """The plain text of a file up to its last whole append: no half line, whatever stopped the writer."""
    data, note = path.read_bytes(), _note(path)
    if note.exists():
        data = data[: int(note.read_text())]
    if path.suffix == ".xz":
        data = _unzipped(data)
    return data[: data.rfind(b"\n") + 1]


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".length")


def _unzipped(data: bytes) -> bytes:
    """All whole streams of a compressed file; a last one that is torn is left out."""
    whole = []
    while data:
        stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
        try:
            text = stream.decompress(data)
        except lzma.LZMAError:
            break
        if not stream.eof:
            break
        whole.append(text)
        data = stream.unused_data
    return b"".join(whole)
