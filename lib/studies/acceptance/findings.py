"""The acceptance study in the report: the section "Acceptance", and its appendices.

`main_findings` has the findings of the section, `shape_findings` those of the appendices.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.lab import provenance
from lib.lab.findings import Part, Results
from lib.studies.acceptance import main_findings, shape_findings, summary
from lib.studies.acceptance.shape_findings import Shapes

if TYPE_CHECKING:
    from lib.studies.report import Ask

LOSSES = provenance.HOME / "data" / "models" / "losses.csv"  # of the shipped family on held-out text

ACCEPTANCE = """
## Acceptance

How many draft tokens does a round accept, and what decides it? Acceptance is not speed: the next section adds costs.

### By budget
"""

KINDS = """
### By kind of text

A chain of the recommended length, or of the nearest that was measured, beside the largest tree.
"""

OTHERS = """
### By temperature and by pair
"""

SHAPES = """
## All shapes

Each family of shapes at each budget. *Sparse* (Medusa) uses acceptance by rank and depth; the names of the others are
those of the drawings. A node is darker the more often it was accepted (by the square root, so that rare nodes stay
visible).
"""

CHOICE = """
## How stable the choice of a tree is

A tree is grown from 1, 2, 4, … of the choosing prompts and judged on the others, and compared prompt by prompt with the
tree of all choosing prompts.
"""

LIVE = """
## Sampled children

Replay covers top-k children. Sampled children were decoded live on the same prompts. A lossless rule does not change
the target's text, so its expected acceptance can also be computed from recorded text.
"""


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Acceptance": by budget, kind of text, temperature and pair."""
    shapes = _shapes(run, ask, rng)
    yield ACCEPTANCE
    grown = summary.clean(run["growth"])
    yield main_findings.by_budget(shapes, summary.headline(grown, ask.pair) if len(grown) else grown, rng)
    yield KINDS
    yield main_findings.by_kind(shapes, rng)
    yield OTHERS
    yield main_findings.by_temperature_and_pair(shapes)


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """All shapes, the stability of a choice, and live decoding."""
    shapes = _shapes(run, ask, rng)
    yield SHAPES
    yield shape_findings.drawn_shapes(shapes)
    yield shape_findings.over_budget(shapes)
    yield shape_findings.by_depth(shapes, rng)
    yield shape_findings.coverage(summary.clean(run["rank"]), shapes.pairs, rng)
    yield shape_findings.agreement(summary.clean(run["rank"]), rng)
    if "vocabulary" in run and (run["vocabulary"]["target"] == ask.target).any():
        yield shape_findings.vocabulary(summary.where(run["vocabulary"], target=ask.target), rng)
    yield CHOICE
    by_text = summary.by_text(run["choices"], rng)
    if (by_text["pair"] == ask.pair).any():
        yield shape_findings.text_needed(by_text[by_text["pair"] == ask.pair])
    yield shape_findings.against_optimal(shapes, rng)
    if len(run["expected"]):
        yield LIVE
        yield shape_findings.expected_and_live(run["expected"], run["live"], rng)


def _shapes(run: Results, ask: "Ask", rng: np.random.Generator) -> Shapes:
    """The shapes of the chosen pair, without the kinds of text that a shipped target has memorised."""
    return Shapes(run, ask.pair, ask.budget, rng, left_out=summary.memorised(pd.read_csv(LOSSES), ask.target))
