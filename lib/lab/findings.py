"""Findings of a study, and a page that shows them: figures and tables with numbered captions, in a notebook or the
report."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lib.lab import provenance, tables, theme

TAG = re.compile(r"<(?=[A-Za-z/!?])")  # with which a tag of HTML begins


@dataclass(frozen=True)
class Finding:
    """One finding: the claim of its caption, the sentences that follow, and the figure or the tables that show it.

    name: the figure's file name without the notebook's number, as "headline"; empty without a figure. table: one, or
    several under one caption. A finding with neither figure nor table is a paragraph that begins with its claim in bold
    type. With both, the tables come first, and one caption below the figure numbers them all.
    """

    claim: str
    text: str = ""
    figure: Figure | None = None
    name: str = ""
    table: pd.DataFrame | Sequence[pd.DataFrame] | None = None

    @property
    def tables(self) -> list[pd.DataFrame]:
        """The finding's tables, in order."""
        if self.table is None:
            return []
        return [self.table] if isinstance(self.table, pd.DataFrame) else list(self.table)


Part = str | pd.DataFrame | Finding  # what a page shows: Markdown, a table without a caption, a finding


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
    """Shows parts in order, numbers their captions, and saves figures as run_dir/figures/PREFIX_NAME (none where
    run_dir is empty).
    """

    def __init__(self, run_dir: str, prefix: str):
        self.run_dir, self.prefix = run_dir, prefix
        self.figure_numbers, self.table_numbers = count(1), count(1)

    def show(self, part: Part) -> None:
        """Displays Markdown, a table, or a finding: its tables, its figure, and the caption below."""
        from IPython.display import Markdown, display

        if isinstance(part, str):
            display(Markdown(without_tags(part)))
        elif isinstance(part, pd.DataFrame):
            _display_table(part)
        else:
            for table in part.tables:
                _display_table(table)
            if part.figure is not None:
                theme.save(part.figure, self.run_dir, f"{self.prefix}_{part.name}")
                display(part.figure)
                theme.close(part.figure)
            display(Markdown(without_tags(self.caption(part))))

    def caption(self, part: Finding) -> str:
        """The caption in Markdown with the next numbers: "**Table 3 and figure 7. Claim.** Text"."""
        labels = _numbered("table", [next(self.table_numbers) for _ in part.tables])
        labels += _numbered("figure", [next(self.figure_numbers)] if part.figure is not None else [])
        label = " and ".join(labels)
        start = f"{label[0].upper()}{label[1:]}. " if label else ""
        return f"**{start}{part.claim}** {part.text}".rstrip()


def without_tags(markdown: str) -> str:
    """Markdown in which no text of a prompt, model or category is a tag of HTML: an invisible space parts its sign from
    its name, within code and without.
    """
    return TAG.sub("<\u200b", markdown)


def _numbered(what: str, numbers: Sequence[int]) -> list[str]:
    """[], ["table 1"] or ["tables 1, 2 and 3"]."""
    if len(numbers) < 2:
        return [f"{what} {number}" for number in numbers]
    return [f"{what}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"]


def _display_table(table: pd.DataFrame) -> None:
    from IPython.display import display

    with pd.option_context("display.max_colwidth", None):
        display(table)
