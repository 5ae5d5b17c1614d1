"""The files of models in GGUF's form, by path alone, and the error of a pair that cannot be used."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

SUFFIX = ".gguf"
NAME = re.compile(r"(.+?)(-\d{5}-of-(\d{5}))?\.gguf")  # the model's, and the number and count of a shard, from 1

POINTER = b"version https://git-lfs.github.com/spec/"  # begins what Git leaves in a file's place without Git LFS


class PairError(ValueError):
    """A pair that cannot be loaded or cannot work: the thing, the reason and the remedy."""


def check_files(files: Iterable[Path]) -> None:
    """PairError for a file that may not be read, or a pointer of Git LFS in a file's place."""
    for file in sorted(files):
        if file.exists() and not os.access(file, os.R_OK):
            raise PairError(f"permission denied: {file} may not be read by this user; change its permissions")
        if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(POINTER):
            raise PairError(f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` in {file.parent}")


def check_folder(folder: Path) -> None:
    """PairError as `check_files` for a folder and its files."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PairError(f"permission denied: the folder {folder} may not be read by this user; change its permissions")
    check_files(folder.iterdir())


def check_model(folder: Path) -> None:
    """PairError as `check_folder` for a model's folder, and for an adapter alone."""
    check_folder(folder)
    if (folder / "adapter_config.json").exists() and not [
            file for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_")]:
        raise PairError(f"{folder} is a PEFT adapter without the model that it changes; merge it into that model first "
                        "(merge_and_unload of peft), and name the folder of the result")


def in_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder without config.json, or its first shard, if any. PairError for several models."""
    files = [] if (folder / "config.json").exists() else sorted(folder.glob(f"*{SUFFIX}"), reverse=True)
    first_files = {stem(file): file for file in files if "mmproj" not in file.name.lower()}  # a projector of images
    if len(first_files) > 1:
        names = ", ".join(sorted(file.name for file in first_files.values()))
        raise PairError(f"{folder} holds {len(first_files)} GGUF files ({names}); name the one to load, as "
                        f"FOLDER/FILE{SUFFIX}")
    return next(iter(first_files.values()), None)


def stem(path: Path) -> str:
    """A model's name: its file's, without the number of a shard."""
    return NAME.fullmatch(path.name)[1]


def shards(path: Path) -> list[Path]:
    """The files of a model in order, whichever shard is named. PairError with the first one that is missing."""
    name, _, count = NAME.fullmatch(path.name).groups()
    if count is None:
        return [path]
    files = [path.with_name(f"{name}-{number + 1:05}-of-{count}{SUFFIX}") for number in range(int(count))]
    if missing := [file.name for file in files if not file.is_file()]:
        raise PairError(f"{path} is one of {len(files)} shards, and {missing[0]} is not among those in {path.parent}; "
                        "fetch all of them into one folder")
    return files


def home() -> Path:
    """The folder of converted models, in the user's cache folder (XDG_CACHE_HOME, by default ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draft-trees" / "gguf"
