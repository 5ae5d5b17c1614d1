"""What a hand does in a browser, by clicks and keys, reaches the tree designer in JupyterLab, and moves the frames of a
page; nothing is raised.
"""

import nbformat
import pytest

from lib.explorers.tree_designer import TreeDesigner
from lib.lab import execute
from lib.tests.explorers.browser import CHROMIUM, browser, lab
from lib.trees import picture
from lib.trees.tree import Tree

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
CELL = """
from lib.replay.atlas import Atlas
from lib.explorers.tree_designer import TreeDesigner
from lib.tests.replay.test_atlas import recorded
known = recorded()
known.trace.labels["choosing"] = sorted(set(known.trace.prompts))[::2]
designer = TreeDesigner(Atlas(known, {}), name="kary:2@6")
designer.view
"""
NODES = "document.querySelectorAll('.designer .node').length"


def test_a_tree_is_made_by_hand(tmp_path):
    with lab([CELL], tmp_path) as page:
        page.wait(f"{NODES} === 7")
        page.click(".designer .node[data-node='0'] rect")
        page.wait(f"{NODES} === 8")
        assert page.value("document.querySelector('.designer .selected').dataset.node") == "0"
        page.value("document.querySelector('.canvas').focus({preventScroll: true})")
        page.key("ArrowDown"), page.key("ArrowRight"), page.key("Enter")
        page.wait(f"{NODES} === 9")
        page.key("Delete"), page.wait(f"{NODES} === 5")  # the second child of the root, with the three below it
        page.key("u"), page.wait(f"{NODES} === 9")
        page.key("r"), page.wait(f"{NODES} === 5")
        page.key("a"), page.wait(f"{NODES} === 6")
        page.key("d"), page.wait(f"{NODES} === 5")
        place = page.centre(".designer .node[data-node='1'] rect")
        page.pointer("Pressed", place)
        page.pointer("Moved", place | {"x": place["x"] + 90})
        page.pointer("Released", place | {"x": place["x"] + 90})
        page.wait(f"{NODES} < 5")
        page.write("input.widget-input[list]", "chain:3")
        page.wait(f"{NODES} === 4")
        page.click(".designer .copy")
        page.wait("document.querySelector('.designer').innerText.includes('Copied')")
        told = page.value("document.querySelector('.jp-OutputArea').innerText")
        assert "acceptance rate" in told and "Sequoia" in told and "position ids" in told
        assert page.errors == []


def test_its_module_loads_nothing():
    """It is whole in itself, and works where there is no network."""
    module = TreeDesigner.__init__.__globals__["Canvas"]._esm
    text = str(getattr(module, "_contents", module))
    assert "import " not in text and "http" not in text


def test_a_pages_slider_shows_one_round_at_a_time_and_nodes_tell_their_numbers(tmp_path):
    """Its policy lets the script run, and no other."""
    drawn = picture.round_svg([-1, 0, 0, 1], ["a", "<b>", "c", "d"], ["root", "accepted", "rejected", "bonus"],
                              {"drafter": [1, 0.5, 0.25, float("nan")]}) + picture.mask_svg(Tree([-1, 0, 0]))
    parts = {"round 1": drawn, "round 2": drawn, "grown": picture.accepted_svg({"0": 0.5, "1": 0.1}, "kary:2")}
    html = picture.frames(parts, label="round", hint="point") + "<script>document.title = 'foreign'</script>"
    report = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[
        nbformat.v4.new_output("display_data", {"text/html": html})])])
    (tmp_path / "executed").mkdir()
    nbformat.write(report, tmp_path / "executed" / "06_report.ipynb")
    execute.pages(tmp_path / "executed", tmp_path)
    shown = "[...document.querySelectorAll('.frame')].map(one => getComputedStyle(one).display !== 'none')"
    told = "document.querySelector('.frames + p').textContent"
    with browser(tmp_path) as page:
        page.call("Page.navigate", url=f"file://{tmp_path / 'report.html'}")
        page.wait("document.querySelector('input[type=range]') !== null")
        assert page.value(shown) == [True, False, False] and page.value(told) == "point"
        page.value("document.querySelector('input').focus()"), page.key("ArrowRight")
        page.wait(f"{shown}[1]")
        page.pointer("Moved", page.centre(".frame:not([hidden]) .node[data-node='1'] rect"))
        assert page.wait(f"{told} !== 'point' && {told}") == "node 1, <b>: accepted, 50% by the drafter"
        rows = "[...document.querySelectorAll('.frame:not([hidden]) [data-row]')].map(one => one.style.opacity)"
        assert page.value(rows) == ["0.2", "1", "0.2"]
        page.value("document.querySelector('.frame:not([hidden]) .node').focus()")
        assert page.wait(f"{told}.startsWith('node 0') && {told}") == "node 0, a: root"
        assert page.value("document.title") != "foreign" and page.errors == []
