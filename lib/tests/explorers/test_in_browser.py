"""The tree designer in JupyterLab: what a hand does there, by clicks and keys, reaches the tree; nothing is raised."""

import pytest

from lib.explorers.tree_designer import TreeDesigner
from lib.tests.explorers.browser import CHROMIUM, lab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
CELL = """
from lib.replay.atlas import Atlas
from lib.explorers.tree_designer import TreeDesigner
from lib.tests.replay.test_atlas import recorded
known = recorded()
known.trace.about["choosing"] = sorted(set(known.trace.prompts))[::2]
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
