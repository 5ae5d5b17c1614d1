"""The settings of notebooks, for tests."""

from contextlib import chdir
from pathlib import Path

from lib.lab.parameters import defaults_of
from lib.lab.provenance import HOME
from lib.study.settings import NOTEBOOKS, Settings


def defaults(kind: type[Settings], **changes) -> Settings:
    """The defaults of a notebook with changes; paths are relative to the folder of the notebooks."""
    (name,) = (name for name, other in NOTEBOOKS.items() if other is kind)
    with chdir(HOME / "notebooks"):
        return kind.of(defaults_of(Path(f"{name}.ipynb")) | changes)
