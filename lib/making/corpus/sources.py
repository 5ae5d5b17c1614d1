"""Source code and docstrings of the installed standard library and packages, without tests and near-copies, split by
file.
"""

import re

from lib.making.corpus.lexicon import is_held_out
from lib.models.source_text import Source, files, read

# Permissively licensed packages that the requirements bring, most general first: of near-copies the first one stays.
PACKAGES = (
    "numpy",
    "pandas",
    "matplotlib",
    "networkx",
    "sympy",
    "torch",
    "transformers",
    "fonttools",
    "Pygments",
    "huggingface_hub",
    "setuptools",
    "ipython",
    "mpmath",
    "pytest",
    "prompt_toolkit",
    "rich",
    "pillow",
    "seaborn",
    "tornado",
    "jedi",
    "jupyter_server",
    "fsspec",
    "bleach",
    "anyio",
    "Jinja2",
    "packaging",
    "pyparsing",
    "babel",
    "urllib3",
    "beautifulsoup4",
    "jupyter_client",
    "psutil",
    "ipykernel",
    "python-dateutil",
    "traitlets",
    "nbconvert",
    "parso",
    "ipywidgets",
    "PyYAML",
)
FILES_HELD_OUT_ONE_IN = 25
SEEN_LINES_ALLOWED = {"train": 0.5, "held_out": 0.2}


def sources(packages: tuple[str, ...] = ("python", *PACKAGES)) -> list[Source]:
    """All files of the packages but near-copies; training files first decide what a held-out file may not repeat."""
    read_in = [(package, name, text) for package in packages for name, path in files(package) if (text := read(path))]
    split = {True: [], False: []}
    for package, name, text in read_in:
        split[is_held_out("file", package, name, one_in=FILES_HELD_OUT_ONE_IN)].append((package, name, text))
    seen: set[int] = set()
    kept = []
    for held_out in (False, True):
        allowed = SEEN_LINES_ALLOWED["held_out" if held_out else "train"]
        for package, name, text in split[held_out]:
            shingles = _shingles(text)
            if shingles and len(shingles & seen) <= allowed * len(shingles):
                kept.append(Source(package, name, text, held_out))
                seen |= shingles
    return kept


def _shingles(text: str, lines: int = 3) -> set[int]:
    kept = [stripped for line in text.splitlines() if len(stripped := re.sub(r"\s+", " ", line.strip())) > 8]
    return {hash(tuple(kept[i : i + lines])) for i in range(max(1, len(kept) - lines + 1))} if kept else set()
