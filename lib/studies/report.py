"""The report: the answer, the parts of all studies in the order of `STUDIES`, then what follows from them.

Each study's `findings` module has `report(run, ask, rng)`, which yields the study's sections: prose as Markdown
strings, findings, and tables without a caption. A study also answers questions of the section "What follows" by
yielding `Follows`; those are shown after the last study, and computed only then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pandas as pd

from lib.lab import provenance, tables
from lib.lab.findings import Finding, Part, Results
from lib.studies import STUDIES
from lib.studies.acceptance import summary
from lib.studies.advice import answer

# The order of the questions in "What follows"; a question that is not listed comes after these.
QUESTIONS = ("How deep, how wide?", "How many nodes?", "Which drafter?", "Which text?", "Who drafts?", "Which rule?",
             "How fast?")


@dataclass(frozen=True)
class Ask:
    """What the report shows: the reader's choices, checked against the run by `Ask.of`.

    pair: "target/drafter", the pair of the headlines, one of the run's. budget: draft nodes at which shapes, kinds of
    text and pairs are compared, one of the run's budgets. seed: of resampling. reference_dir: the committed run.
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
    def of(cls, run: Results, *, pair: str = "", budget: int = 16, **others) -> "Ask":
        """The choices for a run. Without a pair, the first one that the run was made for; in place of a budget that the
        run lacks, the middle one of those it has. ValueError for a pair that the run lacks.
        """
        rows, first = run["acceptance"], run["rank"].iloc[0]  # ranks are tabled for the first pair of the parameters
        pairs, budgets = list((rows["target"] + "/" + rows["drafter"]).unique()), sorted(rows["budget"].unique())
        pair = pair or f"{first.target}/{first.drafter}"
        if pair not in pairs:
            raise ValueError(f"pair is {pair!r}, which this run does not have; choose one of {', '.join(pairs)}")
        return cls(pair, int(budget if budget in budgets else budgets[len(budgets) // 2]), **others)


@dataclass(frozen=True)
class Follows:
    """One study's answer to a question of the section "What follows": answer() gives sentences in Markdown.

    The answers of several studies to one question form one paragraph. `answer` is called after all studies are shown,
    so that its resampling changes none of their intervals.
    """

    question: str
    answer: Callable[[], str]


def parts(run: Results, ask: Ask, rng: np.random.Generator) -> Iterator[Part]:
    """All parts of the report in order: the answer, the studies' sections, and what follows from them."""
    yield from answer.opening(run)
    answers: list[Follows] = []
    for study in STUDIES:
        for part in import_module(f"lib.studies.{study}.findings").report(run, ask, rng):
            if isinstance(part, Follows):
                answers.append(part)
            else:
                yield part
    yield what_follows(answers)


def what_follows(answers: list[Follows]) -> str:
    """The section "What follows": a paragraph for each question."""
    questions = dict.fromkeys([*QUESTIONS, *(each.question for each in answers)])
    given = [question for question in questions if any(each.question == question for each in answers)]
    paragraphs = [" ".join([f"**{question}**", *(each.answer() for each in answers if each.question == question)])
                  for question in given]
    return "\n\n".join(["## 9 What follows", *paragraphs])


# -------------------------------------------------------------------------------------------------- the last sections


def beside_reference(run: Results, reference: Results, ask: Ask, rng: np.random.Generator) -> Finding:
    """Acceptance lengths of the chain and the optimal tree in this run and in the reference, where both have the
    setting.
    """
    rows, others = (summary.clean(each["acceptance"]) for each in (run, reference))
    own = summary.lengths(rows, np.random.default_rng(ask.seed))  # as in the sections above
    both = own.merge(summary.lengths(others, rng), on=summary.SETTING, suffixes=(" (this run)", " (reference)"))
    both = both.drop(columns=["n_rounds (this run)", "n_rounds (reference)"])
    both = both[(both["budget"] == ask.budget) & both["family"].isin(["chain", "optimal"])]
    overlap = both["low (this run)"] <= both["high (reference)"]
    overlap &= both["low (reference)"] <= both["high (this run)"]
    return Finding("This run and the reference:", f"in {overlap.sum()} of {len(both)} settings that both have, the "
                   "intervals overlap.", table=both.set_index(summary.SETTING).round(2))


def facts(run: Results, ask: Ask) -> pd.DataFrame:
    """What made the run: commit, profile, machine, versions, prompts and seed."""
    record = run.record
    judged = summary.headline(summary.clean(run["acceptance"]), ask.pair)
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "transformers", "pandas"))
    return pd.Series({
        "commit": record["commit"], "profile": record["profile"], "machine": provenance.machines(record),
        "versions": versions, "prompts judged": judged["prompt"].nunique(),
        "seed": record["parameters"]["02_acceptance"]["seed"]}, name="this run").to_frame()


def columns(run: Results) -> str:
    """What each column of the run's tables means, as folded HTML."""
    names = sorted({path.name.partition(".")[0] for path in (run.run_dir / "tables").glob("*.csv*")})
    meanings = tables.dictionary(names).drop(columns=["kind", "key"]).set_index(["table", "column"])
    with pd.option_context("display.max_colwidth", None):
        listed = meanings.to_html()
    return f"<details><summary>What each column of the {len(names)} tables means</summary>{listed}</details>"
