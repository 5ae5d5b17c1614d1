"""A notebook as a chapter: it measures into the tables of a run, reads them, and keeps the figures that it draws."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import provenance, stats, tables, theme


@dataclass(frozen=True)
class Store:
    """Where a measuring function keeps its rows: a run's folder, a notebook's number ("02"), the rows' fingerprint."""

    folder: Path
    number: str
    mark: str

    def open(self, name: str) -> tables.Table:
        """A table to which rows are added; those of an earlier run with this mark are kept."""
        return tables.Table(self.folder, f"{self.number}_{name}", self.mark)

    def once(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A whole table, which is made once, so that timings on which later rows depend stay when a run is resumed."""
        table = self.open(name)
        if not table.keys():
            table.extend(make())
        return table.frame().drop(columns=tables.FINGERPRINT)


class Chapter:
    """One notebook of a run. run_dir: the run's folder, "" to keep nothing after the notebook ends; number: the
    notebook's, as "02"; reads: the folder of a finished run whose tables a notebook without a run of its own shows.
    """

    def __init__(self, run_dir: str, number: str, *, reads: str = ""):
        self._scratch = None if run_dir or reads else TemporaryDirectory()
        self.folder, self.number = Path(run_dir or reads or self._scratch.name), number
        self._keeps_figures = bool(run_dir)
        theme.use_theme()

    def measure(self, module: str, settings) -> None:
        """Calls measure(store, settings) of a module, which writes tables, and keeps rows of an earlier call with the
        same code, settings, files, versions and machine. The module is not even imported while a finished run is
        rendered, nor where a call has ended and since then all these and the tables have stayed the same.
        """
        if provenance.is_rendering():
            print("rows of the finished run")
            return
        parameters = settings.parameters | {"module": module}
        mark = provenance.fingerprint(files=settings.files, device=settings.device, parameters=parameters)
        complete = self.folder / "tables" / f"{self.number}.complete"
        if complete.exists() and complete.read_text() == self._state(mark, settings):
            print("all rows are measured")
            return
        import_module(module).measure(Store(self.folder, self.number, mark), settings)
        complete.write_text(self._state(mark, settings))

    def _state(self, mark: str, settings) -> str:
        """A digest of the notebook's tables, and of all that they depend on."""
        tables_of_notebook = {path.name: provenance.file_digest(path)
                              for path in (self.folder / "tables").glob(f"{self.number}_*")}
        return provenance.digest([mark, vars(settings), tables_of_notebook])

    def table(self, name: str) -> pd.DataFrame:
        """The rows of a table of this notebook ("rounds") or of another ("02_rounds"); none where the run lacks it."""
        name = name if name[:2].isdigit() else f"{self.number}_{name}"
        try:
            rows = tables.read(self.folder, name)
        except FileNotFoundError:
            rows = tables.schema(name).frame()
        return rows.drop(columns=tables.FINGERPRINT)

    def has(self, *names: str) -> bool:
        """Whether the run has rows of all these tables; prints which one it lacks."""
        lacking = [name for name in names if self.table(name).empty]
        if lacking:
            print(f"not measured in this run: {', '.join(lacking)}")
        return not lacking

    def rounds(self, number: str = "", *, looping: bool = False) -> pd.DataFrame:
        """The table "rounds" with each prompt's kind, turn and part; texts that loop are left out, unless all do."""
        names = (f"{number or self.number}_{name}" for name in ("texts", "rounds", "prompts"))
        texts, rounds, prompts = map(self.table, names)
        rows = rounds.merge(texts.drop(columns=["tokens", "ids"])).merge(prompts.drop(columns="tokens"))
        return rows if looping or rows["loops"].all() else rows[~rows["loops"]]

    @staticmethod
    def interval_table(rows: pd.DataFrame, index: str | list[str], columns: str, spec: str = ".2f") -> pd.DataFrame:
        """Estimates with their intervals: a row for each value of `index` and a column for each of `columns`."""
        cells = rows.assign(cell=stats.format_estimates(rows, spec))
        return cells.pivot(index=index, columns=columns, values="cell").rename(index=theme.shown).fillna("–")

    def finish(self, figure: Figure, name: str) -> None:
        """Shows a figure, and keeps it as figures/NUMBER_NAME.png and .svg in the run's folder, if there is a run."""
        if self._keeps_figures:
            theme.save(figure, self.folder / "figures", f"{self.number}_{name}")
        plt.show()

    def show(self, name: str, caption: str = "") -> None:
        """Shows a figure that a chapter of the run has kept ("02_depth") and its caption, or says that it has none."""
        from IPython.display import Image, display

        figures = self.folder / "figures"
        if self.folder.resolve() == provenance.HOME / "data" / "results" / "reference" and not figures.exists():
            figures = provenance.HOME / "figures"  # the committed ones
        if not (path := figures / f"{name}.png").exists():
            print(f"not drawn in this run: {name}")
            return
        display(Image(path))
        for stage in self.record["stages"] if caption else ():
            if stage.startswith(name[:2]):
                self.say(f"{caption} ([Chapter {int(name[:2])}](chapters/{stage}.html))")

    def say(self, markdown: str) -> None:
        """Shows a sentence in Markdown; an invisible space after each "<" keeps texts of models from being HTML."""
        from IPython.display import Markdown, display

        display(Markdown(markdown.replace("<", "<\u200b")))

    @cached_property
    def record(self) -> dict:
        """run.json: what made the run."""
        return provenance.read(self.folder)
