"""A chapter measures once and reads its tables; its page shows what others wrote and runs nothing of it."""

import base64
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from bs4 import BeautifulSoup
from nbformat import v4

from lib.lab import execute, provenance, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")


def test_a_chapter_measures_once_reads_its_tables_and_calls_nothing_while_it_is_rendered(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(provenance, "machine", lambda device: {"device": device})
    monkeypatch.setitem(tables.schemas(), "plain", tables.Schema("plain", ("index",), {"index": "integer"}))
    chapter, calls = Chapter(str(tmp_path), "02"), []

    def settings(count: int) -> SimpleNamespace:
        return SimpleNamespace(count=count, parameters={"count": count}, files=[], device="cpu")

    def measured(store, settings):
        calls.append(settings.count)
        store.once("plain", lambda: pd.DataFrame({"index": range(settings.count)}))

    monkeypatch.setitem(sys.modules, "study", SimpleNamespace(measure=measured))

    assert not chapter.has("plain", "03_plain") and list(chapter.table("plain")) == ["index"]
    assert capsys.readouterr().out == "not measured in this run: plain, 03_plain\n"
    for count in (3, 3, 2):
        chapter.measure("study", settings(count))
        assert chapter.table("02_plain")["index"].tolist() == [*range(count)]
    (tmp_path / "tables" / "02_plain.csv").unlink()
    chapter.measure("study", settings(2))
    monkeypatch.setenv(provenance.RENDER, "1")
    chapter.measure("study", settings(9))
    assert calls == [3, 2, 2] and chapter.has("plain") and len(chapter.table("plain")) == 2
    figure, _ = plt.subplots()
    chapter.finish(figure, "one")
    assert (tmp_path / "figures" / "02_one.png").exists() and (tmp_path / "figures" / "02_one.svg").exists()
    assert not Chapter("", "02").has("plain"), "a notebook without a run keeps nothing"


def test_a_report_shows_figures_of_the_run_that_it_reads_and_of_no_other(tmp_path, monkeypatch, capsys):
    """The committed run has its figures in the folder `figures`, unless it is being rendered again."""
    shown, committed = [], tmp_path / "data" / "results" / "reference"
    monkeypatch.setattr("IPython.display.display", lambda image: shown.append(image.data))
    monkeypatch.setattr(provenance, "HOME", tmp_path)
    for folder in (tmp_path, tmp_path / "run", committed):
        (folder / "figures").mkdir(parents=True)
        (folder / "figures" / "02_one.png").write_bytes(b"\x89PNG\r\n\x1a\n" + folder.name.encode())
        Chapter("", "06", reads=str(committed if folder == tmp_path else folder)).show("02_one")
    (tmp_path / "run" / "figures" / "02_one.png").unlink()
    Chapter("", "06", reads=str(tmp_path / "run")).show("02_one")
    assert [data[8:].decode() for data in shown] == [tmp_path.name, "run", "reference"]
    assert capsys.readouterr().out == "not drawn in this run: 02_one\n"


HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>` $\\frac{$ &lt;b&gt;"


def test_texts_of_others_are_shown_and_never_run(tmp_path, monkeypatch):
    """In sentences, tables, figures and the page that is made of them; a figure is described by what follows."""
    outputs = []
    monkeypatch.setattr("IPython.display.display", outputs.append)
    chapter = Chapter(str(tmp_path), "09")
    chapter.say(f"{HOSTILE} and `{HOSTILE}`")
    figure, axis = plt.subplots()
    axis.plot([0, 1], label=HOSTILE)
    axis.set(title=HOSTILE, xlabel=HOSTILE)
    axis.legend()
    chapter.finish(figure, "hostile")
    svg = ElementTree.fromstring((tmp_path / "figures" / "09_hostile.svg").read_text(encoding="utf-8"))
    assert not [tag for tag in svg.iter() if tag.tag.endswith("}script")]
    table = pd.DataFrame({HOSTILE: [HOSTILE]}, index=[HOSTILE])._repr_html_()
    png = base64.b64encode((tmp_path / "figures" / "09_hostile.png").read_bytes()).decode()
    data = [{"text/html": table}, {"image/png": png}, {"text/markdown": outputs[0].data}, {"image/png": png}]
    cell = v4.new_code_cell("1 < 2", outputs=[v4.new_output("display_data", part) for part in data])
    (tmp_path / "executed").mkdir()
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# T"), cell])
    execute.write_clean(notebook, tmp_path / "executed" / "06_report.ipynb")
    execute.pages(tmp_path / "executed", tmp_path)
    page = BeautifulSoup((tmp_path / "report.html").read_text(encoding="utf-8"), "html.parser")
    assert not page.find_all("script") and not [tag for tag in page.find_all(True) if set(tag.attrs) & {"onerror"}]
    assert page.body.get_text().replace("\u200b", "").count("<script>window.ran = 1</script>") >= 5
    assert all(image["src"].startswith("data:image/png") for image in page.find_all("img"))
    assert [image["alt"][:9].replace("\u200b", "") for image in page.find_all("img")] == ["<script>", "figure"]
    assert page.find("meta", {"http-equiv": "Content-Security-Policy"})["content"].startswith("default-src 'none'")
