"""The tree designer: its rounds are those of replay; clicks, keys, files and addresses do what they say."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from lib.engines import registry
from lib.explorers import designer
from lib.replay import acceptance, atlas
from lib.replay.atlas import Atlas
from lib.study import costs_files
from lib.tests.explorers.browser import needs_browser, result_of, write_report
from lib.tests.replay.test_atlas import recorded
from lib.trees.tree import Tree

COSTS = pd.DataFrame([
    ["one", "loop", 1, "plain", "nodes:0", 0, 10.0], ["one", "loop", 1, "forced", "nodes:64", 64, 20.0],
    ["one", "loop", 1, "tiny", "chain:1", 1, 5.0], ["one", "loop", 1, "tiny", "chain:4", 4, 8.0],
    ["two", "vllm", 1, "plain", "nodes:0", 0, 10.0], ["two", "vllm", 1, "forced", "nodes:8", 8, 20.0],
    ["two", "vllm", 1, "draft_model", "chain:1", 1, 2.0], ["two", "vllm", 1, "draft_model", "chain:4", 4, 2.0]],
    columns=["machine", "backend", "batch", "method", "shape", "nodes", "ms"])
BEGIN = """while (!all(".designer svg").length) await new Promise((resume) => setTimeout(resume, 20));
  const part = (name) => all(`[data-part=${name}]`)[0], canvas = part("canvas");
  const message = () => part("message").textContent;
  const key = (key) => act(canvas, "keydown", { key }), nodes = () => all(".canvas .node").length - 1;
  const change = (name, value) => { part(name).value = value; part(name).dispatchEvent(new page.Event("change")); };
  const row = () => [...all(".designer table tr")[1].children].map((cell) => cell.textContent);"""


@pytest.fixture(scope="module")
def small() -> Atlas:
    texts = recorded()
    texts.trace.labels["choosing"] = sorted(set(texts.trace.prompts))[::2]
    return Atlas(texts, {})


@pytest.fixture
def folder(small, tmp_path):
    """Of a report with the designer, and its own page."""
    write_report(designer.section(designer.data_of(small, COSTS, ["tiny"])), tmp_path)
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
    found = result_of("""
        const { drafterOf, replay, treeOf, read, written } = await import("/designer.js"), found = {};
        const data = await (await fetch("data.json")).json(), { texts } = data;
        for (const [name, one] of Object.entries(data.drafters)) {
          const drafter = await drafterOf(name, one, texts);
          found[name] = data.trees.map((paths) => {
            const { rounds, accepted } = replay(read(written(treeOf(paths))), drafter, texts);
            return [[...rounds], [...accepted]];
          });
        }
        return found;""", "data.json", tmp_path)
    for name in names:
        for tree, (rounds, accepted) in zip(trees, found[name]):
            rows = acceptance.tally_walk(judging(one), acceptance.rounds_of(judging(one), tree, name))
            assert rows["rounds"].tolist() == rounds and rows["accepted"].tolist() == accepted


@needs_browser
def test_hands_change_the_tree_and_the_numbers_follow(folder, small):
    tree = acceptance.tree_of("frequent@16", small.trace.select(np.isin(
        np.array(small.trace.prompts), small.trace.labels["choosing"]) & ~small.trace.looping), "tiny")
    first, counts, moved, speeds = result_of(BEGIN + """
        const first = [part("costs").value, ...row()], counts = [];
        for (const press of ["u", "Enter", "u", "r", "a", "d"]) { key(press); counts.push(nodes()); }
        change("name", "chain@2");
        key("ArrowDown"); key("ArrowDown"); key("Delete");
        const moved = [nodes(), all(".selected")[0].dataset.node];
        const drag = (x) => { const node = all(".canvas .node")[1]; act(node, "pointerdown", { clientX: 0 });
          act(canvas, "pointermove", { clientX: x }); act(canvas, "pointerup", { clientX: x }); };
        drag(3); moved.push(nodes()); drag(3); moved.push(nodes()); drag(90); moved.push(message());
        const speeds = [row()];
        change("round", "0"); change("level", "0"); speeds.push(row());
        change("costs", "two, vllm"); speeds.push(part("numbers").textContent);
        return [first, counts, moved, speeds];""", "report.html", folder)
    assert first[0] == "one, loop" and first[5:] == ["16", str(tree.max_depth)]
    rounds = acceptance.rounds_of(judging(small), tree, "tiny")
    assert first[3].split()[0] == f"{rounds.accepted.mean():.2f}"
    assert counts == [16, 17, 16, 17, 18, 17]
    assert moved == [1, "1", 2, 3, "the tree would have 0 nodes: give 1 to 64"]
    for cells, drafting in zip(speeds, (4 + 2 * 1, 0)):  # as of chain:1 and chain:4
        expected = (1 + float(cells[2].split()[0])) / (1 + 3 / 64 + drafting / 10)
        assert float(cells[1].split()[0]) == pytest.approx(expected, abs=0.02)
    assert "How long tiny drafts there was not measured" in speeds[2]


@needs_browser
def test_what_is_offered_is_never_refused_and_what_is_refused_is_not_shown(folder):
    shown, offered, refused = result_of(BEGIN + """
        const offered = [], take = () => [...part("names").options].forEach(({ value }) => {
          change("name", value); offered.push([value, message()]); });
        take();
        change("name", "kary:2@14"); change("pasted", "depth,rank,acceptance\\n1,0,0.5\\n1,1,0.2\\n2,0,0.5");
        const shown = [message(), row()];
        take();
        const refused = [["name", "kary:two@4"], ["name", "chain@3"], ["name", "chain@99"], ["round", "-1"],
          ["pasted", "nodes\\n1"], ["pasted", "nodes,ms\\n0,5\\n4,x"], ["pasted", "nodes,ms\\n4,5"],
          ["pasted", "depth,rank,acceptance\\n1,0,2"], ["pasted", "depth,rank,acceptance\\n1,0,0.7\\n1,1,0.7"]].map(
            ([name, value]) => { change(name, value); return [part(name).value, nodes(), message()]; });
        return [shown, offered, refused];""", "designer.html", folder)
    assert len(offered) > 9 and {message for _, message in offered} == {""}
    assert "cut at 2 levels" in shown[0] and shown[1][2] == "1.05" and shown[1][4:] == ["6", "2"]
    assert {count for _, count, _ in refused} == {refused[0][1]} and {value for value, *_ in refused[:3]} == {""}
    for (*_, message), says in zip(refused, (
            "names no tree", "3 levels: give 2", "1 to 64 nodes", "from 0", "no column ms", 'row 3: ms is "x"',
            "no plain step", 'row 2: acceptance is "2"', "depth 1 is 1.40")):
        assert says in message


@needs_browser
def test_an_address_holds_the_design_with_a_persons_own_costs(folder):
    address, costs = result_of(BEGIN + """
        key("Enter");
        change("pasted", `machine,backend,batch,method,nodes,ms\\n"a, b",vllm,4,plain,0,5\\n,vllm,4,forced,64,5
          ,vllm,4,eagle3,4,-1`);
        await new Promise((resume) => setTimeout(resume, 500));
        return [page.location.hash, [part("costs").value, part("batch").value, row()[1]]];""", "designer.html", folder)
    again = result_of(BEGIN + "return [nodes(), message(), part('costs').value, part('batch').value, row()[1]];",
                      f"report.html{address}", folder)
    assert again == [17, "", *costs] and costs[:2] == ["your costs, vllm", "4"]
    deep = ",".join(".".join("0" * depth) for depth in range(1, 12))
    for mark, says in (("#tree=0(&drafter=x", "not here"), ("#Report", ""), (f"#tree={deep}&drafter=tiny&costs="
                       "one%2C+loop&batch=1&drafting=0%2C0", "11 levels")):
        count, message = result_of(BEGIN + "return [nodes(), message()];", f"report.html{mark}", folder)
        assert count == 16 and says in message and bool(message) == bool(says)


def test_data_of_the_shipped_atlas_are_small_and_have_the_lines_of_engines():
    one = atlas.load("smollm2-135m.continuation")
    data = designer.data_of(one, pd.concat([COSTS, *map(costs_files.read, costs_files.names())]))
    assert len(json.dumps(data)) < 700_000 and len(data["drafters"]) == len(designer.DRAFTERS)
    of_model = data["drafters"]["model"]
    assert of_model["drafting"]["two, vllm"] == {1: [2.0, 0.0]}
    lines = dict(of_model["lines"])
    assert '"num_speculative_tokens": 3' in lines["vLLM, draft_model"][2] and len(lines) > 2
    assert all(registry.WEIGHTS in line for by_length in lines.values() for line in by_length)
