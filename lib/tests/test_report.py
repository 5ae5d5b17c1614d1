"""The report on the committed run: what it must show, its limits, and that its links and numbers are right."""

import json
import re

import IPython.display
import matplotlib
import numpy as np
import pandas as pd
import pytest
import transformers

from lib.cost import recommendation
from lib.lab import provenance, tables
from lib.lab.chapter import Chapter

matplotlib.use("agg")
HOME = provenance.HOME
REFERENCE = HOME / "data" / "results" / "reference"
MOST_WORDS, MOST_FIGURES, MOST_TABLES, MOST_LINES = 3500, 12, 16, 15
CELLS = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(
    (HOME / "notebooks" / "09_report.ipynb").read_text(encoding="utf-8"))["cells"]]
PROSE = [source for kind, source in CELLS if kind == "markdown"]
CODE = [source for kind, source in CELLS if kind == "code"]
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def shown():
    """What the notebook shows, run in this process: texts of Markdown, tables as HTML, names of figures."""
    shown = {"text": [], "table": [], "figure": []}

    def display(shown_object):
        if isinstance(shown_object, pd.DataFrame):
            shown["table"].append(shown_object._repr_html_())
        elif 'class="frames"' in shown_object.data:
            shown["figure"].append(re.search('data-label="(.*?)"', shown_object.data)[1])
        elif isinstance(shown_object, IPython.display.Markdown):
            shown["text"].append(shown_object.data)
        else:
            shown["table" if "<table" in shown_object.data else "text"].append(shown_object.data)

    def save(chapter, figure, name):
        figure.canvas.draw()
        shown["figure"].append(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFT_TREES_RENDER", "1")
        patch.chdir(HOME / "notebooks")
        patch.setattr(IPython.display, "display", display)
        patch.setattr(Chapter, "save", save)
        patch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loads a model"))
        names = {}
        for source in CODE:
            exec(compile(source, "09_report.ipynb", "exec"), names)
            matplotlib.pyplot.close("all")
    return shown


def chain_lengths() -> pd.Series:
    """Acceptance length of the first pair's chains by budget, in greedy text."""
    rows = tables.read(REFERENCE, "acceptance")
    first = rows.iloc[0]
    rows = rows[(rows["target"] == first["target"]) & (rows["drafter"] == first["drafter"]) & (rows["temperature"] == 0)
                & (rows["stretch"] == "before") & (rows["family"] == "chain")]
    sums = rows.groupby("budget")[["accepted", "rounds"]].sum()
    return sums["accepted"] / sums["rounds"]


def test_the_report_is_short(shown):
    """Its words, figures and tables are limited; shapes by budget of all drafters are one table."""
    static = [TABLE_ROW.sub("", source) for source in PROSE]
    computed = [re.sub(r"<a .*?>|data:\S+", "", text) for text in shown["text"]]
    words = re.sub(r"\]\(\S+?\)", "]", "\n".join(static + computed)).split()
    assert len(words) <= MOST_WORDS, f"{len(words)} words"
    assert len(shown["figure"]) <= MOST_FIGURES and len(set(shown["figure"])) == len(shown["figure"])
    tables_of_prose = sum(len(re.findall(r"^\|[-|]+\|$", source, re.MULTILINE)) for source in PROSE)
    assert tables_of_prose + len(shown["table"]) <= MOST_TABLES
    assert not any(re.search(r"\bnan\b|mathdefault", text) for text in [*shown["text"], *shown["table"]])
    assert not any("<td>...</td>" in text for text in shown["table"]), "pandas leaves rows out"


def test_cells_are_short_and_hold_no_functions():
    for source in CODE:
        lines = [line for line in source.splitlines() if line.strip()]
        assert len(lines) <= MOST_LINES and max(map(len, lines)) <= 120, lines[0]
        assert not re.search(r"^\s*(def|class) |\blambda\b", source, re.MULTILINE), lines[0]


NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?"


def near(told: str | float, value: float, within: float = 0.0) -> bool:
    """Whether a number as it is printed is this value, up to its last digit; or nearer than `within`."""
    digits = len(str(told).partition(".")[2])
    return abs(float(told) - value) <= max(0.500001 * 10.0**-digits, within)


def resampled(top, bottom, seed: int = 1) -> tuple[float, float]:
    """The 95 % interval of sum(top) / sum(bottom) over prompts [P] by an ordinary bootstrap."""
    top, bottom = np.asarray(top, float), np.asarray(bottom, float)
    weights = np.random.default_rng(seed).multinomial(len(top), np.full(len(top), 1 / len(top)), 4000)
    return tuple(np.quantile(weights @ top / (weights @ bottom), (0.025, 0.975)))


def logs_of(runs: pd.DataFrame, way: str, unit: str, turn: str, base: str = "plain") -> pd.Series:
    """By prompt the mean logarithm of a way's rate over that of another, plain decoding, in the same turns."""
    turns = np.log(runs.pivot(index=[unit, turn], columns="way", values="rate"))
    return (turns[way] - turns[[one for one in turns if one.startswith(base)][0]]).dropna().groupby(unit).mean()


def agrees(found: re.Match, logs: pd.Series) -> None:
    """A printed mean speed, its interval and n are those of the logarithms."""
    value, low, high, n = found.groups()
    assert near(value, np.exp(logs.mean())) and int(n) == len(logs), found[0]
    if low:
        ends = np.exp(resampled(logs, np.ones(len(logs))))
        wider = 0.3 * (float(high) - float(low))  # of few prompts the report's interval is wider than a percentile's
        assert near(low, ends[0], wider) and near(high, ends[1], wider), found[0]


def test_each_number_of_the_first_page_follows_from_its_table(shown):
    """The recommended speeds from the timed answers, here and in engines; acceptance; costs; trees that pay."""
    opening = shown["text"][0]
    table, *lines = opening.split("\n- ")
    assert table.startswith("**In short**") and all("*Valid " in line for line in lines) and " Valid for" in table
    advice = recommendation.load(REFERENCE / recommendation.FILE)
    timed = tables.read(REFERENCE, "advice_timed").query("part == 'judging'")
    runs = tables.read(REFERENCE, "engine_runs")
    runs["rate"] = (runs["tokens"] - runs["batch"]) / (runs["seconds"] - runs["prefill"])
    head, _, *body = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert [batch for batch, *_ in body] == [str(one.batch) for one in advice.by_batch]
    for batch, *cells in body:
        for engine, cell in zip(head[1:], cells):
            found = re.fullmatch(rf"(.+): \*\*{INTERVAL}\*\* \(n = (\d+)\)", cell)
            if not found:
                assert cell in ("plain decoding", "–")
                continue
            rows, way, *key = ((timed, "recommended", "prompt", "repeat") if engine == "this project" else
                               (runs[runs["engine"] == engine], found[1], "call", "turn"))
            logs = logs_of(rows[rows["batch"] == int(batch)], way, *key)
            agrees(re.search(rf"{INTERVAL}\*\* \(n = (\d+)\)", cell), logs)

    beside, grows, price = lines
    told = re.findall(rf"batch (\d+), (\S+) over (\S+), \*\*{INTERVAL}\*\* \(n = (\d+)\)", beside)
    assert [int(batch) for batch, *_ in told] == [one.batch for one in advice.by_batch if one.best_tree]
    for batch, tree, chain, *_ in told:
        own = timed[timed["batch"] == int(batch)]
        chosen = next(one.tree for one in advice.by_batch if one.batch == int(batch))
        over = logs_of(own, "best tree" if tree != chosen else "recommended", "prompt", "repeat",
                       "best chain" if chain != chosen and "best chain" in set(own["way"]) else "recommended")
        agrees(re.search(rf"over {re.escape(chain)}, \*\*{INTERVAL}\*\* \(n = (\d+)\)", beside), over)

    most, tree, low, high, chain, *ends, near_budget, reached, n = re.search(
        rf"With (\d+) nodes, .+? \*\*{INTERVAL}\*\* draft tokens per round and a chain {INTERVAL}; a chain of (\d+) "
        r"reaches (\d+)%.*n = (\d+) prompts", grows).groups()
    for told, family in ((tree, "optimal"), (chain, "chain")):
        sums = by_prompt(family, int(most))
        assert near(told, sums["accepted"].sum() / sums["rounds"].sum()) and len(sums) == int(n)
    assert near(low, resampled(*by_prompt("optimal", int(most)).T.to_numpy())[0], 0.05)
    assert near(high, resampled(*by_prompt("optimal", int(most)).T.to_numpy())[1], 0.05)
    lengths = chain_lengths()
    assert near(reached, 100 * lengths[int(near_budget)] / lengths[int(most)])

    costs = tables.read(REFERENCE, "costs").query("drafter == 'random tokens'").drop_duplicates(["batch", "nodes"])
    costs = costs.set_index(["batch", "nodes"])
    nodes = int(re.search(r"Checking (\d+) draft nodes", price)[1])
    checks = re.findall(rf"\*\*({NUMBER})\*\* at batch (\d+)", price)
    assert [int(batch) for _, batch in checks] == [one.batch for one in advice.by_batch]
    for told, batch in checks:
        check = costs.loc[(int(batch), nodes)]
        assert near(told, (check["verify_ms"] + check["commit_ms"]) / costs.loc[(int(batch), 0), "round_ms"])
    over = tables.read(REFERENCE, "advice_map").query("hardware == 'this machine' and budget == 0")
    for trees, drafters, batch in re.findall(r"\*\*(\d+) of (\d+)\*\* at batch (\d+)", price):
        own = over[over["batch"] == int(batch)]
        assert (int(trees), int(drafters)) == ((own["over_chain_low"] > 1).sum(), len(own))


def by_prompt(family: str, budget: int) -> pd.DataFrame:
    """Accepted tokens and rounds of each prompt of the first pair, in greedy text."""
    rows = tables.read(REFERENCE, "acceptance")
    headline = ["target", "drafter"]
    rows = rows[(rows[headline] == rows.iloc[0][headline]).all(axis=1)]
    rows = rows.query(f"temperature == 0 and stretch == 'before' and family == {family!r} and budget == {budget}")
    return rows.groupby("prompt")[["accepted", "rounds"]].sum()


def test_the_tables_show_rate_and_length_of_every_shape_and_budget(shown):
    rows = tables.read(REFERENCE, "acceptance")
    rows = rows[rows["target"] == rows["target"].iloc[0]]
    settings = rows[["drafter", "family", "budget"]].drop_duplicates()
    assert len(re.findall(r"<td>\d+\.\d\d \(\d+%\)</td>", shown["table"][0])) == len(settings)
    assert any("data:text/csv;base64," in text for text in shown["text"]), "the intervals, as a file"


def test_links_lead_somewhere():
    """Contents to headings, chapters to notebooks, files of the code to files, published results to references."""
    text = "\n".join(PROSE)
    headings = {heading.replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    contents = re.findall(r"\]\(#(\S+?)\)", text)
    assert set(contents) == headings and len(contents) == len(set(contents)) == 11
    for name in re.findall(r"\]\(chapters/(\w+)\.html\)", text):
        assert (HOME / "notebooks" / f"{name}.ipynb").exists(), name
    for path in re.findall(r"\blib/[\w/.]+\w", text):
        assert (HOME / path).exists(), path
    published = pd.read_csv(HOME / "data" / "published.csv")
    references = text[text.index("## 10 References"):]
    assert all(link in references for link in published["link"])
    for method in ("EAGLE.", "EAGLE-3", "DFlash", "DSpark", "FR-Spec"):
        assert method in references, method


def test_published_results_stand_beside_those_of_the_same_method(shown):
    html = next(table for table in shown["table"] if "Spec-Bench" in table)
    published = pd.read_csv(HOME / "data" / "published.csv")
    assert html.count("<tr") == len(published) + 1
    chains = (published["family"] == "chain").sum()
    assert html.count(f"{1 + chain_lengths()[16]:.2f} (16)") == chains, "tokens per round, bonus token included"
