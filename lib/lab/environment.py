"""Whether the running Python has the packages of requirements.txt, in their versions, and the model that it names.

run_notebooks.sh runs this file before anything is installed, as `python -I lib/lab/environment.py requirements.txt`, so
it imports the standard library alone.
"""

import sys
from importlib import metadata

OLDEST = (3, 11)


def required(text: str) -> list[tuple[str, str]]:
    """(name, version) of each line `name==version  # reason`."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [(name.strip(), version.strip()) for name, _, version in (line.partition("==") for line in lines if line)]


def optional(text: str, mark: str) -> list[tuple[str, str]]:
    """(name, version) of each line `# MARK: name==version`, packages that block nothing where they are missing."""
    lines = [line.removeprefix(f"# {mark}:") for line in text.splitlines() if line.startswith(f"# {mark}:")]
    return required("\n".join(lines))


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
    """Exit with 0 if nothing is missing, else with 1 after printing what is missing.

    With more arguments, marks of optional packages, print those that are missing as name==version, and nothing else.
    """
    if sys.version_info < OLDEST:
        sys.exit(f"Python is {sys.version.split()[0]}, older than {'.'.join(map(str, OLDEST))}")
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    if sys.argv[2:]:
        packages = [package for mark in sys.argv[2:] for package in optional(text, mark)]
        print(*("==".join(package) for package in packages if lacks([package])), end="")
    elif missing := lacks(required(text)):
        print("; ".join(missing))
        sys.exit(1)


if __name__ == "__main__":
    main()
