"""What logged answers say: what was read and how exact it is, the recommendation at given costs, and what each drafter
is worth.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.cost.roofline import HARDWARE
from lib.cost.served import ForLogs
from lib.lab import charts
from lib.lab.findings import Finding, Part, Results
from lib.replay import logs
from lib.replay.logs import Texts

if TYPE_CHECKING:
    from lib.studies.report import Ask

SHOWN = 5  # refused lines that are named


def read(texts: Texts, temperature: float) -> Finding:
    """What was read of the log, and what replay of it is exact for."""
    by = [texts.known_by.count(way) for way in logs.WAYS]
    counts = ", ".join(f"{count} by {way}" for count, way in zip(by, logs.WAYS))
    rule = "greedy verification" if temperature == 0 else f"naive sampling at temperature {temperature:g}"
    exact = f"Replay is exact for trees of chosen (top-k) children under {rule}, warped as the answers were"
    if logs.BY_TEXT in texts.known_by:
        exact += "; where the text alone is known, for its canonical tokens, which need not be those that were written"
    refused = "".join(f" *{where}: {why}.*" for where, why in list(texts.refused.items())[:SHOWN])
    left_out = f" {len(texts.refused)} lines are left out:{refused}" if texts.refused else ""
    notes = "".join(f" *{note[0].upper()}{note[1:]}.*" for note in texts.notes)
    ended = sum(texts.ended)
    return Finding(f"{len(texts.written)} answers were read, known {counts}.",
                   f"{exact}. {ended} answers ended by themselves; of the others a round counts only where the text "
                   f"decides all of it.{left_out}{notes}")


def text_alone(rows: pd.DataFrame) -> Finding:
    """What text alone changes; rows: the table "served_text"."""
    own, apart = rows.iloc[0], (rows["tokens_text"] / rows["tokens_ids"] - 1).abs().max()
    where = ("No answer of this log has ids (vLLM: `return_token_ids`); of the example's" if own["example"] else "Of")
    return Finding(f"{where} {own['answers']} answers with ids {own['canonical']} are their text's canonical tokens;",
                   f"replay of the text alone differs by up to {apart:.1%} in tokens per round of a chain of four.",
                   table=rows.drop(columns=["answers", "canonical", "example"]).set_index("drafter").round(3))


def recommended(told: ForLogs) -> Finding:
    """What to use at each batch size."""
    source = "computed by a roofline of" if told.costs in HARDWARE else "of"
    rows = [{"batch": own.batch, "drafter": "plain decoding" if own.is_plain else own.drafter,
             "tree": "" if own.is_plain else own.tree, "budget": 0 if own.is_plain else own.budget,
             "predicted speedup [95 %]": str(own.speedup), "over the best chain": str(own.over_chain),
             "best chain": f"{own.chain['drafter']}, {own.chain['tree']}"} for own in told.by_batch]
    return Finding(f"For `{told.target}`, with costs {source} {told.costs}:",
                   "predicted speed over plain decoding, on answers that did not choose. Nothing was timed here. "
                   + " ".join(f"At batch {own.batch}, {own.ties}." for own in told.by_batch if not own.is_plain),
                   table=pd.DataFrame(rows).set_index("batch"))


def tokens(rows: pd.DataFrame) -> Finding:
    """Tokens per round over budget of each drafter's best tree; rows: the table "served_candidates"."""
    first = rows[rows["batch"] == rows["batch"].min()]
    best = first.loc[first.groupby(["drafter", "budget"], sort=False)["tokens"].idxmax()].sort_values("budget")
    top, chains = best.loc[best["tokens"].idxmax()], first[first["chain"]]
    most = chains.loc[chains["tokens"].idxmax()]
    figure = charts.lines(best, x="budget", y="tokens", by="drafter", lower="tokens_low", upper="tokens_high",
                          x_label="budget (draft nodes)", y_label="tokens per round")
    return Finding(f"`{top['drafter']}` with `{top['shape']}` gives most tokens per round, {top['tokens']:.2f}; the "
                   f"best chain, `{most['drafter']}` with `{most['shape']}`, {most['tokens']:.2f}.",
                   f"The best tree of each budget, replayed on {first['n_prompts'].max()} answers.", figure, "tokens")


def report(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """The section "Served models", where the run had logs of its own."""
    if "served_candidates" not in run or not run.record["parameters"].get("08_served", {}).get("logs"):
        return
    yield SERVED
    yield tokens(run["served_candidates"])
    yield text_alone(run["served_text"])


SERVED = """
## Served models

Logged answers of a served model decide every tree of chosen children without the model itself; only the drafters run
here. Notebook 8 gives the recommendation at the costs of where the model is served.
"""


def appendix(run: Results, ask: "Ask", rng: np.random.Generator) -> Iterator[Part]:
    """Nothing."""
    yield from ()
