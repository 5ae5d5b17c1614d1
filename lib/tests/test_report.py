"""The report: what it shows of the committed run, its limits, numbers and links; and of parts of a run."""

import json
import re
import shutil

import IPython.display
import matplotlib
import numpy as np
import pandas as pd
import pytest
import transformers

from lib.lab import provenance, stats, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")
HOME = provenance.HOME
REFERENCE = HOME / "data" / "results" / "reference"
MOST_WORDS, MOST_FIGURES, MOST_TABLES = 3500, 12, 16
CELLS = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(
    (HOME / "notebooks" / "06_report.ipynb").read_text(encoding="utf-8"))["cells"]]
PROSE = [source for kind, source in CELLS if kind == "markdown"]
CODE = [source for kind, source in CELLS if kind == "code"]
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?"


def shown_of(folder) -> dict[str, list[str]]:
    """What the notebook shows of a run, executed in this process: texts, tables as HTML, names of figures."""
    shown = {"text": [], "table": [], "figure": []}

    def display(shown_object):
        text = shown_object._repr_html_() if isinstance(shown_object, pd.DataFrame) else shown_object.data
        frames = re.search('class="frames".*?data-label="(.*?)"', text)
        shown["figure" if frames else "table" if "<table" in text else "text"].append(frames[1] if frames else text)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HOME / "notebooks")
        patch.setattr(IPython.display, "display", display)
        patch.setattr(Chapter, "show", lambda chapter, name: shown["figure"].append(name))
        patch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loads a model"))
        names = {}
        for source in CODE:
            exec(compile(source, "06_report.ipynb", "exec"), names)
            names["run_dir"] = str(folder)
    return shown


@pytest.fixture(scope="module")
def shown():
    return shown_of(REFERENCE)


@pytest.fixture(scope="module")
def rounds() -> pd.DataFrame:
    """Greedy rounds of the first target by replay, of texts that do not loop."""
    texts = tables.read(REFERENCE, "02_texts")[["target", "backend", "temperature", "prompt", "loops"]]
    rows = tables.read(REFERENCE, "02_rounds").merge(texts)
    first = rows["target"] == rows["target"].iloc[0]
    return rows[first & (rows["temperature"] == 0) & ~rows["loops"] & (rows["drafter"] != "random")]


def near(printed: str, value: float) -> bool:
    """Whether a number as it is printed is this value, up to its last digit."""
    return abs(float(printed) - value) <= 0.500001 * 10.0 ** -len(printed.partition(".")[2])


def resampled(top: pd.Series, bottom: pd.Series) -> np.ndarray:
    """The 95 % interval of sum(top) / sum(bottom) over prompts [P] by an ordinary bootstrap."""
    weights = np.random.default_rng(1).multinomial(len(top), np.full(len(top), 1 / len(top)), 4000)
    return np.quantile((weights @ top.to_numpy()) / (weights @ bottom.to_numpy()), (0.025, 0.975))


def test_the_report_is_short(shown):
    static = [TABLE_ROW.sub("", source) for source in PROSE]
    computed = [re.sub(r"<a .*?>|data:\S+", "", text) for text in shown["text"]]
    words = re.sub(r"\]\(\S+?\)", "]", "\n".join(static + computed)).split()
    assert len(words) <= MOST_WORDS, f"{len(words)} words"
    assert len(shown["figure"]) <= MOST_FIGURES and len(set(shown["figure"])) == len(shown["figure"])
    tables_of_prose = sum(len(re.findall(r"^\|[-|]+\|$", source, re.MULTILINE)) for source in PROSE)
    assert tables_of_prose + len(shown["table"]) + 1 <= MOST_TABLES, "one is part of the first text"
    assert not any(re.search(r"\bnan\b|\binf\b|<td>\.\.\.</td>", text) for text in [*shown["text"], *shown["table"]])


def test_the_first_page_has_every_raced_answer(shown):
    """A line for each backend and batch size, with ways, speeds, intervals and the number of units of its table."""
    answers = tables.read(REFERENCE, "05_answers")
    raced = answers[answers.groupby(["backend", "batch"])["raced"].transform("max") > 0]
    lines = [line for line in shown["text"][0].splitlines() if line.startswith("|")][2:]
    assert len(lines) == raced.groupby(["backend", "batch"]).ngroups
    for row in raced[raced["role"] != "tree over chain"].itertuples():
        line = next(line for line in lines if line.startswith(f"| {row.backend} | {row.batch} |"))
        assert (f"`{row.way}` **{stats.format_estimate(row)}**" if row.nodes else "plain decoding") in line
        assert not row.raced or f"{row.n} ({row.raced})" in line


def test_each_number_of_the_findings_follows_from_its_table(shown, rounds):
    trees, grows, price, one_call = shown["text"][0].split("\n- ")[1:]
    answers = tables.read(REFERENCE, "05_answers")
    paired = answers[(answers["role"] == "tree over chain") & (answers["backend"] == answers["backend"].iloc[0])]
    assert all(f"{row.note} (n = {row.n}, {row.raced} raced)" in trees for row in paired.itertuples())

    most, *tree, longest, chain, low, high, short, reached = re.search(
        rf"With (\d+) nodes, .+? \*\*{INTERVAL}\*\* draft tokens per round; a chain of (\d+) accepts "
        rf"\*\*{INTERVAL}\*\*, and one of (\d+) reaches (\d+)%", grows).groups()
    rounds = rounds[rounds["drafter"] == rounds["drafter"].iloc[0]]
    sums = rounds.groupby("shape")[["accepted", "rounds"]].sum()
    lengths = sums["accepted"] / sums["rounds"]
    others = lengths[lengths.index.str.endswith(f"@{most}")]
    assert near(tree[0], others.max()) and near(chain, lengths[f"chain:{longest}"])
    assert near(reached, 100 * lengths[f"chain:{short}"] / lengths[f"chain:{longest}"])
    for ends, shape in ((tree[1:], others.idxmax()), ((low, high), f"chain:{longest}")):
        by_prompt = rounds[rounds["shape"] == shape].groupby("prompt")[["accepted", "rounds"]].sum()
        expected = resampled(by_prompt["accepted"], by_prompt["rounds"])
        atol = 0.3 * np.ptp(expected) + 0.02  # of few prompts the report's interval is wider than a percentile's
        assert ends[0] is None or np.allclose(np.array(ends, float), expected, atol=atol), shape

    costs = tables.read(REFERENCE, "05_costs")
    costs = costs[costs["backend"] == answers["backend"].iloc[0]].set_index(["batch", "method", "nodes"])["ms"]
    nodes = int(re.search(r"checks (\d+) draft tokens", price)[1])
    for printed, batch in re.findall(rf"\*\*({NUMBER})\*\* plain steps at batch (\d+)", price):
        assert near(printed, costs[int(batch), "forced", nodes] / costs[int(batch), "plain", 0])

    timed = tables.read(REFERENCE, "03_attention").query("not cold and n > 0 and draft > 1")
    times = timed.pivot(index=["dtype", "batch", "prefix", "draft"], columns="alternative", values="ms")
    for printed, name, count in re.findall(rf"\*\*({NUMBER})\*\* times as long (.+?) \(n = (\d+) settings\)", one_call):
        ratios = (times[name] / times["auto"]).dropna()
        assert near(printed, np.exp(np.log(ratios).mean())) and int(count) == len(ratios), name


def test_the_tables_show_rate_and_length_of_every_shape_and_budget(shown, rounds):
    """Of the first target, whose table comes first."""
    named = rounds["shape"].str.contains(r"^chain:\d+$|@\d+$")
    settings = rounds.loc[named, ["drafter", "shape"]].drop_duplicates()
    assert len(re.findall(r"<td>\d+\.\d\d \(\d+%\)</td>", shown["table"][0])) == len(settings)
    assert any("data:text/csv;base64," in text for text in shown["text"])


def test_links_lead_somewhere(shown):
    """Contents to headings, chapters to notebooks, code to files, figures to pictures, papers to references."""
    text = "\n".join(PROSE)
    headings = {heading.replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    contents = re.findall(r"\]\(#(\S+?)\)", text)
    assert set(contents) == headings and len(contents) == len(headings)
    for name in re.findall(r"\]\(chapters/(\w+)\.html\)", text):
        assert (HOME / "notebooks" / f"{name}.ipynb").exists(), name
    for path in re.findall(r"\blib/[\w/.]+\w", text):
        assert (HOME / path).exists(), path
    kept = {path.stem for path in (HOME / "figures").glob("[0-9]*.png")}
    assert kept == {name for name in shown["figure"] if re.match(r"\d\d_", name)}
    references = text[text.index("## 8 References"):]
    assert all(link in references for link in pd.read_csv(HOME / "data" / "published.csv")["link"].dropna())


def test_published_chains_stand_beside_those_of_the_run(shown, rounds):
    html = next(table for table in shown["table"] if "Spec-Bench" in table)
    assert html.count("<tr") == len(pd.read_csv(HOME / "data" / "published.csv")) + 1
    chains = rounds[(rounds["drafter"] == rounds["drafter"].iloc[0]) & (rounds["shape"] == "chain:3")]
    assert f"<td>{chains['accepted'].sum() / chains['drafted'].sum():.0%}</td>" in html, "acceptance rate"


@pytest.mark.parametrize("notebook, lacking", [("01", 5), ("02", 4), ("03", 4), ("05", 2)])
def test_a_run_of_one_notebook_has_a_report(notebook, lacking, tmp_path):
    (tmp_path / "tables").mkdir()
    shutil.copy(REFERENCE / "run.json", tmp_path)
    for path in REFERENCE.glob(f"tables/{notebook}_*"):
        shutil.copy(path, tmp_path / "tables")
    assert len(re.findall("not measured|not compared", shown_of(tmp_path)["text"][0])) == lacking
