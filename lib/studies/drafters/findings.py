"""What the table `drafters` says: acceptance, cost, speed, memory of every drafter, and which to take for a text."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.models.held_out import REAL_KINDS
from lib.studies.drafters import source_claims
from lib.studies.drafters.measure import CONTROLS, DEPTHS, MODEL, PLAIN

GENERATED = " (generated)"  # behind the name of a kind whose text a program wrote


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows before a loop, with `setting` (drafter and shape in one name) and `ms`, all that their rounds took."""
    kept = rows[(rows["stretch"] == "before") & (rows["rounds"] > 0)]
    return kept.assign(setting=_setting(kept), ms=kept["draft_ms"] + kept["verify_ms"] + kept["commit_ms"])


def labelled(kinds: Sequence[str], shipped: bool) -> list[str]:
    """Kinds of text as tables show them: of the shipped prompts those that a program wrote say so."""
    return [kind + GENERATED if shipped and kind not in REAL_KINDS else kind for kind in kinds]


def first_model(rows: pd.DataFrame, pairs: Sequence[str]) -> str:
    """The label of the language model of the first pair that was asked for, else of the first that drafted."""
    labels = sorted(name for name in set(rows["drafter"]) if name.startswith(MODEL))
    return next((name for name in labels if pairs[0].endswith("/" + name.removeprefix(MODEL))), labels[0])


def lengths(rows: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """Acceptance length with its interval; plain decoding, which drafts nothing, is left out."""
    return stats.summarise(rows[rows["drafter"] != PLAIN], by, "accepted", "rounds", generator)


def speedups(rows: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """Tokens a second over plain decoding's of the same prompts, with its interval, for every drafter and shape."""
    found = stats.compare(rows, by, "setting", _plain_name(rows), "tokens", "ms", generator, relative=True)
    return found.merge(rows[["setting", "drafter", "shape"]].drop_duplicates(), on="setting")


def by_depth(rows: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """Conditional acceptance at each depth: of the rounds that could accept it, the share that did."""
    drafted = rows[rows["drafter"] != PLAIN]
    long = pd.concat([
        drafted[[*by, "prompt"]].assign(depth=depth, reached=drafted[f"reached_{depth}"],
                                        accepted=drafted[f"accepted_{depth}"]) for depth in range(1, DEPTHS + 1)])
    return stats.summarise(long[long["reached"] > 0], [*by, "depth"], "accepted", "reached", generator,
                           rounds="reached")


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a target, drafter and shape, times in target steps (a round of plain decoding).

    tokens: a round; draft, verify: their times (verify with commit); expected: tokens / (1 + draft), the speedup if
    verifying a tree took one step; memory: the drafter's weights and what it held, over the target's weights.
    """
    sums = ["rounds", "tokens", "accepted", "drafted", "draft_ms", "verify_ms", "commit_ms"]
    grouped = rows.groupby(["target", "drafter", "shape"], sort=False)
    found = grouped[sums].sum()
    plain = found.xs(PLAIN, level="drafter").droplevel("shape")
    step = found.index.get_level_values("target").map((plain["verify_ms"] + plain["commit_ms"]) / plain["rounds"])
    most = grouped[["weight_bytes", "held_bytes", "target_bytes"]].max()
    made = pd.DataFrame({
        "tokens": found["tokens"] / found["rounds"],
        "rate": found["accepted"] / found["drafted"].where(found["drafted"] > 0),
        "draft": found["draft_ms"] / found["rounds"] / step,
        "verify": (found["verify_ms"] + found["commit_ms"]) / found["rounds"] / step,
        "saved": 1 - found["rounds"] / found["tokens"],
        "memory": (most["weight_bytes"] + most["held_bytes"]) / most["target_bytes"]})
    return made.assign(expected=made["tokens"] / (1 + made["draft"])).reset_index()


def advice(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """By kind of text the drafter and shape to take: the fastest on every other prompt, judged on the rest.

    kind, setting, drafter, shape, value, low, high (the speedup), n_prompts. With one prompt of a kind it is chosen and
    judged on that one, and the interval is missing. Controls are no choice; plain decoding is one.
    """
    real = rows[~rows["drafter"].isin(CONTROLS)]
    plain, found = _plain_name(rows), []
    for kind, own in real.groupby("kind", sort=False):
        prompts = list(own["prompt"].unique())
        sums = own[own["prompt"].isin(prompts[::2])].groupby("setting", sort=False)[["tokens", "ms"]].sum()
        best = (sums["tokens"] / sums["ms"]).idxmax()
        judged = own[own["prompt"].isin(prompts[1::2] or prompts) & own["setting"].isin([best, plain])]
        chosen = own[own["setting"] == best].iloc[0]
        row = {"kind": kind, "setting": best, "drafter": chosen["drafter"], "shape": chosen["shape"]}
        if best == plain:
            row |= {"value": 1.0, "low": 1.0, "high": 1.0, "n_prompts": judged["prompt"].nunique()}
        else:
            gain = stats.compare(judged, [], "setting", plain, "tokens", "ms", generator, relative=True)
            row |= gain[["value", "low", "high", "n_prompts"]].iloc[0].to_dict()
        found.append(row)
    return pd.DataFrame(found).astype({"n_prompts": int})


def beside_eagle(rows: pd.DataFrame, model: str) -> str:
    """Who stands beside the source's EAGLE: a head of that kind where one was measured, else this language model."""
    return "eagle" if rows["drafter"].eq("eagle").any() else model


def task_table(rows: pd.DataFrame, model: str, lookup: str, generator: np.random.Generator) -> pd.DataFrame:
    """By kind of text the measured speedup of two settings, and the claimed ones where the source has that task."""
    found = speedups(rows[rows["setting"].isin([model, lookup, _plain_name(rows)])], ["kind"], generator)
    found["speedup"] = stats.in_words(found)
    wide = found.pivot(index="kind", columns="setting", values="speedup")[[model, lookup]]
    wide.columns = [f"measured {model}", f"measured {lookup}"]
    claims = source_claims.by_task().set_index("kind").drop(columns="task")
    claimed = claims.reindex(wide.index.str.removesuffix(GENERATED)).set_axis(wide.index)
    return wide.join(claimed).fillna("")


def pair_table(rows: pd.DataFrame, shape: str, generator: np.random.Generator) -> pd.DataFrame:
    """Every target with each model that drafts for it, at one shape: acceptance rate, speedup, memory; below them the
    source's pairs.
    """
    own = rows[rows["drafter"].str.startswith(MODEL) & (rows["shape"] == shape)]
    rates = stats.summarise(own, ["target", "drafter"], "accepted", "drafted", generator)
    speed = speedups(pd.concat([own, rows[rows["drafter"] == PLAIN]]), ["target"], generator)
    memory = costs(rows).set_index(["target", "drafter", "shape"])["memory"]
    made = []
    for row, rate in zip(rates.itertuples(), stats.in_words(rates)):
        fast = speed[(speed["target"] == row.target) & (speed["drafter"] == row.drafter)]
        made.append({"pair": f"{row.target}/{row.drafter.removeprefix(MODEL)}", "from": "measured",
                     "acceptance rate": rate, "speedup": stats.in_words(fast)[0],
                     "memory added": f"{memory[row.target, row.drafter, shape]:.0%}"})
    claims = source_claims.by_pair()
    claimed = claims.assign(**{"from": "claimed", "memory added": claims["memory added"].map("{:.0%}".format)})
    return pd.concat([pd.DataFrame(made), claimed], ignore_index=True).set_index(["from", "pair"])


def length_table(rows: pd.DataFrame, drafter: str, generator: np.random.Generator) -> pd.DataFrame:
    """A drafter's chains: acceptance rate, speedup and target calls saved by length, beside the claimed ones."""
    own = rows[(rows["drafter"] == drafter) & rows["shape"].str.fullmatch(r"chain:\d+")]
    if own.empty:
        raise ValueError(f"drafter {drafter!r} has no chain in the table; add shapes such as chain:5")
    chains = own.assign(length=own["shape"].str.removeprefix("chain:").astype(int))
    rate = stats.summarise(chains, ["length"], "accepted", "drafted", generator)
    plain = rows[rows["drafter"] == PLAIN]
    speed = speedups(pd.concat([own, plain]), [], generator)
    speed["length"] = speed["shape"].str.removeprefix("chain:").astype(int)
    saved = chains.groupby("length")[["rounds", "tokens"]].sum()
    measured = pd.DataFrame({
        "rate": pd.Series(stats.in_words(rate), rate["length"]),
        "speedup": pd.Series(stats.in_words(speed), speed["length"]),
        "calls saved": 1 - saved["rounds"] / saved["tokens"]})
    return measured.join(source_claims.by_length().set_index("length"), how="outer").sort_index()


def orders(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> pd.DataFrame:
    """The literature's orders of acceptance, where both drafters are there: claim, from, the paired difference in
    acceptance length in words, and whether it holds here beyond its interval.

    rows of one shape; model: the drafter that "model" stands for.
    """
    there, made = set(rows["drafter"]), []
    for better, worse, source in source_claims.ORDERS:
        pair = [model if name == "model" else name for name in (better, worse)]
        if set(pair) <= there:
            found = stats.compare(rows[rows["drafter"].isin(pair)], [], "drafter", pair[1], "accepted", "rounds",
                                  generator).iloc[[0]]
            low, high = found[["low", "high"]].iloc[0]
            made.append({"claim": f"{pair[0]} is accepted more than {pair[1]}", "from": source,
                         "difference": stats.worded(found.iloc[0], "+.2f"),
                         "here": "holds" if low > 0 else "the opposite" if high < 0 else "cannot be told"})
    return pd.DataFrame(made, columns=["claim", "from", "difference", "here"])


def learning(points: pd.DataFrame) -> pd.DataFrame:
    """By head: agreement with the target's favourite `near` (one token ahead) and `far` (furthest) at the end of its
    training, and `late`, what one token ahead gained over the last half of its steps.

    points: the table "head_curves" of one target; kinds of text count alike.
    """
    mean = points.groupby(["head", "depth", "step"])["agreement"].mean()
    found = {}
    for head in points["head"].unique():
        near, far = mean[head, 1], mean[head][mean[head].index.get_level_values("depth").max()]
        half = near[near.index >= near.index.max() / 2].iloc[0]
        found[head] = {"near": near.iloc[-1], "far": far.iloc[-1], "late": near.iloc[-1] - half}
    return pd.DataFrame.from_dict(found, orient="index")


def _setting(rows: pd.DataFrame) -> pd.Series:
    return rows["drafter"].where(rows["drafter"] == PLAIN, rows["drafter"] + ", " + rows["shape"])


def _plain_name(rows: pd.DataFrame) -> str:
    if not (rows["drafter"] == PLAIN).any():
        raise ValueError(f"the table has no plain decoding to compare with, only {sorted(rows['drafter'].unique())}")
    return PLAIN
