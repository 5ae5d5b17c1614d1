"""The tree designer: in a browser its rounds are those of replay, and clicks, keys, files and addresses do what they say."""

import base64
import json
import shutil
import zlib

import nbformat
import numpy as np
import pandas as pd
import pytest

from lib.explorers import designer
from lib.lab import execute
from lib.replay import acceptance, atlas
from lib.replay.atlas import Atlas
from lib.study import costs_files
from lib.tests.explorers.browser import CHROMIUM, result_of
from lib.tests.replay.test_atlas import recorded
from lib.trees.tree import Tree

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
COSTS = pd.DataFrame([["one", "loop", 1, "plain", "nodes:0", 0, 10.0], ["one", "loop", 1, "forced", "nodes:64", 64, 20.0],
                      ["one", "loop", 1, "tiny", "chain:4", 4, 8.0]],
                     columns=["machine", "backend", "batch", "method", "shape", "nodes", "ms"])
BEGIN = """while (!all(".designer svg").length) await new Promise((resume) => setTimeout(resume, 20));
  const canvas = all(".canvas")[0], words = () => all("[aria-live]")[0].textContent, error = () => all(".error")[0].textContent;
  const key = (key) => act(canvas, "keydown", { key }), nodes = () => all(".canvas .node").length - 1;
  const change = (element, value) => { element.value = value; element.dispatchEvent(new page.Event("change")); };
  const row = () => [...all(".designer table tr")[1].children].map((cell) => cell.textContent);"""


@pytest.fixture(scope="module")
def small() -> Atlas:
    texts = recorded()
    texts.trace.labels["choosing"] = sorted(set(texts.trace.prompts))[::2]
    return Atlas(texts, {})


@pytest.fixture
def folder(small, tmp_path):
    """Of a report with the designer, and its own page."""
    output = nbformat.v4.new_output("display_data", {"text/html": designer.section(
        designer.data_of(small, COSTS, ["tiny"]))})
    report = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Report"),
                                             nbformat.v4.new_code_cell("", outputs=[output])])
    (tmp_path / "executed").mkdir()
    nbformat.write(report, tmp_path / "executed" / "06_report.ipynb")
    execute.pages(tmp_path / "executed", tmp_path)
    return tmp_path


def judging(one: Atlas):
    chooses = np.isin(np.array(one.trace.prompts), one.trace.labels["choosing"])
    return one.trace.select(~chooses & ~one.trace.looping)


def random_tree(generator: np.random.Generator) -> Tree:
    """At most 64 nodes, 10 levels and ranks below 64, of which small ones are likely, as on recorded text."""
    paths: set[tuple[int, ...]] = {()}
    for _ in range(generator.integers(1, 65)):
        parents = [path for path in paths if len(path) < designer.LEVELS]
        paths.add((*parents[generator.integers(len(parents))], min(63, int(generator.exponential(1.5)))))
    return Tree.from_choices(paths - {()})


@needs_browser
@pytest.mark.parametrize("shipped", [False, True])
def test_rounds_are_those_of_replay_text_by_text(shipped, small, tmp_path):
    one = atlas.load("smollm2-135m.continuation") if shipped else small
    names = [name for name in (*designer.DRAFTERS, "tiny") if name in one.trace.ranks]
    trees = [random_tree(np.random.default_rng(seed)) for seed in range(20)]
    (tmp_path / "data.json").write_text(json.dumps(designer.data_of(one, COSTS, names) | {
        "trees": [tree.choices() for tree in trees]}))
    shutil.copy(designer.SCRIPT, tmp_path)
    (tmp_path / "page.html").write_text('<script type="module">import * as parts from "./designer.js"; '
                                        "window.parts = parts;</script>")
    found = result_of("""
        while (!page.parts) await new Promise((resume) => setTimeout(resume, 20));
        const { drafterOf, replay, treeOf, read, written } = page.parts, found = {};
        const data = await (await page.fetch("data.json")).json(), texts = { ...data.texts, rows: data.texts.lengths.length };
        for (const [name, one] of Object.entries(data.drafters)) {
          const drafter = await drafterOf(name, one, texts);
          found[name] = data.trees.map((paths) => {
            const { rounds, accepted } = replay(read(written(treeOf(paths))), drafter, texts);
            return [[...rounds], [...accepted]];
          });
        }
        return found;""", "page.html", tmp_path)
    for name in names:
        for tree, (rounds, accepted) in zip(trees, found[name]):
            rows = acceptance.tally_walk(judging(one), acceptance.rounds_of(judging(one), tree, name))
            assert rows["rounds"].tolist() == rounds and rows["accepted"].tolist() == accepted


@needs_browser
def test_hands_change_the_tree_and_the_numbers_follow(folder, small):
    tree = acceptance.tree_of("frequent@16", small.trace.select(np.isin(
        np.array(small.trace.prompts), small.trace.labels["choosing"]) & ~small.trace.looping), "tiny")
    first, counts, moved, speed, names = result_of(BEGIN + """
        const first = row(), counts = [];
        for (const press of ["Enter", "u", "r", "a", "d"]) { key(press); counts.push(nodes()); }
        change(all("input[list]")[0], "chain@2");
        key("ArrowDown"); key("ArrowDown"); key("Delete");
        const moved = [nodes(), all(".selected")[0].dataset.node];
        const drag = (x) => { const node = all(".canvas .node")[1]; act(node, "pointerdown", { clientX: 0 });
          act(canvas, "pointermove", { clientX: x }); act(canvas, "pointerup", { clientX: x }); };
        drag(3); moved.push(nodes()); drag(3); moved.push(nodes()); drag(90); moved.push(error());
        change(all("input[type=number]")[0], "0");
        const speed = row(), names = [];
        for (const { value } of all("option[value*='@']")) { change(all("input[list]")[0], value); names.push(error()); }
        return [first, counts, moved, speed, names];""", "report.html", folder)
    rounds = acceptance.rounds_of(judging(small), tree, "tiny")
    assert first[1:3] == ["16", str(tree.max_depth)] and first[3].split()[0] == f"{rounds.accepted.mean():.2f}"
    assert counts == [17, 16, 17, 18, 17]
    assert moved == [1, "1", 2, 3, "the tree would have 0 nodes: give 1 to 64"] and set(names) == {""}
    assert float(speed[5].split()[0]) == pytest.approx((1 + float(speed[3].split()[0])) / (1 + 3 / 64), abs=0.02)


@needs_browser
def test_an_address_holds_the_design_and_files_of_a_person_are_read_or_refused(folder):
    address, refused, costs, model = result_of(BEGIN + """
        key("Enter");
        const address = page.location.hash, paste = (text) => { change(all("textarea")[0], text); return [row()[5], error()]; };
        const refused = ["nodes\\n1", "nodes,ms\\n0,5\\n4,x", "nodes,ms\\n4,5", "depth,rank,acceptance\\n1,0,2"].map(paste);
        const costs = paste("nodes,ms\\n0,5\\n64,5"), model = paste("depth,rank,acceptance\\n1,0,0.5\\n2,0,0.5");
        return [address, refused, costs, model];""", "designer.html", folder)
    assert len({speed for speed, _ in refused}) == 1 and costs[1] == "" and "was recorded for 2" in model[1]
    for (_, message), says in zip(refused, ("no column ms", "row 3: ms is \"x\"", "no plain step", "row 2 is 1,0,2")):
        assert says in message
    again, broken = (result_of(BEGIN + "return [nodes(), error()];", f"report.html{mark}", folder)
                     for mark in (address, "#tree=0(&drafter=x"))
    assert again == [17, ""] and broken[0] == 16 and "describes no design" in broken[1]


def test_data_of_the_shipped_atlas_are_small_and_name_each_rank():
    one = atlas.load("smollm2-135m.continuation")
    data = designer.data_of(one, pd.concat(map(costs_files.read, costs_files.names())))
    assert len(json.dumps(data)) < 700_000 and len(data["drafters"]) > 1
    for name in data["drafters"]:
        ranks = np.frombuffer(zlib.decompress(base64.b64decode(data["drafters"][name]["ranks"])), np.uint8)
        assert set(np.unique(ranks)) <= {*range(65), designer.END}
