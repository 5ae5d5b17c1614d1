"""Models whose GGUF file is split: which files belong together, and the one file that they are joined to."""

import re
from pathlib import Path
from typing import Sequence

from lib.models.checks import PairError

MAGIC = b"GGUF"  # the first bytes of a file
NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")  # of each shard, counted from 1


def shards(path: Path) -> list[Path]:
    """The files of a model in their order, whichever of them is named; the file alone where it is whole. PairError with
    the first that is missing.
    """
    parts = NAME.fullmatch(path.name)
    if parts is None:
        return [path]
    files = [path.with_name(f"{parts[1]}-{number + 1:05}-of-{parts[3]}.gguf") for number in range(int(parts[3]))]
    missing = [file.name for file in files if not file.is_file()]
    if missing or path not in files:
        raise PairError(f"{path} is one of {len(files)} shards, and {(missing or [path.name])[0]} is not among those "
                        f"in {path.parent}; fetch all of them into one folder")
    return files


def check_magic(path: Path, start: bytes) -> None:
    """PairError where a file does not begin as a GGUF file does."""
    if not start.startswith(MAGIC):
        raise PairError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}; fetch it again, or name "
                        "another file")


def stem(path: Path) -> str:
    """A model's name: its file's, without the number of a shard."""
    parts = NAME.fullmatch(path.name)
    return parts[1] if parts else path.stem


def first_of_each(files: Sequence[Path]) -> list[Path]:
    """One file of each model among these."""
    firsts = {}
    for file in sorted(files):
        parts = NAME.fullmatch(file.name)
        firsts.setdefault(parts.group(1, 3) if parts else file.name, file)
    return list(firsts.values())


def join(files: Sequence[Path], target: Path) -> None:
    """Writes the shards of a model as one file, reading one tensor at a time; the first has the model's metadata.

    PairError where they do not belong together, or as in `gguf_tensors`. OSError where the target cannot be written.
    """
    from lib.models import gguf_tensors  # which loads the package gguf

    headers = [gguf_tensors.header(file) for file in files]
    for number, (file, header) in enumerate(zip(files, headers)):
        said = header.metadata.get("split.no"), header.metadata.get("split.count")
        if said != (number, len(files)):
            raise PairError(f"{file} says that it is shard {said[0]} of {said[1]} (split.no, split.count), counted "
                            f"from 0, and its name says {number} of {len(files)}; fetch it again")
    with open(target, "wb") as written:
        written.write(gguf_tensors.joined_header(files, headers))
        for file, header in zip(files, headers):
            for stored in gguf_tensors.tensors(file, header):
                written.write(bytes(-written.tell() % headers[0].alignment))
                written.write(stored.data)
