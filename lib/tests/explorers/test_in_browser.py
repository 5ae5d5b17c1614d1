"""What a hand does in a browser, by clicks, drags and keys, becomes the tree designer's commands, and moves the frames
of a page.
"""

import json
import shutil

import nbformat
import pytest

from lib.explorers import tree_designer
from lib.lab import execute
from lib.tests.explorers.browser import CHROMIUM, result_of
from lib.trees import named, picture
from lib.trees.picture import Node
from lib.trees.tree import Tree

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
CANVAS = tree_designer.Canvas._esm
PAGE = """<div id="view"></div><script type="module">
import canvas from "./canvas.js";
const values = VALUES;
window.sent = [];
window.model = { get: (name) => values[name], on: () => {}, send: ({ command, node }) => sent.push([command, node]) };
canvas.render({ model, el: document.querySelector("#view") });
</script>"""


@needs_browser
def test_clicks_drags_and_keys_are_commands(tmp_path):
    tree = named("kary:2@6")
    drawn = picture.tree_svg(tree, [Node(str(node), "#ffffff", "") for node in range(tree.size)])
    values = dict(svg=drawn, words="", selected=0, undoable=True, redoable=False, code="tree = ..")
    shutil.copy(tree_designer.__file__.replace("tree_designer.py", "canvas.js"), tmp_path)
    (tmp_path / "page.html").write_text(PAGE.replace("VALUES", json.dumps(values)))
    sent, selected, disabled, words, select = result_of("""
        const canvas = all(".canvas")[0], node = (number) => all(`.node[data-node='${number}'] rect`)[0];
        const drag = (number, clientX) => { act(node(number), "pointerdown", { clientX: 0 });
          act(canvas, "pointermove", { clientX }); act(canvas, "pointerup", { clientX }); };
        drag(2, 3); drag(1, 90);
        const keys = ["ArrowUp", "ArrowDown", "ArrowRight", "Enter", "Delete", "u", "r", "a", "d", "g"];
        for (const key of keys) act(canvas, "keydown", { key });
        all(".copy")[0].click();
        return [page.sent, all(".selected")[0].dataset.node, all("button").map((one) => one.disabled),
                all("[aria-live]")[0].textContent, page.getComputedStyle(canvas).userSelect];""", "page.html", tmp_path)
    assert select == "none", "a drag moves a node, and selects no text of the page"
    text = str(getattr(CANVAS, "_contents", CANVAS))
    assert "import " not in text and "http" not in text, "the module is whole in itself"
    assert sent == [["add", 2], ["prune", 1], ["add", 2], ["prune", 2], ["undo", 2], ["redo", 2], ["add hint", 2],
                    ["drop hint", 2], ["grow", 2]]
    assert selected == "2" and disabled == [False, True, False, False, False, False] and "Copied" in words


@needs_browser
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
    first, second, pointed, rows, focused, title = result_of("""
        const shown = () => all(".frame").map((one) => page.getComputedStyle(one).display !== "none");
        const slider = all("input[type=range]")[0], words = () => all(".frames + p")[0].textContent;
        const first = [shown(), words()];
        slider.value = 1; slider.dispatchEvent(new page.Event("input"));
        const second = shown();
        act(all(".frame:not([hidden]) .node[data-node='1'] rect")[0], "pointerover");
        const pointed = words(), rows = all(".frame:not([hidden]) [data-row]").map((one) => one.style.opacity);
        all(".frame:not([hidden]) .node")[0].dispatchEvent(new page.FocusEvent("focusin", { bubbles: true }));
        return [first, second, pointed, rows, words(), page.document.title];""", "report.html", tmp_path)
    assert first == [[True, False, False], "point"] and second == [False, True, False]
    assert pointed == "node 1, <b>: accepted, 50% by the drafter" and rows == ["0.2", "1", "0.2"]
    assert focused == "node 0, a: root" and title != "foreign"
