"""The report: what it shows of the committed run, its limits, numbers and links; and of parts of a run."""

import json
import re

import IPython.display
import numpy as np
import pandas as pd
import pytest

from lib.lab import provenance, stats, tables, theme
from lib.lab.chapter import Chapter
from lib.models.registry import SHIPPED
from lib.tests.test_chapters import NOTEBOOKS, REFERENCE, cells_of, draw

HOME, REPORT = provenance.HOME, NOTEBOOKS / "06_report.ipynb"
MOST_WORDS, MOST_FIGURES, MOST_TABLES = 2500, 12, 17  # figures before the appendix
PROSE = [cell.source for cell in cells_of(REPORT) if cell.cell_type == "markdown"]
PARAMETERS = provenance.read(REFERENCE)["parameters"]
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?"


def shown_of(notebook: str, folder, changed: dict[str, pd.DataFrame] = {}) -> dict[str, list]:
    """What the report draws from a notebook's tables: Markdown, frames, tables and other HTML, and names of figures.
    changed: tables in place of those of the committed run.
    """
    shown = {"text": [], "table": [], "html": [], "figure": [], "frame": []}

    def display(shown_object):
        if isinstance(shown_object, pd.DataFrame):
            shown["frame"].append(shown_object)
        text = shown_object._repr_html_() if isinstance(shown_object, pd.DataFrame) else shown_object.data
        frames = re.search('class="frames".*?data-label="(.*?)"', text)
        kind = "text" if isinstance(shown_object, IPython.display.Markdown) else "table" if "<table" in text else "html"
        shown["figure" if frames else kind].append(frames[1] if frames else text)

    names = {path.name.partition(".")[0] for path in (REFERENCE / "tables").glob(f"{notebook}*")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(NOTEBOOKS)
        patch.setattr(IPython.display, "display", display)
        patch.setattr(Chapter, "show", lambda _, name, text: (shown["figure"].append(name), shown["text"].append(text)))
        draw(REPORT, {name: tables.read(REFERENCE, name) for name in names} | changed, folder)
    return shown


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return shown_of("", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def rounds() -> pd.DataFrame:
    """Greedy rounds of the first target and drafter by replay, of texts that do not loop."""
    texts = tables.read(REFERENCE, "02_texts")[["target", "backend", "temperature", "prompt", "loops"]]
    rows = tables.read(REFERENCE, "02_rounds").merge(texts)
    first = (rows[["target", "drafter"]] == rows[["target", "drafter"]].iloc[0]).all(axis=1)
    return rows[first & (rows["temperature"] == 0) & ~rows["loops"]]


def near(printed: str, value: float) -> bool:
    """Whether a number as it is printed is this value, up to its last digit."""
    return abs(float(printed) - value) <= 0.500001 * 10.0 ** -len(printed.partition(".")[2])


def resampled(top: pd.Series, bottom: pd.Series) -> np.ndarray:
    """The 95 % interval of sum(top) / sum(bottom) over prompts [P] by an ordinary bootstrap."""
    weights = np.random.default_rng(1).multinomial(len(top), np.full(len(top), 1 / len(top)), 4000)
    return np.quantile((weights @ top.to_numpy()) / (weights @ bottom.to_numpy()), (0.025, 0.975))


def said(sentence: str, text: str) -> list[tuple[str, ...]]:
    """What stands in the places {} of a sentence, each time that a text has it; marks of Markdown do not count."""
    pattern = re.escape(sentence).replace(r"\{\}", r"(\S+?)").replace(r"\ ", r"\s+")
    assert (found := re.findall(pattern, re.sub("[*`]", "", text))), sentence
    return found


def chapter_text(number: str) -> str:
    """The sentences that an executed chapter of the committed run has computed."""
    (path,) = (NOTEBOOKS / "executed").glob(f"{number}_*.ipynb")
    outputs = [output.get("data", {}) for cell in cells_of(path) for output in cell.get("outputs", [])]
    return "\n".join(data["text/markdown"] for data in outputs if "text/markdown" in data)


def test_the_report_is_short(shown):
    prose = re.sub(r"```.*?```|## 9 References.*?(?=## 10)", "", "\n".join(PROSE + shown["text"]), flags=re.DOTALL)
    words = re.sub(r"\]\(\S+?\)", "]", TABLE_ROW.sub("", prose)).split()
    assert len(words) <= MOST_WORDS, f"{len(words)} words"
    appendix = "\n".join(cell.source for cell in cells_of(REPORT)).partition("\n## Appendix A")[2]
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
    answers, costs = (tables.read(REFERENCE, f"05_{name}") for name in ("answers", "costs"))
    paired = answers[(answers["role"] == "tree over chain") & (answers["backend"] == answers["backend"].iloc[0])]
    assert all(f"{row.note} (n = {row.n}, {row.raced} raced)" in trees for row in paired.itertuples())

    most, *tree, longest, chain, low, high, short, reached = re.search(
        rf"With (\d+) nodes, .+? \*\*{INTERVAL}\*\* draft tokens per round; a chain of (\d+) accepts "
        rf"\*\*{INTERVAL}\*\*, and one of (\d+) reaches (\d+)%", grows).groups()
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

    costs = costs[costs["backend"] == answers["backend"].iloc[0]].set_index(["batch", "method", "nodes"])["ms"]
    nodes = int(re.search(r"checks (\d+) draft tokens", price)[1])
    for printed, batch in re.findall(rf"\*\*({NUMBER})\*\* plain steps at batch (\d+)", price):
        assert near(printed, costs[int(batch), "forced", nodes] / costs[int(batch), "plain", 0])


def test_the_time_of_attention_is_that_of_its_tables(shown):
    """Beside others and the roofline, its growth, and the law of three terms by least squares of this test's own."""
    rows, text = tables.read(REFERENCE, "03_attention").query("n > 0"), "\n".join(shown["text"])
    warm = rows[~rows["cold"]].pivot(index=["dtype", "batch", "prefix", "draft"], columns="alternative", values="ms")
    one_call = next(text for text in shown["text"] if text.startswith("Compared with one call"))
    for printed, name, count in re.findall(rf"\*\*({NUMBER})\*\* times as long (.+?) \(n = (\d+) settings\)", one_call):
        ratios = (warm[name] / warm["auto"]).dropna().drop(1, level="draft")
        assert near(printed, np.exp(np.log(ratios).mean())) and int(count) == len(ratios), name
    cold = rows.query("cold and prefix >= 2048 and draft >= 8 and alternative != 'dense mask'")
    reached = (cold["least_ms"] / cold["ms"]).groupby([cold["dtype"], cold["prefix"], cold["draft"]]).max()
    for share, dtype, count in said("{}% in {} (median, n = {} settings)", text):
        assert near(share, 100 * reached[dtype].median()) and int(count) == len(reached[dtype])

    rows, laws = rows.query("not cold and alternative == 'auto'"), {}
    for first, last, what, mean, count in re.findall(
            rf"([\d,]+) to ([\d,]+) (\w+)[\w ]*: \*\*({NUMBER})\*\* times as long \(.*?n = (\d+)\)", text):
        axis = {"sequences": "batch", "tokens": "prefix", "nodes": "draft"}[what]
        ends = [rows[rows[axis] == int(end.replace(",", ""))] for end in (first, last)]
        pairs = ends[0].merge(ends[1], on=list({"dtype", "batch", "prefix", "draft"} - {axis}))
        assert near(mean, np.exp(np.log(pairs["ms_y"] / pairs["ms_x"]).mean())) and int(count) == len(pairs), axis
    shown_laws = next(frame for frame in shown["frame"] if "ns per key" in frame)
    for dtype, part in rows.groupby("dtype"):
        keys = (part["batch"] * (part["prefix"] + part["draft"])).to_numpy() / 1e6
        design = np.stack([np.ones(len(part)), keys, keys * part["draft"]], axis=1) / part[["ms"]].to_numpy()
        laws[dtype] = terms = np.linalg.lstsq(design, np.ones(len(part)), rcond=None)[0]
        *printed, error, _, count = shown_laws.loc[dtype]
        assert np.allclose(printed, terms, atol=0.00501) and terms.min() >= 0 and count == len(part), dtype
        assert error == f"{np.median(abs(design @ terms - 1)):.0%}"

    (nodes, backend, ms, start), = said("check of {} draft tokens by {} at batch 1 ({} ms, taken to be after {} ", text)
    costs = tables.read(REFERENCE, "05_costs").query("backend == @backend and batch == 1 and method == 'forced'")
    check, prompt = costs.set_index("nodes")["ms"][int(nodes)], tables.read(REFERENCE, "05_prompts")["tokens"].median()
    assert near(ms, check) and near(start, prompt)
    config = json.loads((SHIPPED / "sizes" / tables.read(REFERENCE, "05_texts")["target"].iloc[0] / "config.json").read_text())
    timed, heads = PARAMETERS["03_attention_timing"], config["num_attention_heads"]
    width = config["num_hidden_layers"] * config["hidden_size"] / heads / timed["head_dim"] / 1e6
    _, per_key, per_pair = width * laws[backend.partition(":")[2]]
    per_key *= config["num_key_value_heads"] / timed["kv_heads"]
    per_token = per_key + (int(nodes) + 1) * per_pair * heads / timed["query_heads"]
    for share, tokens in re.findall(r"\*\*(\d+)%\*\* after ([\d,]+)", text):
        more = per_token * (int(tokens.replace(",", "")) - prompt)
        assert near(share, 100 * (per_token * (prompt + int(nodes) + 1) + more) / (check + more)), tokens


def test_the_tables_show_rate_and_length_of_every_pair_shape_and_budget(shown, rounds):
    """In the first, of the first pair, each is a ratio of sums over prompts; so it is beside published chains."""
    rows = tables.read(REFERENCE, "02_rounds").query("temperature == 0 and drafter != 'random'")
    named = rows["shape"].str.contains(r"^chain:\d+$|@\d+$")
    count = len(rows.loc[named, ["target", "drafter", "shape"]].drop_duplicates())
    every, intervals = (next(table for table in shown["table"] if summary in table)
                        for summary in ("Every shape, budget and pair", "The same with intervals"))
    assert len(re.findall(r"<td>\d+\.\d\d \(\d+%\)</td>", every)) == count
    assert len(re.findall(rf"<td>{INTERVAL}; {INTERVAL} %</td>", intervals)) == count
    cells = {(family, size): cell for family, row in shown["frame"][0].iterrows() for size, cell in row.items() if cell}
    sums_of_shapes = rounds[rounds["shape"].isin(rows.loc[named, "shape"])].groupby("shape")
    for shape, sums in sums_of_shapes[["accepted", "rounds", "drafted"]].sum().iterrows():
        family, _, size = shape.rpartition("@" if "@" in shape else ":")
        printed = f"{sums['accepted'] / sums['rounds']:.2f} ({sums['accepted'] / sums['drafted']:.0%})"
        assert cells.pop((theme.shown(family), int(size))) == printed, shape
    assert not cells
    published = next(table for table in shown["table"] if "Spec-Bench" in table)
    assert published.count("<tr") == len(pd.read_csv(HOME / "data" / "published.csv")) + 1
    accepted, drafted, count = rounds[rounds["shape"] == "chain:3"][["accepted", "drafted", "rounds"]].sum()
    assert f"chain:3: rate {accepted / drafted:.2f}; τ {1 + accepted / count:.2f}; " in published


def test_costs_predictions_races_drafters_and_formats_follow_from_their_tables(shown):
    answers, costs, timed, prompts, texts, rounds = (tables.read(REFERENCE, f"05_{name}") for name in (
        "answers", "costs", "timed", "prompts", "texts", "rounds"))
    report, chapter, reference = "\n".join(shown["text"]), chapter_text("05"), answers["backend"].iloc[0]
    of_step = costs.set_index(["backend", "batch", "method", "nodes"])["ms"].sort_index()
    for backend, batch, flat, ms, _, most, last in said(
            "{}, batch {}: up to {} draft tokens cost at most 10 % more than a plain step ({} ms); the steepest rise "
            "ends at {} tokens; {} cost {} steps", chapter):
        (plain,), checks = (of_step[backend, int(batch), method] for method in ("plain", "forced"))
        assert near(ms, plain) and int(most) == checks.index.max() and near(last, checks.iloc[-1] / plain)
        assert int(flat) == max(checks.index[checks <= 1.1 * plain], default=0)

    choosing = prompts.loc[prompts["part"] == "choosing", ["prompt"]]
    chosen = rounds.merge(texts.query("not loops")[["backend", "prompt"]]).merge(choosing)
    sums = chosen.query("backend == @reference and shape == 'chain:4'").groupby("drafter")[["accepted", "rounds"]].sum()
    both = costs.query("backend == @reference and batch == 1 and shape == 'chain:4'").merge(
        (sums["accepted"] / sums["rounds"]).rename("length"), left_on="method", right_index=True)
    listed = chapter.partition("On the line: ")[2].partition(" (n")[0].replace("`", "").split(", ")
    assert {*listed} == {row.method for row in both.itertuples()
                         if not ((both["ms"] <= row.ms) & (both["length"] > row.length)).any()}

    turn, logs = ["backend", "batch", "part", "call", "turn"], {}
    for spent, seconds in {"whole": timed["seconds"], "after": timed["seconds"] - timed["prefill"]}.items():
        pace = timed.assign(pace=np.log(timed["tokens"] / seconds.where(seconds > 0)))
        pace = pace.pivot(index=turn, columns="way", values="pace")
        logs[spent] = pace.sub(pace["plain"], axis=0).stack().xs("judging", level="part")
    foreseen = np.log(timed.set_index([*turn, "way"])["predicted"].dropna()).xs("judging", level="part")
    errors = 100 * np.expm1((foreseen - logs["after"]).groupby(["backend", "batch", "way"]).mean())
    (off, count, signed), = said("predictions are off by {}% (median of absolute errors, n = {} raced ways of all "
                                 "decoders); the signed median is {}%", report)
    assert near(off, errors.abs().median()) and int(count) == errors.count() and near(signed, errors.median())
    whole = logs["whole"].groupby(["backend", "batch", "way"]).mean()
    winners = answers.query("backend == @reference and role == 'recommended'").set_index("batch")["way"]
    for speed, batch in re.findall(r"([\d.]+) times as fast at batch (\d+)", report):
        assert near(speed, np.exp(whole[reference, int(batch), winners[int(batch)]])), batch

    formats = next(frame for frame in shown["frame"] if "tokens per second" in frame)
    for backend, row in formats.iterrows():
        (milliseconds,) = costs.query("backend == @backend and batch == 1 and method == 'plain'")["ms"]
        speed = answers.query("backend == @backend and batch == 1 and role == 'recommended'")["value"].item()
        assert near(str(row["ms per plain step"]), milliseconds)
        assert near(str(row["tokens per second"]), 1000 * speed / milliseconds), backend


def test_rules_follow_from_their_tables():
    exact, proof = (tables.read(REFERENCE, f"04_rules_{name}") for name in ("exact", "proof"))
    text = chapter_text("04")
    is_lossy = proof["rule"].isin(["typical", "stochastic", "deterministic", "conservative", "threshold"])
    worst = proof.groupby([is_lossy, "rule", "proposal"])["worst"].max()
    (largest, *ends), = said("lossless rule is {}, which is rounding; lossy ones are wrong by {} to {} at worst", text)
    assert f"{worst[False].max():.0e}" == largest and all(map(near, ends, (worst[True].min(), worst[True].max())))

    exact["is_chain"], settings = exact["shape"].str.startswith("chain"), PARAMETERS["04_rules"]
    compared = exact[exact["agreement"].isin(settings["agreements"])]
    tokens = 1 + compared.pivot_table(index=["is_chain", "shape", "agreement", "temperature"],
                                      columns=["rule", "proposal"], values="accepted")
    more = 100 * (tokens.div(tokens["multi_step", "iid"], axis=0) - 1)
    ends, = said("Without replacement a round yields {} % to {} % more tokens", text)
    without = more["without_replacement", "without_replacement"].dropna()[False]
    assert all(map(near, ends, (without.min(), without.max())))
    (length, most), = said("On chains of {} tokens deciding by path adds up to {} % tokens per round", text)
    assert near(most, more["block", "iid"].xs(f"chain:{length}", level="shape").max())

    shapes = [settings["exact_shapes"][0], settings["exact_shapes"][-1]]
    rows = exact[(exact["agreement"] == settings["agreement"]) & exact["shape"].isin(shapes)]
    means = rows.query("proposal == 'without_replacement'").groupby("rule")[["accepted", "distance"]].mean()
    listed = text.partition("all temperatures): ")[2].partition(".\n")[0]
    for rule, percent, wrong in said("{} {}%, wrong by {};", f"{listed};"):
        assert near(percent, 100 * (means.loc[rule, "accepted"] / means.loc["traversal", "accepted"] - 1)), rule
        assert near(wrong, means.loc[rule, "distance"]), rule


def test_links_lead_somewhere(shown):
    """Contents to headings, code to files, figures to pictures, papers to references."""
    text = "\n".join(PROSE)
    headings = {heading.replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    contents = re.findall(r"\]\(#(\S+?)\)", text)
    assert set(contents) == headings and len(contents) == len(headings)
    for path in re.findall(r"\blib/[\w/.]+\w", text):
        assert (HOME / path).exists(), path
    for name in (name for name in shown["figure"] if re.match(r"\d\d_", name)):
        (notebook,) = NOTEBOOKS.glob(f"{name[:2]}_*.ipynb")
        assert f'\\"{name[3:]}\\")' in notebook.read_text(encoding="utf-8"), f"no chapter saves {name}"
    references = text[text.index("## 9 References"):]
    assert all(link in references for link in pd.read_csv(HOME / "data" / "published.csv")["link"].dropna())


@pytest.mark.parametrize("notebook, lacking", [("01", 4), ("02", 3), ("03", 4), ("05", 1)])
def test_a_run_of_one_notebook_has_a_report(notebook, lacking, tmp_path):
    assert len(re.findall("not measured|not compared", shown_of(notebook, tmp_path)["text"][0])) == lacking


def test_what_is_predicted_for_another_machine_is_not_called_measured(tmp_path):
    answers = tables.read(REFERENCE, "05_answers").assign(raced=0, whole=np.nan)
    answers["backend"] += " (elsewhere)"
    changed = {"05_answers": answers, "05_quality": tables.read(REFERENCE, "05_quality")[:0]}
    table, _, claims = shown_of("05", tmp_path, changed)["text"][0].partition("*Speed over plain")
    assert "(0) |" in table and "(0): predicted" in claims and "and the costs of elsewhere" in claims
    assert not any(word in claims for word in ("AVX", "With the prefill", "an approximate interval"))
