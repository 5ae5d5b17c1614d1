"""The report on the committed run: what it must show, its limits, and that its links and numbers are right."""

import json
import re

import IPython.display
import matplotlib
import pandas as pd
import pytest
import transformers

from lib.cost import recommendation
from lib.engines.methods import PLAIN
from lib.lab import provenance, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")
HOME = provenance.HOME
REFERENCE = HOME / "data" / "results" / "reference"
MOST_WORDS, MOST_FIGURES, MOST_TABLES, MOST_LINES = 3500, 12, 16, 15
CELLS = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(
    (HOME / "notebooks" / "09_report.ipynb").read_text(encoding="utf-8"))["cells"]]
PROSE = [source for kind, source in CELLS if kind == "markdown"]
CODE = [source for kind, source in CELLS if kind == "code"]
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def shown():
    """What the notebook shows, run in this process: texts of Markdown, tables as HTML, names of figures."""
    shown = {"text": [], "table": [], "figure": []}

    def display(shown_object):
        if isinstance(shown_object, pd.DataFrame):
            shown["table"].append(shown_object._repr_html_())
        elif isinstance(shown_object, IPython.display.Markdown):
            shown["text"].append(shown_object.data)
        else:
            shown["table" if "<table" in shown_object.data else "text"].append(shown_object.data)

    def save(chapter, figure, name):
        figure.canvas.draw()
        shown["figure"].append(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFT_TREES_RENDER", "1")
        patch.chdir(HOME / "notebooks")
        patch.setattr(IPython.display, "display", display)
        patch.setattr(Chapter, "save", save)
        patch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loads a model"))
        names = {}
        for source in CODE:
            exec(compile(source, "09_report.ipynb", "exec"), names)
            matplotlib.pyplot.close("all")
    return shown


def chain_lengths() -> pd.Series:
    """Acceptance length of the first pair's chains by budget, in greedy text."""
    rows = tables.read(REFERENCE, "acceptance")
    first = rows.iloc[0]
    rows = rows[(rows["target"] == first["target"]) & (rows["drafter"] == first["drafter"]) & (rows["temperature"] == 0)
                & (rows["protocol"] == first["protocol"]) & (rows["stretch"] == "before") & (rows["family"] == "chain")]
    sums = rows.groupby("budget")[["accepted", "rounds"]].sum()
    return sums["accepted"] / sums["rounds"]


def test_the_report_is_short(shown):
    """Its words, figures and tables are limited; shapes by budget of all drafters are one table."""
    static = [TABLE_ROW.sub("", source) for source in PROSE]
    computed = [re.sub(r"<a .*?>|data:\S+", "", text) for text in shown["text"]]
    words = re.sub(r"\]\(\S+?\)", "]", "\n".join(static + computed)).split()
    assert len(words) <= MOST_WORDS, f"{len(words)} words"
    assert len(shown["figure"]) <= MOST_FIGURES and len(set(shown["figure"])) == len(shown["figure"])
    tables_of_prose = sum(len(re.findall(r"^\|[-|]+\|$", source, re.MULTILINE)) for source in PROSE)
    assert tables_of_prose + len(shown["table"]) <= MOST_TABLES
    assert not any(re.search(r"\bnan\b|mathdefault", text) for text in [*shown["text"], *shown["table"]])
    assert not any("<td>...</td>" in text for text in shown["table"]), "pandas leaves rows out"


def test_cells_are_short_and_hold_no_functions():
    for source in CODE:
        lines = [line for line in source.splitlines() if line.strip()]
        assert len(lines) <= MOST_LINES and max(map(len, lines)) <= 120, lines[0]
        assert not re.search(r"^\s*(def|class) |\blambda\b", source, re.MULTILINE), lines[0]


def test_the_answer_comes_first_in_five_lines_that_say_what_they_are_valid_for(shown):
    opening, *lines = shown["text"][0].split("\n- ")
    assert opening.startswith("**In short**") and len(lines) == 5
    assert all("*Valid for" in line for line in lines)
    advice = recommendation.load(REFERENCE / recommendation.FILE)
    for choice in advice.by_batch:
        assert str(choice.speedup) in lines[0], "the speed that recommendation.json has"
    for engine in advice.engines:
        assert engine.way == PLAIN or ":" in engine.engine or f"{engine.way}: **{engine.measured}**" in lines[4]
    lengths = chain_lengths()
    assert f"a chain {lengths.iloc[-1]:.2f}" in lines[1]


def test_the_tables_show_rate_and_length_of_every_shape_and_budget(shown):
    rows = tables.read(REFERENCE, "acceptance")
    rows = rows[rows["target"] == rows["target"].iloc[0]]
    settings = rows[["drafter", "family", "budget"]].drop_duplicates()
    assert len(re.findall(r"<td>\d+\.\d\d \(\d+%\)</td>", shown["table"][0])) == len(settings)
    assert any("data:text/csv;base64," in text for text in shown["text"]), "the intervals, as a file"


def test_links_lead_somewhere():
    """Contents to headings, chapters to notebooks, files of the code to files, published results to references."""
    text = "\n".join(PROSE)
    headings = {heading.replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    contents = re.findall(r"\]\(#(\S+?)\)", text)
    assert set(contents) == headings and len(contents) == len(set(contents)) == 11
    for name in re.findall(r"\]\(chapters/(\w+)\.html\)", text):
        assert (HOME / "notebooks" / f"{name}.ipynb").exists(), name
    for path in re.findall(r"\blib/[\w/.]+\w", text):
        assert (HOME / path).exists(), path
    published = pd.read_csv(HOME / "data" / "published.csv")
    references = text[text.index("## 10 References"):]
    assert all(link in references for link in published["link"])
    for method in ("EAGLE.", "EAGLE-3", "DFlash", "DSpark", "FR-Spec"):
        assert method in references, method


def test_published_results_stand_beside_those_of_the_same_method(shown):
    html = next(table for table in shown["table"] if "Spec-Bench" in table)
    published = pd.read_csv(HOME / "data" / "published.csv")
    assert html.count("<tr") == len(published) + 1
    chains = (published["family"] == "chain").sum()
    assert html.count(f"{1 + chain_lengths()[16]:.2f} (16)") == chains, "tokens per round, bonus token included"
