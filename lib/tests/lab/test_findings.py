"""A page numbers its captions, shows parts in order and saves figures; results read a run's tables once."""

from xml.etree import ElementTree

import matplotlib
import nbformat
import pandas as pd
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from nbformat import v4

from lib.lab import execute, findings, theme
from lib.lab.findings import Finding, Page, Results

matplotlib.use("agg")
TABLE = pd.DataFrame({"a": [1]})


def test_captions_number_tables_and_figures_apart():
    page = Page("", "09")
    captions = [page.caption(finding) for finding in (
        Finding("One.", "Text.", Figure(), "one"), Finding("Two.", table=TABLE), Finding("Three.", "No number."),
        Finding("Four.", "Both.", Figure(), "four", TABLE), Finding("Five.", table=[TABLE, TABLE, TABLE]))]
    assert captions == ["**Figure 1. One.** Text.", "**Table 1. Two.**", "**Three.** No number.",
                        "**Table 2 and figure 2. Four.** Both.", "**Tables 3, 4 and 5. Five.**"]


def test_a_page_shows_tables_then_the_figure_then_the_caption_and_saves_the_figure(tmp_path, monkeypatch):
    shown, alone, figure = [], TABLE.copy(), matplotlib.pyplot.figure()
    monkeypatch.setattr("IPython.display.display", shown.append)
    page = Page(str(tmp_path), "09")
    for part in ("## Heading", alone, Finding("Claim.", "Text.", figure, "name", TABLE)):
        page.show(part)
    heading, *tables_and_figure, caption = shown
    assert heading.data == "## Heading" and caption.data == "**Table 1 and figure 1. Claim.** Text."
    assert [id(part) for part in tables_and_figure] == [id(alone), id(TABLE), id(figure)]
    assert (tmp_path / "figures" / "09_name.png").exists() and not matplotlib.pyplot.fignum_exists(figure.number)


def test_a_table_is_read_once(tmp_path, monkeypatch):
    run, reads = Results(tmp_path), []
    monkeypatch.setattr(findings.tables, "read", lambda run_dir, name: reads.append(name) or TABLE)
    monkeypatch.setattr(findings.tables, "exists", lambda run_dir, name: name == "growth")
    assert "growth" in run and "depth" not in run
    assert run["growth"] is run["growth"] and reads == ["growth"]


HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>` $\\frac{$ &lt;b&gt;"


def test_texts_of_others_are_shown_and_never_run(tmp_path, monkeypatch):
    """In captions, tables, figures and the report that is made of them."""
    theme.use_theme()
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda part: outputs.append(part))
    figure, axis = matplotlib.pyplot.subplots()
    axis.plot([0, 1], label=HOSTILE)
    axis.set(title=HOSTILE, xlabel=HOSTILE)
    axis.set_xticks([0], [HOSTILE])
    axis.legend()
    table = pd.DataFrame({HOSTILE: [HOSTILE]}, index=[HOSTILE])
    page = Page(str(tmp_path), "09")
    for part in (HOSTILE, f"In `{HOSTILE}` too", table,
                 Finding(HOSTILE, f"`{HOSTILE}`", figure, "hostile")):
        page.show(part)
    cells = []
    for part in outputs:
        data = ({"text/markdown": part.data} if hasattr(part, "_repr_markdown_") else
                {} if isinstance(part, Figure) else {"text/html": part._repr_html_()})
        cells.append(v4.new_code_cell("", outputs=[v4.new_output("display_data", data)] if data else []))
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "report.ipynb")
    execute.report(tmp_path / "report.ipynb", tmp_path / "report.html")
    found = BeautifulSoup((tmp_path / "report.html").read_text(encoding="utf-8"), "html.parser")
    assert not [tag for tag in found.find_all("script") if "window.ran" in tag.get_text()]
    assert not [tag for tag in found.find_all(True) if any(name.startswith("on") for name in tag.attrs)]
    assert found.body.get_text().replace("\u200b", "").count("<script>window.ran = 1</script>") >= 6
    svg = ElementTree.fromstring((tmp_path / "figures" / "09_hostile.svg").read_text(encoding="utf-8"))
    assert not [tag for tag in svg.iter() if tag.tag.endswith("}script")]
