"""What a study found, and a page that shows it: figures and tables with numbered captions, in a notebook or the report."""

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lib.lab import provenance, tables, theme


@dataclass(frozen=True)
class Finding:
    """One finding: the claim of its caption, the sentences that follow, and the figure or table that shows it.

    name: the figure's file name without the notebook's number, as "headline"; empty without a figure. A finding with
    neither figure nor table is a paragraph that begins with its claim in bold type.
    """

    claim: str
    text: str = ""
    figure: Figure | None = None
    name: str = ""
    table: pd.DataFrame | None = None


class Results:
    """The tables and the record of one run, each read once. FileNotFoundError for a table that the run lacks."""

    def __init__(self, run_dir: str | Path):
        self.run_dir = Path(run_dir)
        self._frames: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """All rows of a table."""
        if name not in self._frames:
            self._frames[name] = tables.read(self.run_dir, name)
        return self._frames[name]

    def __contains__(self, name: str) -> bool:
        """Whether the run has this table."""
        return tables.exists(self.run_dir, name)

    @cached_property
    def record(self) -> dict:
        """run.json: what made the run."""
        return provenance.read(self.run_dir)


class Page:
    """Shows prose and findings in order, numbers their captions, and saves figures as run_dir/figures/PREFIX_NAME."""

    def __init__(self, run_dir: str, prefix: str):
        self.run_dir, self.prefix = run_dir, prefix
        self.figures, self.tables = count(1), count(1)

    def show(self, part: "Finding | str") -> None:
        """Displays a paragraph of Markdown, or a finding: its table, its figure, and the caption below."""
        from IPython.display import Markdown, display

        if isinstance(part, str):
            display(Markdown(part))
            return
        labels = []
        if part.table is not None:
            with pd.option_context("display.max_colwidth", None):
                display(part.table)
            labels.append(f"Table {next(self.tables)}")
        if part.figure is not None:
            theme.save(part.figure, self.run_dir, f"{self.prefix}_{part.name}")
            display(part.figure)
            theme.close(part.figure)
            labels.append(f"figure {next(self.figures)}" if labels else f"Figure {next(self.figures)}")
        label = f"{' and '.join(labels)}. " if labels else ""
        display(Markdown(f"**{label}{part.claim}** {part.text}".rstrip()))
