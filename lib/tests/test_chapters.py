"""Every chapter draws from the tables of any run, without a kernel and without a model: of the committed run, and of
parts of it, such as one prompt, one batch size, or a target without a draft model.
"""

import contextlib
import json
import re
import shutil

import matplotlib
import nbformat
import pandas as pd
import pytest
import transformers

from lib.lab import provenance, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")
pytestmark = pytest.mark.filterwarnings("ignore")
REFERENCE = provenance.HOME / "data" / "results" / "reference"
NOTEBOOKS = provenance.HOME / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
each_chapter = pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
HAS = re.compile(r"chapter\.has\(([^)]*)\)")
LONGEST = 15  # lines of a cell


def cells_of(notebook) -> list[nbformat.NotebookNode]:
    return nbformat.read(notebook, as_version=4).cells


def code_of(notebook) -> list[str]:
    """The sources of a notebook's code cells."""
    return [cell.source for cell in cells_of(notebook) if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def whole() -> dict[str, pd.DataFrame]:
    """The tables of the committed run that are of this version, by name with the notebook's number."""
    frames = {}
    for name in {path.name.partition(".")[0] for path in (REFERENCE / "tables").iterdir()}:
        with contextlib.suppress(KeyError, ValueError):
            frames[name] = tables.read(REFERENCE, name)
    return frames


def first_of(*columns: str):
    """A function that keeps the rows with the first value of each of these columns that a table has."""
    def cut(rows: pd.DataFrame) -> pd.DataFrame:
        for column in columns:
            rows = rows[rows[column] == rows[column].iloc[0]] if column in rows and len(rows) else rows
        return rows
    return cut


def target_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last target, which in the committed run has no draft model, without those of models and heads."""
    rows = rows[rows["target"] == rows["target"].iloc[-1]] if "target" in rows and len(rows) else rows
    kinds = rows["drafter"].str.partition(":")[0] if "drafter" in rows and len(rows) else pd.Series(
        "none", index=rows.index)
    return rows[kinds.isin(["", "none", "plain", "lookup", "sam", "ngrams"])]


CUTS = {"whole": first_of(), "one of each": first_of("target", "drafter", "batch"), "a target alone": target_alone}


def draw(notebook, frames: dict[str, pd.DataFrame], folder, **parameters) -> dict[str, object]:
    """The names of a notebook's cells, executed on these tables with the parameters of the committed run and these."""
    (folder / "tables").mkdir()
    for name, rows in frames.items():
        rows.to_csv(folder / "tables" / f"{name}.csv", index=False)
    for path in REFERENCE.glob("*.json"):
        shutil.copy(path, folder)
    of_run = json.loads((REFERENCE / "run.json").read_text(encoding="utf-8"))["parameters"].get(notebook.stem, {})
    names = {"__name__": "__main__"}
    for index, source in enumerate(code_of(notebook)):
        exec(compile(source, f"{notebook.name}, code cell {index}", "exec"), names)
        if "run_dir =" in source:  # the parameters, which the runner sets as the run had them
            values = of_run | {"run_dir": str(folder)} | parameters
            names |= {name: value for name, value in values.items() if name in names}
        matplotlib.pyplot.close("all")
    return names


@pytest.fixture
def rendering(monkeypatch):
    """Notebooks measure nothing, and files are found from their folder."""
    monkeypatch.setenv(provenance.RENDER, "1")
    monkeypatch.chdir(NOTEBOOKS)


@pytest.mark.parametrize("cut", CUTS)
@each_chapter
def test_a_chapter_draws_from_whatever_a_run_has(notebook, cut, whole, tmp_path, rendering, monkeypatch):
    optional = {name if name[:2].isdigit() else f"{notebook.stem[:2]}_{name}" for names in HAS.findall("".join(
        code_of(notebook))) for name in re.findall(r'"(\w+)"', names)}
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loads a model"))
    monkeypatch.setattr(Chapter, "finish", lambda _, figure, name: cut == "whole" and figure.canvas.draw())
    frames = {name: CUTS[cut](rows) for name, rows in whole.items() if name not in optional or cut != "a target alone"}
    if cut == "one of each":  # of the prompts, one that has rounds
        judged = {rows["prompt"].iloc[0] for name, rows in frames.items() if name.endswith("_rounds")}
        frames = {name: rows[rows["prompt"].isin(judged)] if judged and "prompt" in rows else rows
                  for name, rows in frames.items()}
    draw(notebook, frames, tmp_path)


@pytest.mark.parametrize("notebook", [path for path in CHAPTERS if "interactive =" in "".join(code_of(path))],
                         ids=lambda path: path.stem)
def test_a_chapter_ends_with_its_explorer(notebook, whole, tmp_path, rendering, monkeypatch):
    monkeypatch.setattr(Chapter, "finish", lambda *_: None)
    pairs = ["base/tiny"] if notebook.stem == "02_acceptance" else None  # whose explorer decodes
    frames = {name: first_of("target")(rows).assign(target="base") if pairs and "target" in rows else rows
              for name, rows in whole.items()}
    names = draw(notebook, frames, tmp_path, interactive=True, **({"pairs": pairs, "drafters": []} if pairs else {}))
    assert names["explorer"].message.value == "" if pairs else names["explorer"].data["drafters"]


@each_chapter
def test_a_notebook_is_a_chapter_of_short_cells(notebook):
    """A question stands before the code, one cell has the parameters, and no cell defines a function or is long."""
    cells = cells_of(notebook)
    assert [cell.cell_type for cell in cells[:2]] == ["markdown", "code"] and cells[0].source.startswith("# ")
    (parameters,) = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert "run_dir =" in parameters
    for source in {*code_of(notebook)} - {parameters}:
        lines = [line for line in source.splitlines() if line.strip()]
        assert not re.search(r"^\s*(def|class) ", source, re.MULTILINE), lines[0]
        assert len(lines) <= LONGEST, f"{len(lines)} lines from {lines[0]}"


def test_pages_of_the_committed_run_load_nothing_and_stay_small():
    pages = [*(NOTEBOOKS / "executed").rglob("*.html")]
    assert sum(path.stat().st_size for path in pages) <= 3 * 2**20
    assert all("Content-Security-Policy" in path.read_text(encoding="utf-8")[:1000] for path in pages)
