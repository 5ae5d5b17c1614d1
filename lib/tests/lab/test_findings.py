"""A page numbers its captions, shows parts in order and saves figures; results read a run's tables once."""

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import findings
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
