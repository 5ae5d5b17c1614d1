"""The report's last section: tokens per forward pass and speedups that papers published, beside those of this run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.lab.findings import Finding, Part, Results
from lib.studies.acceptance import summary
from lib.studies.drafters import summary as drafting

if TYPE_CHECKING:
    from lib.studies.report import Ask

TEXT = """
## Beside published numbers

These numbers depend on the pair, the text, the hardware and the budget besides the method. A row of this run has the
method of the rows above it on another pair, so that their difference is not the method's alone. Where a field is empty,
the paper does not state it. τ counts the bonus token.
"""

SPEC_BENCH = "Xia et al. 2024, Spec-Bench leaderboard"
VICUNA = "Vicuna-7B, Spec-Bench's prompts, RTX 3090"


@dataclass(frozen=True)
class Claim:
    """One published result: method, source, setting, budget in draft nodes, τ and speedup; None where not given."""

    method: str
    source: str
    setting: str
    budget: int | None
    tau: float | None
    speedup: str


CLAIMS = (
    Claim("chain", SPEC_BENCH, f"{VICUNA}; Vicuna-68M drafts", None, 2.29, "1.83"),
    Claim("chain", "Miao et al. 2024, SpecInfer", "LLaMA-7B, LLaMA-68M drafts, Alpaca", 8, 2.95, ""),
    Claim("expansion 1,1,k,1,...", "Miao et al. 2024, SpecInfer", "as above, k = 5", 32, 3.43, ""),
    Claim("Sequoia (static)", "Chen et al. 2024, Sequoia", "Llama2-7B, A100", None, None, "up to 4.04"),
    Claim("Sequoia (static)", "Xiong et al. 2024, DySpec", "LLaMA-7B, LLaMA-68M drafts, C4", 64, 4.99, ""),
    Claim("DySpec", "Xiong et al. 2024, DySpec", "LLaMA-7B, LLaMA-68M drafts, C4", 64, 5.25, ""),
    Claim("OPT-Tree", "Wang et al. 2025, OPT-Tree", "LLaMA-2-7B, LLaMA-68M drafts, MT-bench", None, 2.58,
          "0.89 to 1.01"),
    Claim("EAGLE", SPEC_BENCH, VICUNA, None, 3.57, "2.16"),
    Claim("EAGLE-2", SPEC_BENCH, VICUNA, None, 4.36, "2.25"),
    Claim("EAGLE-3", "JetSpec 2026, arXiv 2606.18394", "Qwen3-8B, MATH-500", 256, 4.13, "2.36"),
    Claim("JetSpec", "JetSpec 2026, arXiv 2606.18394", "Qwen3-8B, MATH-500", 256, 10.76, "9.64"),
    Claim("Medusa", SPEC_BENCH, VICUNA, None, 2.32, "1.44"),
    Claim("prompt look-up", SPEC_BENCH, VICUNA, None, 1.74, "1.55"),
)
# method -> family of static trees or growth rule of the acceptance study, kind of drafter of the drafter study
FAMILIES = {"chain": "chain", "expansion 1,1,k,1,...": "expansion:1,1,3,1,1,1,1,1",
            "Sequoia (static)": "optimal", "DySpec": "dyspec", "OPT-Tree": "opttree", "EAGLE-2": "eagle2"}
DRAFTERS = {"chain": "model", "EAGLE": "eagle", "EAGLE-3": "eagle3", "JetSpec": "jetspec", "Medusa": "medusa",
            "prompt look-up": "lookup"}
BUDGETS = (4, 16, 64)  # at which τ is given, where the run has them


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Beside published numbers"."""
    yield TEXT
    measured = pd.concat([replayed(run, ask.pair), decoded(run, rng)], ignore_index=True)
    yield beside(measured)


def beside(measured: pd.DataFrame) -> Finding:
    """Published results, each followed by those of this run with the same method; measured: `replayed`, `decoded`."""
    methods, rows = list(dict.fromkeys(claim.method for claim in CLAIMS)), []
    for method in methods:
        rows += [{"method": method, "from": claim.source, "setting": claim.setting, "τ (budget)": _tau(claim),
                  "speedup": claim.speedup} for claim in CLAIMS if claim.method == method]
        rows += measured[measured["method"] == method].assign(**{"from": "this run"}).to_dict("records")
    count = measured["method"].nunique()
    return Finding(f"This run has a row for {count} of {len(methods)} published methods.", "Its texts and machine are "
                   "those of *Sample sizes*. Speedups of different machines are not comparable.",
                   table=pd.DataFrame(rows).set_index(["method", "from"])[["setting", "τ (budget)", "speedup"]])


def replayed(run: Results, pair: str) -> pd.DataFrame:
    """τ of a pair's static and grown trees on greedy continuations, one row for each method."""
    kept = ["family", "budget", "accepted", "rounds"]
    rows = summary.headline(summary.clean(run["acceptance"]), pair)[kept]
    if "growth" in run:
        rows = pd.concat([rows, summary.headline(summary.clean(run["growth"]), pair)[kept]])
    sums = rows[rows["budget"].isin(BUDGETS)].groupby(["family", "budget"])[["accepted", "rounds"]].sum()
    length, found = (sums["accepted"] / sums["rounds"]).unstack(), []
    for method, family in FAMILIES.items():
        for name in (name for name in length.index if name == family or name.startswith(f"{family}:")):
            tau = ", ".join(f"{1 + value:.2f} ({budget})" for budget, value in length.loc[name].dropna().items())
            found.append({"method": method, "setting": f"{pair}, {name}, replay", "τ (budget)": tau, "speedup": ""})
    return pd.DataFrame(found)


def decoded(run: Results, rng: np.random.Generator) -> pd.DataFrame:
    """τ and speedup of each drafter that was decoded live, with its own best shape, one row for each method."""
    if "drafters" not in run:
        return pd.DataFrame()
    best = drafting.with_best_shape(drafting.clean(run["drafters"]), rng)
    best["kind"] = best["drafter"].str.split(" ").str[0]
    found = [{"method": method, "setting": f"{row.target}, {row.drafter} with {row.shape}, live",
              "τ (budget)": f"{row.tokens:.2f} ({row.budget})", "speedup": stats.format_estimate(row)}
             for method, kind in DRAFTERS.items() for row in best[best["kind"] == kind].itertuples()]
    return pd.DataFrame(found)


def _tau(claim: Claim) -> str:
    if claim.tau is None:
        return ""
    return f"{claim.tau:.2f}" + (f" ({claim.budget})" if claim.budget else "")
