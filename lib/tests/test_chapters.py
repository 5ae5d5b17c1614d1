"""Every chapter draws from the tables of any run, without a kernel and without a model: of the committed run, and of
parts of it, such as one prompt, one budget, or a target without a draft model.
"""

import json
import re
import shutil
import warnings

import matplotlib
import pandas as pd
import pytest
import transformers

from lib.lab import provenance, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")
REFERENCE = provenance.HOME / "data" / "results" / "reference"
NOTEBOOKS = provenance.HOME / "notebooks"
USED = re.compile(r"chapter\.(table|has)\(([^)]*)\)")


def code_of(notebook) -> list[str]:
    """The sources of a notebook's code cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


CHAPTERS = [path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if "Chapter(" in "".join(code_of(path))]


@pytest.fixture(scope="module")
def whole() -> dict[str, pd.DataFrame]:
    """The tables of the committed run that are of this version."""
    frames = {}
    for name in tables.schemas():
        try:
            frames[name] = tables.read(REFERENCE, name)
        except (FileNotFoundError, ValueError):
            continue
    return frames


def first_of(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows with the first value of a column; all where there is no such column."""
    return rows[rows[column] == rows[column].iloc[0]] if column in rows and len(rows) else rows


def one_budget(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the budget that is nearest to 16 nodes, and of plain decoding."""
    if "budget" not in rows or rows.empty:
        return rows
    distance = (rows["budget"] - 16).abs()
    return rows[rows["budget"].isin([0, rows["budget"][distance.idxmin()]])]


def one_pair(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first target, and of its first pair."""
    return first_of(first_of(rows, "target"), "pair")


def target_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first target without those of draft models."""
    rows = one_pair(rows)
    if "drafter" not in rows:
        return rows
    kinds = rows["drafter"].str.split(":").str[0]
    return rows[kinds.isin(["", "none", "plain", "lookup", "sam", "ngrams"])]


CUTS = {
    "whole": lambda rows: rows,
    "one pair": one_pair,
    "a target alone": target_alone,
    "one prompt": lambda rows: first_of(rows, "prompt"),
    "one budget": one_budget,
    "one batch size": lambda rows: first_of(rows, "batch"),
    "no optional table": lambda rows: rows,
}


def draw(notebook, frames: dict[str, pd.DataFrame], folder, **parameters) -> dict[str, object]:
    """The names of a notebook's cells, executed on these tables with the parameters of the committed run and these."""
    (folder / "tables").mkdir()
    for name, rows in frames.items():
        rows.to_csv(folder / "tables" / f"{name}.csv", index=False)
    for path in REFERENCE.glob("*.json"):
        shutil.copy(path, folder)
    run_had = json.loads((REFERENCE / "run.json").read_text(encoding="utf-8"))["parameters"].get(notebook.stem, {})
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, source in enumerate(code_of(notebook)):
            try:
                exec(compile(source, f"{notebook.name}, code cell {place}", "exec"), names)
            except Exception as error:
                error.add_note(f"in code cell {place}:\n{source}")
                raise
            if "run_dir =" in source:  # the parameters, which the runner sets as the run had them
                given = run_had | {"run_dir": str(folder)} | parameters
                names |= {name: value for name, value in given.items() if name in names}
            matplotlib.pyplot.close("all")
    return names


@pytest.fixture
def rendering(monkeypatch):
    """Notebooks measure nothing, and files are found from their folder."""
    monkeypatch.setenv(provenance.RENDER, "1")
    monkeypatch.chdir(NOTEBOOKS)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("notebook", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_draws_from_whatever_a_run_has(notebook, cut, whole, tmp_path, rendering, monkeypatch):
    sources = "\n".join(code_of(notebook))
    used = {word: set(re.findall(r'"(\w+)"', " ".join(names for said, names in USED.findall(sources) if said == word)))
            for word in ("table", "has")}
    if missing := used["table"] - used["has"] - whole.keys():
        pytest.skip(f"the committed run is of a version without {', '.join(sorted(missing))}")
    optional = used["has"] if cut == "no optional table" else set()
    frames = {name: CUTS[cut](whole[name]) for name in (used["table"] | used["has"]) - optional if name in whole}
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loads a model"))
    monkeypatch.setattr(Chapter, "save", lambda chapter, figure, name: figure.canvas.draw() if cut == "whole" else None)
    draw(notebook, frames, tmp_path)


@pytest.mark.parametrize("notebook", [path for path in CHAPTERS if "interactive =" in "".join(code_of(path))],
                         ids=lambda path: path.stem)
def test_a_chapter_ends_with_its_explorer(notebook, whole, tmp_path, rendering, monkeypatch):
    monkeypatch.setattr(Chapter, "save", lambda *_: None)
    pairs = ["base/tiny"] if notebook.stem == "02_acceptance" else None  # whose explorer decodes
    frames = {name: rows[rows["target"] == "base"] if pairs and "target" in rows else rows
              for name, rows in whole.items()}
    names = draw(notebook, frames, tmp_path, interactive=True, **({"pairs": pairs, "pair": ""} if pairs else {}))
    assert names["explorer"].message.value == "" and names["explorer"].view.children


def test_a_notebook_is_a_chapter_of_short_cells():
    """No functions in cells, none over 20 lines but parameters, one figure a cell."""
    for notebook in CHAPTERS:
        for source in code_of(notebook):
            lines = [line for line in source.splitlines() if line.strip()]
            assert not re.search(r"^\s*(def|class) ", source, re.MULTILINE), f"{notebook.name}: {lines[0]}"
            assert len(lines) <= 20 or "run_dir =" in source, f"{notebook.name}: {len(lines)} lines from {lines[0]}"


def test_pages_of_the_committed_run_load_nothing_and_stay_small():
    pages = [*(NOTEBOOKS / "executed").rglob("*.html")]
    assert sum(path.stat().st_size for path in pages) <= 3 * 2**20
    if len(pages) > 1:
        assert all("Content-Security-Policy" in path.read_text(encoding="utf-8")[:1000] for path in pages)
