"""A notebook as a chapter: it measures into the tables of a run, reads them, and keeps the figures that it draws."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from matplotlib.figure import Figure

from lib.lab import provenance, tables, theme


@dataclass(frozen=True)
class Store:
    """Where a measuring function keeps its rows. folder: of the run; number: of the notebook, as "02"; mark: the
    fingerprint of what makes the rows.
    """

    folder: Path
    number: str
    mark: str

    def open(self, name: str) -> tables.Table:
        """A table to which rows are added one after another; those of an earlier run with this mark are kept."""
        return tables.Table(self.folder, f"{self.number}_{name}", self.mark)

    def once(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A whole table as an earlier run of the same mark wrote it, else as `make` returns it, which is then written.

        For timings on which later rows depend: they stay the same when a stopped run is resumed.
        """
        rows = self.open(name).frame()
        if rows.empty:
            rows = make()
            self.write(name, rows)
        return rows.drop(columns=tables.FINGERPRINT, errors="ignore")

    def write(self, name: str, rows: pd.DataFrame) -> None:
        """Writes a whole table in the place of the old one."""
        tables.write(self.folder, f"{self.number}_{name}", rows, self.mark)


class Chapter:
    """One notebook of a run. run_dir: the run's folder, "" to keep nothing after the notebook ends; number: the
    notebook's, as "02", with which the file names of its figures begin; reads: the folder of a finished run whose
    tables a notebook without a run of its own shows.
    """

    def __init__(self, run_dir: str, number: str, *, reads: str = ""):
        self._scratch = None if run_dir or reads else TemporaryDirectory()
        self.folder, self.number = Path(run_dir or reads or self._scratch.name), number
        self._keeps_figures = bool(run_dir)
        theme.use_theme()

    def measure(self, function: Callable[[Store, object], None], settings) -> None:
        """Calls function(store, settings), which writes tables; rows of an earlier call are kept where code, settings (see
        `lib.study.settings`), their files, versions and machine are the same. While a finished run is rendered, nothing
        is called.
        """
        if os.environ.get(provenance.RENDER):
            print("rows of the finished run")
            return
        parameters = settings.parameters | {"function": function.__module__}
        mark = provenance.fingerprint(files=settings.files, device=settings.device, parameters=parameters)
        function(Store(self.folder, self.number, mark), settings)

    def table(self, name: str) -> pd.DataFrame:
        """The rows of a table of this notebook ("rounds") or of another ("02_rounds"), without their fingerprints; no rows
        where the run lacks it.
        """
        name = name if name[:2].isdigit() else f"{self.number}_{name}"
        path = tables.path_of(self.folder, name)
        if not path.exists():
            return tables.schema(name).frame().drop(columns=tables.FINGERPRINT)
        return _read(self.folder, name, path.stat().st_mtime_ns).copy()

    def has(self, *names: str) -> bool:
        """Whether the run has rows of all these tables; prints which one it lacks."""
        lacking = [name for name in names if self.table(name).empty]
        if lacking:
            print(f"not measured in this run: {', '.join(lacking)}")
        return not lacking

    def save(self, figure: Figure, name: str) -> None:
        """Keeps a figure as figures/NUMBER_NAME.png and .svg in the run's folder, if the notebook has a run."""
        if self._keeps_figures:
            theme.save(figure, self.folder, f"{self.number}_{name}")

    def show(self, name: str) -> None:
        """Shows a figure that a chapter of the run has kept ("02_depth"), or says that the run has none."""
        from IPython.display import Image, display

        is_committed = self.folder.resolve() == provenance.HOME / "data" / "results" / "reference"
        has_own = not is_committed or (self.folder / "figures").exists()  # the committed figures lie apart
        path = (self.folder if has_own else provenance.HOME) / "figures" / f"{name}.png"
        if path.exists():
            display(Image(path))
        else:
            print(f"not drawn in this run: {name}")

    def say(self, markdown: str) -> None:
        """Shows a computed sentence in Markdown. No text of a prompt or model in it becomes a tag of HTML: an invisible
        space parts its sign from its name, within code and without.
        """
        from IPython.display import Markdown, display

        display(Markdown(markdown.replace("<", "<\u200b")))

    @cached_property
    def record(self) -> dict:
        """run.json: what made the run."""
        return provenance.read(self.folder)


@lru_cache(maxsize=32)
def _read(folder: Path, name: str, version: int) -> pd.DataFrame:
    """A table without fingerprints; version: the time of its file."""
    return tables.read(folder, name).drop(columns=tables.FINGERPRINT)
