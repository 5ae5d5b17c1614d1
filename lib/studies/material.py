"""The report's section on what was measured: models, prompts, protocols, sample sizes and limits."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from lib.cost import recommendation
from lib.lab import provenance
from lib.lab.findings import Finding, Part, Results
from lib.studies.acceptance import shape_findings, summary

HEAD = """
## What was measured

### Models and prompts
"""

PROTOCOLS = """
### Protocols

**Replay.** Under greedy verification the accepted path of each tree follows the target's own text. The target therefore
continues each prompt once, and the rank of each of its tokens among the drafter's candidates is recorded. These ranks
decide the rounds of any static tree, without a model. The same is exact for top-k children under naive sampling, on
text that was sampled at that temperature. Drafters that remember rejected tokens, and rules that sample children, are
decoded live.

**Two ways to choose rounds**, which are never pooled. In a *continuation*, rounds follow one another after a prompt, as
a user sees them; chat models are measured so. *Real-text starts* begin inside held-out text; base models are measured
so, because their own continuations soon repeat themselves. Stretches of a continuation that repeat themselves are found
and left out. Each round that starts before the length limit is decided to its end.

**Intervals** are 95 %, from resampling prompts, because rounds of one prompt are correlated. With fewer than eight
prompts (or batches of prompts) the value stands without an interval. Trees are chosen on other prompts than those that
judge them.
"""

LIMITS = """
### Limits

A finding holds for the models, the text and the machine that it names. Predicted speeds take measured costs as exact,
so that their intervals contain only the variation between prompts. Times of two machines are never compared. Greedy
text in bfloat16 can differ from the target's own where two logits are nearly equal; in float64 the tests require it to
be the same.
"""


def report(run: Results) -> Iterator[Part]:
    """The section "What was measured"."""
    yield HEAD
    if "models" in run:
        yield models(run["models"])
    yield samples(run)
    yield PROTOCOLS
    yield replace(shape_findings.loops(run["repetition"]), table=None)
    yield LIMITS


def models(rows: pd.DataFrame) -> Finding:
    """The models of the run with their sizes; rows: the table "models"."""
    shown = rows.set_index("model").drop(columns="fingerprint", errors="ignore")
    shown["parameters"] = shown["parameters"].map(lambda count: f"{count / 1e6:,.1f} M")
    return Finding("The models.", "Each draft model shares its target's tokenizer.", table=shown)


def samples(run: Results) -> Finding:
    """By study: target, prompts, kinds of text and rounds that were measured."""
    rows = summary.clean(run["acceptance"])
    one = rows[(rows["family"] == "chain") & (rows["budget"] == rows["budget"].max())]
    coldest = one[one["temperature"] == one["temperature"].min()]
    listed = [_line("acceptance, by replay", f"{target}, {protocol}; by {', '.join(own['drafter'].unique())}", own)
              for (target, protocol), own in coldest.groupby(["target", "protocol"], sort=False)]
    if "drafters" in run:
        own = run["drafters"][run["drafters"]["stretch"] == "before"]
        listed += [_line("drafters, decoded live", target, each) for target, each in own.groupby("target", sort=False)]
    if "rules_live" in run:
        own = run["rules_live"][run["rules_live"]["stretch"] == "before"]
        listed += [_line("rules, decoded live", pair, each) for pair, each in own.groupby("pair", sort=False)]
    if "speed" in run:
        own = run["speed"][run["speed"]["batch"] == run["speed"]["batch"].min()]
        listed += [_line("speed", pair, each) for pair, each in own.groupby("pair", sort=False)]
    path = run.run_dir / recommendation.FILE
    if path.exists():
        made = recommendation.load(path)
        listed.append({"study": "recommendation", "of": made.target, "kinds of text": "",
                       "prompts": f"{made.choosing} choose, {made.judging} judge", "rounds": ""})
    table = pd.DataFrame(listed).set_index("study")
    return Finding("Sample sizes.", f"Machine: {provenance.machines(run.record)}.", table=table)


def _line(study: str, of: str, rows: pd.DataFrame) -> dict:
    return {"study": study, "of": of, "kinds of text": rows["kind"].nunique(), "prompts": rows["prompt"].nunique(),
            "rounds": f"{rows['rounds'].sum():,.0f}"}
