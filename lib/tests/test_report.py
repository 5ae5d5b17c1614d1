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
MOST_WORDS, MOST_FIGURES, MOST_TABLES = 2500, 12, 16  # figures before the appendix
CELLS = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(
    (HOME / "notebooks" / "06_report.ipynb").read_text(encoding="utf-8"))["cells"]]
PROSE = [source for kind, source in CELLS if kind == "markdown"]
CODE = [source for kind, source in CELLS if kind == "code"]
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?"


def shown_of(folder) -> dict[str, list[str]]:
    """What the notebook shows of a run, executed in this process: Markdown, tables and the rest as HTML, names of figures."""
    shown = {"text": [], "table": [], "html": [], "figure": []}

    def display(shown_object):
        text = shown_object._repr_html_() if isinstance(shown_object, pd.DataFrame) else shown_object.data
        frames = re.search('class="frames".*?data-label="(.*?)"', text)
        kind = "text" if isinstance(shown_object, IPython.display.Markdown) else "table" if "<table" in text else "html"
        shown["figure" if frames else kind].append(frames[1] if frames else text)

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
    prose = re.sub(r"```.*?```|## 9 References.*?(?=## 10)", "", "\n".join(PROSE + shown["text"]), flags=re.DOTALL)
    words = re.sub(r"\]\(\S+?\)", "]", TABLE_ROW.sub("", prose)).split()
    assert len(words) <= MOST_WORDS, f"{len(words)} words"
    appendix = "\n".join(source for _, source in CELLS).partition("\n## Appendix A")[2]
    assert len([name for name in shown["figure"] if f'"{name}"' not in appendix]) <= MOST_FIGURES
    assert len(set(shown["figure"])) == len(shown["figure"])
    tables_of_prose = sum(len(re.findall(r"^\|[-|]+\|$", source, re.MULTILINE)) for source in PROSE)
    assert tables_of_prose + len(shown["table"]) + 1 <= MOST_TABLES, "one is part of the first text"
    assert not any(re.search(r"\bnan\b|\binf\b|<td>\.\.\.</td>", text) for text in [*shown["text"], *shown["table"]])


def test_the_first_page_has_the_answer(shown):
    """A line for each batch size of the reference and for each raced engine, with ways, speeds, intervals and units."""
    answers = tables.read(REFERENCE, "05_answers")
    settings = answers[["backend", "batch"]].drop_duplicates()
    is_engine = ~settings["backend"].str.startswith("own:") & ~settings["backend"].duplicated()
    settings = settings[(settings["backend"] == answers["backend"].iloc[0]) | is_engine]
    lines = [line for line in shown["text"][0].splitlines() if line.startswith("|")][2:]
    assert len(lines) == len(settings)
    for row in answers[answers["role"] != "tree over chain"].merge(settings).itertuples():
        line = next(line for line in lines if line.startswith(f"| {row.backend} | {row.batch} |"))
        assert (f"`{row.way}` **{stats.format_estimate(row)}**" if row.nodes else "plain decoding") in line
        assert not row.raced or f"{row.n} ({row.raced})" in line


def test_each_number_of_the_findings_follows_from_its_table(shown, rounds):
    trees, grows, price = shown["text"][0].split("\n- ")[1:]
    one_call = next(text for text in shown["text"] if text.startswith("Compared with one call"))
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


def test_the_time_of_attention_grows_as_the_report_says(shown):
    """Growth, and the law of three terms by least squares of this test's own."""
    rows = tables.read(REFERENCE, "03_attention").query("not cold and n > 0 and alternative == 'auto'")
    growth = next(text for text in shown["text"] if text.startswith("Tree attention grows"))
    for first, last, what, mean, count in re.findall(
            rf"([\d,]+) to ([\d,]+) (\w+).*?: \*\*({NUMBER})\*\* times as long \(.*?n = (\d+)\)", growth):
        axis = {"sequences": "batch", "tokens": "prefix", "nodes": "draft"}[what]
        ends = [rows[rows[axis] == int(end.replace(",", ""))] for end in (first, last)]
        pairs = ends[0].merge(ends[1], on=list({"dtype", "batch", "prefix", "draft"} - {axis}))
        assert near(mean, np.exp(np.log(pairs["ms_y"] / pairs["ms_x"]).mean())) and int(count) == len(pairs), axis

    laws = next(table for table in shown["table"] if "ns per key" in table)
    for dtype, part in rows.groupby("dtype"):
        *printed, error, _, count = re.findall("<td>(.*?)</td>", laws.partition(f"<th>{dtype}</th>")[2])[:6]
        keys = (part["batch"] * (part["prefix"] + part["draft"])).to_numpy() / 1e6
        design = np.stack([np.ones(len(part)), keys, keys * part["draft"]], axis=1) / part[["ms"]].to_numpy()
        terms = np.linalg.lstsq(design, np.ones(len(part)), rcond=None)[0]
        assert all(map(near, printed, terms)) and terms.min() >= 0 and int(count) == len(part), dtype
        assert error == f"{np.median(abs(design @ terms - 1)):.0%}"


def test_the_tables_show_rate_and_length_of_every_pair_shape_and_budget(shown):
    rows = tables.read(REFERENCE, "02_rounds")
    rows = rows[(rows["temperature"] == 0) & (rows["drafter"] != "random")]
    named = rows["shape"].str.contains(r"^chain:\d+$|@\d+$")
    settings = rows.loc[named, ["target", "drafter", "shape"]].drop_duplicates()
    every, intervals = (next(table for table in shown["table"] if summary in table)
                        for summary in ("Every shape, budget and pair", "The same with intervals"))
    assert len(re.findall(r"<td>\d+\.\d\d \(\d+%\)</td>", every)) == len(settings)
    assert len(re.findall(rf"<td>{INTERVAL}; {INTERVAL} %</td>", intervals)) == len(settings)


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
    for name in (name for name in shown["figure"] if re.match(r"\d\d_", name)):
        (notebook,) = (HOME / "notebooks").glob(f"{name[:2]}_*.ipynb")
        assert f'\\"{name[3:]}\\")' in notebook.read_text(encoding="utf-8"), f"no chapter saves {name}"
    references = text[text.index("## 9 References"):]
    assert all(link in references for link in pd.read_csv(HOME / "data" / "published.csv")["link"].dropna())


def test_published_chains_stand_beside_those_of_the_run(shown, rounds):
    html = next(table for table in shown["table"] if "Spec-Bench" in table)
    assert html.count("<tr") == len(pd.read_csv(HOME / "data" / "published.csv")) + 1
    chains = rounds[(rounds["drafter"] == rounds["drafter"].iloc[0]) & (rounds["shape"] == "chain:3")]
    assert f"chain:3: rate {chains['accepted'].sum() / chains['drafted'].sum():.2f}; " in html


@pytest.mark.parametrize("notebook, lacking", [("01", 4), ("02", 3), ("03", 4), ("05", 1)])
def test_a_run_of_one_notebook_has_a_report(notebook, lacking, tmp_path):
    (tmp_path / "tables").mkdir()
    shutil.copy(REFERENCE / "run.json", tmp_path)
    for path in REFERENCE.glob(f"tables/{notebook}_*"):
        shutil.copy(path, tmp_path / "tables")
    assert len(re.findall("not measured|not compared", shown_of(tmp_path)["text"][0])) == lacking
