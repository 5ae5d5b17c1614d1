"""Whether the Python that runs this file has what requirements.txt asks for. It imports nothing of ours: it runs before
anything is installed, as `python -I lib/lab/environment.py requirements.txt`, and exits 1 with what is missing.
"""

import sys
from importlib import metadata

OLDEST = (3, 11)


def wanted(text: str) -> list[tuple[str, str]]:
    """(name, version) of each `name==version  # reason` line."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [(name.strip(), version.strip()) for name, _, version in (line.partition("==") for line in lines if line)]


def lacks(requirements: list[tuple[str, str]]) -> list[str]:
    """What is missing or of another version, in words. A local build of a version (2.13.0+cpu) counts as it."""
    found = []
    for name, version in requirements:
        there = installed(name)
        if there is None:
            found.append(f"{name} is not installed")
        elif version not in (there, there.split("+")[0]):
            found.append(f"{name} is {there}, not {version}")
    return found


def installed(name: str) -> str | None:
    """The installed version of a package, None without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Exits 0 if all is there, else 1 with the lacks on standard output."""
    if sys.version_info < OLDEST:
        sys.exit(f"Python is {sys.version.split()[0]}, older than {'.'.join(map(str, OLDEST))}")
    with open(sys.argv[1], encoding="utf-8") as file:
        missing = lacks(wanted(file.read()))
    if missing:
        print("; ".join(missing))
        sys.exit(1)


if __name__ == "__main__":
    main()
