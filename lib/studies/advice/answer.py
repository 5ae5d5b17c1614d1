"""The first page of the report: what to use at each batch size, what it is worth, and for which model and machine.

Every number comes from recommendation.json and the tables of notebook 06.
"""

from collections.abc import Iterable, Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.cost import recommendation
from lib.cost.recommendation import CHAIN, GENERATE, ONE, PLAIN, RECOMMENDED, ForBatch, Recommendation
from lib.cost.judging import measured
from lib.lab import theme
from lib.lab.findings import Finding, Part, Results
from lib.studies.advice import findings, machines
from lib.studies.speed import sampled

NAMES = {GENERATE: "transformers' generate", PLAIN: "plain decoding, this loop", CHAIN: "best chain"}
COLOURS = {GENERATE: theme.GREY, PLAIN: theme.SKY, CHAIN: theme.BLUE, RECOMMENDED: theme.VERMILLION}


COMMAND = """
**The recommendation, and its command.** Another model, text or machine has another answer. This command computes it:

```sh
./run_notebooks.sh 06 --set pairs=MODEL --set prompts=FILE
```
"""


def opening(run: Results, rng: np.random.Generator) -> Iterator[Part]:
    """The answer in a few sentences, a figure of speeds, and the recommendation as a table; or that there is none."""
    path = run.run_dir / recommendation.FILE
    if not path.exists():
        yield "**In short** This run made no recommendation: notebook 06 is not part of it."
        return
    made, launched = recommendation.load(path), machines.of_run(run)
    beside = [("Apart from speculation,", lambda rows: _loop(rows, rng), "advice_timed"),
              ("Where a tree pays.", lambda rows: findings.where_trees_pay(_without(rows, "hardware", launched)),
               "advice_map"),
              ("Where tokens are sampled,", lambda rows: sampled.in_words(sampled.over_plain(rows, rng)), "sampled"),
              ("Other machines.", lambda rows: findings.in_words(_without(rows, "machine", launched)),
               "advice_machines")]
    points = [(title, told(run[name])) for title, told, name in beside if name in run]
    yield in_short(made, [f"**{title}** {told}" for title, told in points if told])
    yield speeds(made)
    yield COMMAND
    yield findings.recommended(made)
    if any(own.raced for own in made.by_batch):
        yield findings.raced(made)


def _without(rows: pd.DataFrame, column: str, names: Iterable[str]) -> pd.DataFrame:
    """The rows but for other machines of these names, whose times are those of launching kernels."""
    return rows[~rows[column].isin([name for name in names if name != machines.HERE])]


def in_short(made: Recommendation, more: Sequence[str] = ()) -> str:
    """What to use at each batch size, whether a tree beats a chain, when nothing pays; more: further points."""
    points = [_use(own) for own in made.by_batch] + [_tree_or_chain(made), *_not_worth_it(made)]
    if made.formats and made.formats.fastest:
        points.append(f"**Over all number formats.** {findings.in_formats(made)}")
    points += more
    listed = "\n".join(f"- {point}" for point in points)
    return (f"**In short** (`{made.target}` in {made.dtype} on {made.processor} with {made.threads} threads, greedy "
            f"decoding of {made.new_tokens} tokens per prompt; chosen on {made.choosing} prompts, measured on others; "
            f"95 % intervals)\n\n{listed}")


def speeds(made: Recommendation) -> Finding:
    """Tokens per second of each way at each batch size."""
    gains = [f"{own.speedup} times as fast as plain decoding at batch {own.batch}"
             for own in made.by_batch if not own.is_plain]
    plain = [str(own.batch) for own in made.by_batch if own.is_plain]
    claims = ([f"Speculation decodes {', '.join(gains)}."] if gains else []) + (
        [f"It is not recommended at batch {' and '.join(plain)}."] if gains and plain else
        ["Speculation pays at none of these batch sizes."] if plain else [])
    return Finding(
        " ".join(claims), "Tokens per second of whole batches without prefill, over "
        f"{', '.join(map(_count, made.by_batch))}, `generate` over fewer; black lines are 95 % intervals, where "
        "prompts are enough for them.",
        bars(made), "answer")


def bars(made: Recommendation) -> Figure:
    """One panel per batch: tokens per second of each way, the recommended one last."""
    size = 3.4 * len(made.by_batch) + 0.8, 2.5
    figure, axes = plt.subplots(1, len(made.by_batch), figsize=size, squeeze=False, sharex=True, layout="constrained")
    for axis, own in zip(axes.flat, made.by_batch):
        names = NAMES | {RECOMMENDED: "recommended:\nplain decoding" if own.is_plain else
                         f"recommended:\n{own.drafter}, {own.tree}"}
        ways = [way for way in (GENERATE, PLAIN, CHAIN, RECOMMENDED) if way != CHAIN or own.over_chain != ONE]
        for place, way in enumerate(ways):
            speed = own.tokens_per_second[way]
            axis.barh(place, speed.value, color=COLOURS[way], height=0.6)
            axis.hlines(place, speed.low, speed.high, color="black", linewidth=1.4)
            axis.annotate(f"{speed.value:.0f}", (np.nanmax(speed), place), (4, 0), textcoords="offset points",
                          va="center", fontsize=9)
        axis.set_yticks(range(len(ways)), [names[way] for way in ways], fontsize=9)
        axis.invert_yaxis()
        axis.margins(x=0.24)
        axis.grid(axis="y", visible=False)
        axis.set(title=f"batch {own.batch}", xlabel="tokens per second")
    return figure


def _use(own: ForBatch) -> str:
    if own.is_plain:
        return f"**Batch {own.batch}: {own.sentence.replace(PLAIN, f'{PLAIN}**', 1)} ({_count(own)})."
    return (f"**Batch {own.batch}: `{own.drafter}` with `{own.tree}`**, at most {own.budget} draft "
            f"{'token' if own.budget == 1 else 'tokens'} per round. It decodes {own.speedup} times as fast as plain "
            f"decoding in the same loop, {own.with_prefill} times with prefill ({_count(own)}).")


def _loop(timed: pd.DataFrame, rng: np.random.Generator) -> str:
    """What the loop gains without speculation, in the same turns; timed: the table "advice_timed"."""
    judging = timed[timed["part"] == "judging"].groupby("batch")
    gains = [f"{measured(own, PLAIN, GENERATE, rng)} times as fast as transformers' `generate` at batch {batch} "
             f"(n = {own.loc[own['way'] == GENERATE, 'prompt'].nunique()})"
             for batch, own in judging]
    return f"and without prefill, plain decoding in this loop is {', '.join(gains)}."


def _tree_or_chain(made: Recommendation) -> str:
    """What the best tree gains over the best chain, or that it cannot be told."""
    told = "; ".join(f"at batch {own.batch}, {own.trees}" for own in made.by_batch)
    return f"**Tree or chain:** {told}."


def _not_worth_it(made: Recommendation) -> Iterator[str]:
    """Where speculation was not measured to pay."""
    drafting = [own for own in made.by_batch if not own.is_plain]
    slower = [str(own.batch) for own in drafting if own.speedup.is_below(1)]
    unsure = [str(own.batch) for own in drafting if not own.speedup.is_below(1) and not own.speedup.is_above(1)]
    if slower:
        yield (f"At batch {' and '.join(slower)} speculation was **slower** than plain decoding on the prompts that "
               "judge: use plain decoding.")
    if unsure:
        yield f"At batch {' and '.join(unsure)} the interval of the speedup contains 1: speculation may not pay."
    yield from (f"Batch {own.batch}: {own.reason}." for own in drafting if own.reason)


def _count(own: ForBatch) -> str:
    return f"{own.prompts} prompts" if own.batch == 1 else f"{own.prompts} batches of prompts"
