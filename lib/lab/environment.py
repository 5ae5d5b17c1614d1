"""Whether the running Python has the packages of requirements.txt, in their versions, and the model that it names.

run_notebooks.sh runs this file before anything is installed, as `python -I lib/lab/environment.py requirements.txt`, so
it imports the standard library alone.
"""

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path


def required(text: str, mark: str = "") -> list[tuple[str, str]]:
    """(name, version) of each line `name==version  # reason`, or of each optional package, `# MARK: name==version`."""
    prefix = f"# {mark}: " if mark else ""
    return re.findall(rf"^{prefix}([\w-]+)==(\S+)", text, re.MULTILINE)


def installed(name: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing(requirements: list[tuple[str, str]]) -> list[str]:
    """Those that are missing or of another version; a local build (2.13.0+cpu) counts as its version."""
    return [f"{name}=={version}" for name, version in requirements
            if (installed(name) or "").partition("+")[0] != version]


def install_command(mark: str) -> str:
    """The command that adds the optional packages of a mark to this environment."""
    text = (Path(__file__).parents[2] / "requirements.txt").read_text(encoding="utf-8")
    packages = [f"{name}=={version}" for name, version in required(text, mark)]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def main() -> None:
    """Exits with 1 and names what is missing, as name==version; with marks of optional packages, prints those alone."""
    path, *marks = sys.argv[1:]
    text = Path(path).read_text(encoding="utf-8")
    if marks:
        print(*missing([package for mark in marks for package in required(text, mark)]), end="")
    elif packages := missing(required(text)):
        sys.exit(" ".join(packages))


if __name__ == "__main__":
    main()
