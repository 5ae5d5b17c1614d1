"""The report: the answer, background, what was measured, the sections of all studies, published numbers, appendices.

Each study's `findings` module has `report(run, ask, rng)`, which yields its sections of the main part, or nothing, and
`appendix(run, ask, rng)`, which yields its appendices: prose as Markdown strings, findings, and tables without a
caption. A section begins with a string of the form "## Title". Sections and appendices are numbered here and listed in
a table of contents.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from string import ascii_uppercase

import numpy as np
import pandas as pd

from lib.cost import recommendation
from lib.lab import atomic_file, processor, provenance, tables
from lib.lab.findings import Finding, Part, Results
from lib.studies import STUDIES, material, published
from lib.studies.acceptance import summary
from lib.studies.advice import answer

NOTEBOOKS = {"acceptance": "02_acceptance", "attention": "03_attention_timing", "rules": "04_rules",
             "drafters": "05_drafters", "advice": "06_advice", "speed": "07_speed", "served": "08_served"}
LEAST = 4  # nodes, below which most families of trees are one tree
HEADING = re.compile(r"^(##|###) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Ask:
    """What the report shows: the reader's choices, checked against the run by `Ask.of`.

    pair: "target/drafter", the pair of the acceptance sections, one of the run's. budget: draft nodes at which kinds of
    text and temperatures are compared, one of the run's budgets. seed: of resampling. reference_dir: the committed run.
    """

    pair: str
    budget: int
    seed: int = 0
    reference_dir: str = ""

    @property
    def target(self) -> str:
        """The name of the pair's target."""
        return self.pair.partition("/")[0]

    @property
    def drafter(self) -> str:
        """The name of the pair's drafter."""
        return self.pair.partition("/")[2]

    @classmethod
    def of(cls, run: Results, *, pair: str = "", budget: int = 0, **others) -> "Ask":
        """The choices for a run. Without a pair, the first one that the run was made for. Without a budget, that of the
        recommendation at the smallest batch, if trees of so many nodes differ. In place of a budget that the run lacks,
        its nearest. ValueError for a pair that the run lacks.
        """
        rows, first = run["acceptance"], run["rank"].iloc[0]  # ranks are tabled for the first pair of the parameters
        pairs, budgets = list((rows["target"] + "/" + rows["drafter"]).unique()), sorted(rows["budget"].unique())
        pair = pair or f"{first.target}/{first.drafter}"
        if pair not in pairs:
            raise ValueError(f"pair is {pair!r}, which this run does not have; choose one of {', '.join(pairs)}")
        wanted = budget or _recommended_budget(run) or budgets[len(budgets) // 2]
        return cls(pair, int(min(budgets, key=lambda own: abs(np.log2(own / wanted)))), **others)


def _recommended_budget(run: Results) -> int:
    """The budget of the recommendation at the smallest batch; 0 without one, and below LEAST."""
    path = run.run_dir / recommendation.FILE
    budget = recommendation.load(path).by_batch[0].budget if path.exists() else 0
    return budget if budget >= LEAST else 0


def parts(run: Results, ask: Ask, rng: np.random.Generator) -> Iterator[Part]:
    """All parts of the report in order, with numbered headings; the table of contents follows the answer."""
    studies = {study: import_module(f"lib.studies.{study}.findings") for study in STUDIES}
    opening = list(answer.opening(run, np.random.default_rng(ask.seed)))
    main = [*material.report(run)]
    main += [part for name, study in studies.items() for part in on_its_machine(study.report(run, ask, rng), name, run)]
    main += [*published.report(run, ask, rng)]
    appended = [part for name, study in studies.items()
                for part in on_its_machine(study.appendix(run, ask, rng), name, run)]
    appended += [*made_by(run, ask, rng)]
    numbered = [*with_numbers(main, map(str, count(1))), *with_numbers(appended, iter(ascii_uppercase))]
    yield from opening
    yield contents(numbered)
    yield from numbered


def on_its_machine(shown: Iterable[Part], study: str, run: Results) -> Iterator[Part]:
    """The parts of a study; beneath their heading its machine, where the recommendation is that of another one."""
    stages = [NOTEBOOKS[study], NOTEBOOKS["advice"]]
    own, recommended = (processor.title(provenance.machine_of(run.record, stage)) if stage in run.record["stages"]
                        else "" for stage in stages)
    for at, part in enumerate(shown):
        yield part
        if at == 0 and own and recommended and own != recommended:
            yield f"*Measured on {own}, while the recommendation is that of {recommended}.*"


def with_numbers(shown: Iterable[Part], names: Iterator[str]) -> Iterator[Part]:
    """The parts, with "## Title" as "## 1 Title" and "### Title" as "### 1.1 Title"."""
    name, below = "", count(1)

    def number(heading: re.Match) -> str:
        nonlocal name, below
        if heading[1] == "##":
            name, below = next(names), count(1)
            return f"## {name} {heading[2]}"
        return f"### {name}.{next(below)} {heading[2]}"

    for part in shown:
        yield HEADING.sub(number, part) if isinstance(part, str) else part


def contents(shown: Iterable[Part]) -> str:
    """The table of contents: a link to each "## " heading."""
    titles = [heading[2] for part in shown if isinstance(part, str) for heading in HEADING.finditer(part)
              if heading[1] == "##"]
    listed = [f"[{title}](#{title.replace(' ', '-')})" for title in titles]
    main = [link for link in listed if link[1].isdigit()]
    return (f"**Contents** {' · '.join(main)}\n\n**Appendices** "
            f"{' · '.join(link for link in listed if link not in main)}")


# ------------------------------------------------------------------------------------------------------ the last pages


def made_by(run: Results, ask: Ask, rng: np.random.Generator) -> Iterator[Part]:
    """What made the run, and a run that is not the reference beside the reference."""
    yield ("## What made this run\n\nThe run's folder also holds `run.json`, with all parameters and the digests of "
           "models and prompts, and `columns.csv`, with the meaning of each column of its tables.")
    yield facts(run)
    reference = Path(ask.reference_dir)
    another = reference.resolve() != run.run_dir.resolve() and "--reference" not in run.record["command"]
    if ask.reference_dir and another:
        yield "### This run beside the reference"
        yield beside_reference(run, Results(reference), ask, rng)


def beside_reference(run: Results, reference: Results, ask: Ask, rng: np.random.Generator) -> Finding:
    """Acceptance lengths of chain and Sequoia's tree here and in the reference, where both have the setting."""
    rows, others = (summary.clean(each["acceptance"]) for each in (run, reference))
    own = summary.lengths(rows, np.random.default_rng(ask.seed))
    both = own.merge(summary.lengths(others, rng), on=summary.SETTING, suffixes=(" (this run)", " (reference)"))
    both = both.drop(columns=["n_rounds (this run)", "n_rounds (reference)"])
    both = both[(both["budget"] == ask.budget) & both["family"].isin(["chain", "optimal"])]
    known = both[["low (this run)", "low (reference)"]].notna().all(axis=1)
    overlap = known & (both["low (this run)"] <= both["high (reference)"])
    overlap &= both["low (reference)"] <= both["high (this run)"]
    return Finding("This run and the reference:", f"the intervals overlap in {overlap.sum()} of {known.sum()} settings "
                   "that both have with an interval.", table=both.set_index(summary.SETTING).round(2))


def facts(run: Results) -> pd.DataFrame:
    """What made the run: commits, profile, machine, versions and seed."""
    record = run.record
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "transformers", "pandas"))
    seeds = {str(seed) for own in record["seeds"].values() for seed in own.values()}
    by_commit: dict[str, list[str]] = {}
    for stage, own in sorted(record["stages"].items()):
        by_commit.setdefault(own["commit"], []).append(stage[:2])
    commits = "; ".join(f"{commit[:12]} (notebooks {', '.join(stages)})" for commit, stages in by_commit.items())
    return pd.Series({
        "commit": commits, "profile": record["profile"], "machine": provenance.machines(record),
        "versions": versions, "seeds": ", ".join(sorted(seeds))}, name="this run").to_frame()


def write_columns(run: Results) -> None:
    """Writes columns.csv, the meaning of each column of the run's tables, into the run's folder."""
    names = sorted({path.name.partition(".")[0] for path in (run.run_dir / "tables").glob("*.csv*")})
    declared = pd.read_csv(tables.DECLARED, keep_default_na=False)
    text = declared[declared["table"].isin(names) & (declared["column"] != "")].to_csv(index=False)
    atomic_file.replace(run.run_dir / "columns.csv", text.encode())
