"""Whether the running Python has the packages of requirements.txt, in their versions, and the model that it names.

run_notebooks.sh runs this file before anything is installed, as `python -I lib/lab/environment.py requirements.txt`, so
it imports the standard library alone.
"""

import re
import sys
from importlib import metadata
from pathlib import Path


def required(text: str, mark: str = "") -> list[tuple[str, str]]:
    """(name, version) of each line `name==version  # reason`, or of each optional package, `# MARK: name==version`."""
    prefix = f"# {mark}: " if mark else ""
    return re.findall(rf"^{prefix}([\w-]+)==(\S+)", text, re.MULTILINE)


def lacks(requirements: list[tuple[str, str]]) -> list[str]:
    """Packages that are missing or of another version; a local build (2.13.0+cpu) counts as its version."""
    present = [(name, version, installed(name)) for name, version in requirements]
    return [f"{name} is {there}, not {version}" if there else f"{name} is not installed"
            for name, version, there in present if not there or version not in (there, there.split("+")[0])]


def installed(name: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Exits with 1 and names what is missing; with further arguments, marks of optional packages, prints those that are
    missing as name==version.
    """
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    if sys.argv[2:]:
        packages = [package for mark in sys.argv[2:] for package in required(text, mark)]
        print(*("==".join(package) for package in packages if lacks([package])), end="")
    elif missing := lacks(required(text)):
        sys.exit("; ".join(missing))


if __name__ == "__main__":
    main()
