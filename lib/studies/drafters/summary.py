"""The numbers of the drafter study, from the table "drafters": acceptance, cost, speed and memory of every drafter, the
drafter for each text, and the same beside the claims of a weblog and of papers.
"""

import re
from typing import Sequence

import numpy as np
import pandas as pd

from lib.cost import formulas
from lib.lab import stats
from lib.models.held_out import REAL_KINDS
from lib.studies.drafters.measure import CONTROLS, MODEL, PLAIN
from lib.trees.growth.registry import RULES

GENERATED = " (generated)"  # after the name of a kind whose text a program wrote
# The tables of the weblog that this study began with; `lib.cost.formulas` has the one by draft length.
# kind of text (its "creative writing" is this study's story) -> speedup with EAGLE, speedup with n-gram look-up
BY_TASK = {"code": ("2-3", "1.5-2"), "translation": ("2", "1.2"), "summary": ("1.8", "1.1"), "story": ("1.5", "1.0")}
CALLED = {"coding": "code", "summarization": "summary", "writing": "story"}  # the same kinds among chat prompts
# parameters of target and drafter -> (acceptance rate, speedup, memory beyond the target's)
BY_PAIR = {"7B/160M": (0.78, 2.1, 0.12), "70B/1B": (0.65, 1.5, 0.18)}

# Papers: the first drafter is accepted more than the second, on their models; "model" is a language model.
_ORDERS = (("eagle3", "eagle", "Li et al. 2025, EAGLE-3"), ("eagle", "medusa", "Li et al. 2024, EAGLE"),
          ("dspark", "block", "DeepSeek 2026, DSpark over DFlash"),
          ("eagle3", "model", "Li et al. 2025, EAGLE-3"), ("model", "lookup", "Xia et al. 2024, Spec-Bench"),
          ("medusa", "lookup", "Xia et al. 2024, Spec-Bench"), ("sam", "lookup", "Hu et al. 2024, SAM-Decoding"),
          ("recycling", "lookup", "Luo et al. 2024, token recycling"),
          ("merged", "model", "Miao et al. 2024, SpecInfer"),
          ("combined", "model", "Hu et al. 2024, SAM-Decoding"))

# What is compared with what, on the same shapes that the idea can change.
_IDEAS = (("reduced vocabulary", "model:vocabulary=8192", "model"),
          ("bias from the parent's token", "dspark", "block"),
          ("places that see backwards alone", "jetspec", "block"),
          ("growth by confidence", "dspark:confidence", "dspark"),
          ("suffix automaton in front", "combined:behind=dspark", "dspark"),
          ("suffix automaton in front", "combined:behind=eagle3", "eagle3"),
          ("suffix automaton in front", "combined:vocabulary=8192", "model:vocabulary=8192"),
          ("Graft", "graft:behind=dspark", "dspark"),
          ("Graft", "graft:behind=eagle3", "eagle3"))
CHAIN, TREE, GROWN = "chain", "static tree", "grown tree"
_CHANGES = {"growth by confidence": lambda rows: rows["form"] == GROWN, "Graft": lambda rows: rows["budget"] > 1}
RISING = 0.01  # agreement: a head that gains more in the last tenth of its training is undertrained


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows before a loop, with `setting` (drafter and shape in one name), `form` (of the shape) and `ms`, the
    milliseconds of their rounds.
    """
    kept = rows[(rows["stretch"] == "before") & (rows["rounds"] > 0)]
    setting = kept["drafter"].where(kept["drafter"] == PLAIN, kept["drafter"] + ", " + kept["shape"])
    return kept.assign(setting=setting, form=kept["shape"].map(form),
                       ms=kept["draft_ms"] + kept["verify_ms"] + kept["commit_ms"])


def labelled(rows: pd.DataFrame, prompts: str) -> pd.Series:
    """Kinds of text as tables show them: those of the family's prompts that a program wrote are marked.

    rows: with target and kind. prompts: the parameter that chose each target's file, see `models.prompts.load`.
    """
    if prompts not in ("", "family"):
        return rows["kind"]
    family = rows.groupby("target")["kind"].transform(lambda kinds: set(REAL_KINDS) <= set(kinds)).astype(bool)
    return rows["kind"].mask(family & ~rows["kind"].isin(REAL_KINDS), rows["kind"] + GENERATED)


def first_model(rows: pd.DataFrame, pairs: Sequence[str]) -> str:
    """The label of the first pair's language model, or of the first model in the rows where that one did not draft;
    empty where no model drafts.
    """
    labels = sorted(name for name in set(rows["drafter"]) if name.startswith(MODEL))
    own = "/" + re.split(r"[/|]", pairs[0], maxsplit=1)[-1]
    return next((name for name in labels if own.endswith("/" + name.removeprefix(MODEL))), next(iter(labels), ""))


def lengths(rows: pd.DataFrame, by: Sequence[str], rng: np.random.Generator) -> pd.DataFrame:
    """Acceptance length with its interval; plain decoding, which drafts nothing, is left out."""
    return stats.summarise(rows[rows["drafter"] != PLAIN], by, "accepted", "rounds", rng)


def speedups(rows: pd.DataFrame, by: Sequence[str], rng: np.random.Generator) -> pd.DataFrame:
    """Tokens per second over plain decoding's on the same prompts, with its interval, for every drafter and shape."""
    found = stats.compare(rows, by, "setting", PLAIN, "tokens", "ms", rng, relative=True)
    return found.merge(rows[["setting", "drafter", "shape"]].drop_duplicates(), on="setting")


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per target, drafter and shape, times in target steps (a round of plain decoding).

    draft, verify: times per round (verify with commit); memory: the drafter's weights and what it holds, over the
    target's weights.
    """
    grouped = rows.groupby(["target", "drafter", "shape"], sort=False)
    found = grouped[["rounds", "draft_ms", "verify_ms", "commit_ms"]].sum()
    plain = found.xs(PLAIN, level="drafter").droplevel("shape")
    step = found.index.get_level_values("target").map((plain["verify_ms"] + plain["commit_ms"]) / plain["rounds"])
    most = grouped[["weight_bytes", "held_bytes", "target_bytes"]].max()
    return pd.DataFrame({
        "draft": found["draft_ms"] / found["rounds"] / step,
        "verify": (found["verify_ms"] + found["commit_ms"]) / found["rounds"] / step,
        "memory": (most["weight_bytes"] + most["held_bytes"]) / most["target_bytes"]}).reset_index()


def advice(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """By kind of text the drafter and shape that are fastest on every other prompt, judged on the remaining ones.

    kind, setting, drafter, shape, value, low, high (the speedup), n_prompts. With one prompt of a kind, the drafter is
    chosen and judged on that one, and the interval is missing. Plain decoding is a choice, controls are not.
    """
    found = []
    for kind, own in rows[~rows["drafter"].isin(CONTROLS)].groupby("kind", sort=False):
        prompts = list(own["prompt"].unique())
        sums = own[own["prompt"].isin(prompts[::2])].groupby("setting", sort=False)[["tokens", "ms"]].sum()
        best = (sums["tokens"] / sums["ms"]).idxmax()
        judged = own[own["prompt"].isin(prompts[1::2] or prompts) & own["setting"].isin([best, PLAIN])]
        chosen = own[own["setting"] == best].iloc[0]
        row = {"kind": kind, "setting": best, "drafter": chosen["drafter"], "shape": chosen["shape"]}
        if best == PLAIN:
            row |= {"value": 1.0, "low": 1.0, "high": 1.0, "n_prompts": judged["prompt"].nunique()}
        else:
            gain = stats.compare(judged, [], "setting", PLAIN, "tokens", "ms", rng, relative=True)
            row |= gain[["value", "low", "high", "n_prompts"]].iloc[0].to_dict()
        found.append(row)
    return pd.DataFrame(found).astype({"n_prompts": int})


def form(shape: str) -> str:
    """CHAIN, TREE or GROWN, by a shape's name."""
    family = shape.partition("@")[0].partition(":")[0]
    return GROWN if family in RULES else CHAIN if family == "chain" else TREE


def with_best_shape(rows: pd.DataFrame, rng: np.random.Generator, by: Sequence[str] = ()) -> pd.DataFrame:
    """By target and drafter, and these columns, the shape that is fastest on every other prompt, judged on the others.

    target, drafter, by, shape, budget, value, low, high (the speedup over plain decoding), n_prompts, tokens (per
    round). Plain decoding and drafters without a judged prompt are left out.
    """
    found, keys = [], ["target", "drafter", *by]
    for key, own in rows[rows["drafter"] != PLAIN].groupby(keys, sort=False):
        target = key[0]
        prompts = list(rows.loc[rows["target"] == target, "prompt"].unique())
        sums = own[own["prompt"].isin(prompts[::2])].groupby("setting", sort=False)[["tokens", "ms"]].sum()
        best = (sums["tokens"] / sums["ms"]).idxmax() if len(sums) else ""
        plain = (rows["target"] == target) & (rows["drafter"] == PLAIN)
        judged = pd.concat([own[own["setting"] == best], rows[plain]])
        judged = judged[judged["prompt"].isin(prompts[1::2])]
        mine = judged[judged["setting"] == best]
        if len(mine):
            gain = stats.compare(judged, [], "setting", PLAIN, "tokens", "ms", rng, relative=True).iloc[0]
            found.append({**dict(zip(keys, key)), "shape": mine["shape"].iloc[0],
                          "budget": mine["budget"].iloc[0], **gain[["value", "low", "high", "n_prompts"]],
                          "tokens": mine["tokens"].sum() / mine["rounds"].sum()})
    return pd.DataFrame(found)


def over_chains(rows: pd.DataFrame, best: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The speed of each drafter's best trees over its best chain, on the prompts that judge: drafter, form, shape,
    chain, value, low, high. best: `with_best_shape` by form, of one target.
    """
    judged, found = rows[rows["prompt"].isin(list(rows["prompt"].unique())[1::2])], []
    for drafter, own in best.groupby("drafter", sort=False):
        shape = own.set_index("form")["shape"]
        for name in [name for name in (TREE, GROWN) if name in shape and CHAIN in shape]:
            both = judged[(judged["drafter"] == drafter) & judged["shape"].isin([shape[name], shape[CHAIN]])]
            gain = stats.compare(both, [], "shape", shape[CHAIN], "tokens", "ms", rng, relative=True)
            found += [{"drafter": drafter, "form": name, "chain": shape[CHAIN], **row}
                      for row in gain.to_dict("records")]
    return pd.DataFrame(found, columns=["drafter", "form", "shape", "chain", "value", "low", "high"])


def ideas(rows: pd.DataFrame, model: str, rng: np.random.Generator) -> pd.DataFrame:
    """What each idea is worth by itself, over the same drafter without it and with the same shapes: tokens per round
    and tokens per second, as ratios with intervals, paired by prompt. rows: of one target, from `clean`.
    """
    found = []
    for idea, spec, without in _IDEAS:
        pair = [model if name == "model" else name for name in (spec, without)]
        own = rows[rows["drafter"].isin(pair)]
        own = own[_CHANGES[idea](own)] if idea in _CHANGES else own
        both = own.groupby("shape")["drafter"].nunique()
        own = own[own["shape"].isin(both[both == 2].index)]
        if own.empty:
            continue
        row = {"idea": idea, "with": pair[0], "without": pair[1], "shapes": ", ".join(own["shape"].unique())}
        for name, bottom in (("tokens per round", "rounds"), ("tokens per second", "ms")):
            gain = stats.compare(own, [], "drafter", pair[1], "tokens", bottom, rng, relative=True)
            row[name] = stats.format_estimate(gain.iloc[0])
        found.append(row)
    return pd.DataFrame(found, columns=["idea", "with", "without", "shapes", "tokens per round", "tokens per second"])


def fastest_shape(rows: pd.DataFrame, drafter: str) -> str:
    """The shape with which a drafter decodes most tokens per second over all prompts."""
    sums = rows[rows["drafter"] == drafter].groupby("shape", sort=False)[["tokens", "ms"]].sum()
    return (sums["tokens"] / sums["ms"]).idxmax()


def task_table(rows: pd.DataFrame, model: str, lookup: str, rng: np.random.Generator) -> pd.DataFrame:
    """By kind of text the measured speedup of two settings, and the claimed speedups where the source has that task."""
    found = speedups(rows[rows["setting"].isin([model, lookup, PLAIN])], ["kind"], rng)
    found["speedup"] = stats.format_estimates(found)
    wide = found.pivot(index="kind", columns="setting", values="speedup")[[model, lookup]]
    wide.columns = [f"measured {model}", f"measured {lookup}"]
    claims = pd.DataFrame.from_dict(BY_TASK, orient="index", columns=["claimed EAGLE", "claimed look-up"])
    kinds = wide.index.str.removesuffix(GENERATED)
    claimed = claims.reindex([CALLED.get(kind, kind) for kind in kinds]).set_axis(wide.index)
    return wide.join(claimed).fillna("")


def pair_table(rows: pd.DataFrame, shape: str, rng: np.random.Generator) -> pd.DataFrame:
    """Every target with each model that drafts for it, at one shape: acceptance rate, speedup, memory added; then the
    source's pairs.
    """
    own = rows[rows["drafter"].str.startswith(MODEL) & (rows["shape"] == shape)]
    rates = stats.summarise(own, ["target", "drafter"], "accepted", "drafted", rng)
    speed = speedups(pd.concat([own, rows[rows["drafter"] == PLAIN]]), ["target"], rng)
    memory = costs(rows).set_index(["target", "drafter", "shape"])["memory"]
    made = []
    for row, rate in zip(rates.itertuples(), stats.format_estimates(rates)):
        fast = speed[(speed["target"] == row.target) & (speed["drafter"] == row.drafter)]
        made.append({"pair": f"{row.target}/{row.drafter.removeprefix(MODEL)}", "from": "measured",
                     "acceptance rate": rate, "speedup": stats.format_estimates(fast)[0],
                     "memory added": f"{memory[row.target, row.drafter, shape]:.0%}"})
    made += [{"pair": pair, "from": "claimed", "acceptance rate": rate, "speedup": gain, "memory added": f"{added:.0%}"}
             for pair, (rate, gain, added) in BY_PAIR.items()]
    return pd.DataFrame(made).set_index(["from", "pair"])


def length_table(rows: pd.DataFrame, drafter: str, rng: np.random.Generator) -> pd.DataFrame:
    """A drafter's chains: acceptance rate, speedup and target calls saved by length, beside the claimed ones."""
    own = rows[(rows["drafter"] == drafter) & rows["shape"].str.fullmatch(r"chain:\d+")]
    if own.empty:
        raise ValueError(f"drafter {drafter!r} has no chain in the table; add shapes such as chain:5")
    chains = own.assign(length=own["shape"].str.removeprefix("chain:").astype(int))
    rate = stats.summarise(chains, ["length"], "accepted", "drafted", rng)
    plain = rows[rows["drafter"] == PLAIN]
    speed = speedups(pd.concat([own, plain]), [], rng)
    speed["length"] = speed["shape"].str.removeprefix("chain:").astype(int)
    saved = chains.groupby("length")[["rounds", "tokens"]].sum()
    measured = pd.DataFrame({
        "rate": pd.Series(stats.format_estimates(rate), rate["length"]),
        "speedup": pd.Series(stats.format_estimates(speed), speed["length"]),
        "calls saved": 1 - saved["rounds"] / saved["tokens"]})
    claimed = pd.DataFrame(formulas.CLAIMS).set_index("length").add_prefix("claimed ")
    claimed = claimed.rename(columns={"claimed acceptance": "claimed rate", "claimed saved": "claimed calls saved"})
    return measured.join(claimed, how="outer").sort_index()


def orders(rows: pd.DataFrame, model: str, rng: np.random.Generator) -> pd.DataFrame:
    """The literature's orders of acceptance, where both drafters were measured: claim, from, the paired difference in
    acceptance length with its interval, and whether the order holds here beyond the interval.

    rows: of one shape; model: the drafter that "model" stands for.
    """
    there, made = set(rows["drafter"]), []
    for better, worse, source in _ORDERS:
        pair = [model if name == "model" else name for name in (better, worse)]
        if set(pair) <= there:
            found = stats.compare(rows[rows["drafter"].isin(pair)], [], "drafter", pair[1], "accepted", "rounds",
                                  rng).iloc[[0]]
            low, high = found[["low", "high"]].iloc[0]
            made.append({"claim": f"{pair[0]} is accepted more than {pair[1]}", "from": source,
                         "difference": stats.format_estimate(found.iloc[0], "+.2f"),
                         "here": "holds" if low > 0 else "the opposite" if high < 0 else "cannot be told"})
    return pd.DataFrame(made, columns=["claim", "from", "difference", "here"])


def learning(points: pd.DataFrame) -> pd.DataFrame:
    """By head: agreement with the target's favourite `near` (one token ahead) and `far` (furthest ahead) at the end of
    training, and `late`, the gain in `near` over the last tenth of the steps.

    points: the table "head_curves" of one target; kinds of text have equal weight.
    """
    mean = points.groupby(["head", "depth", "step"])["agreement"].mean()
    found = {}
    for head in points["head"].unique():
        near, far = mean[head, 1], mean[head][mean[head].index.get_level_values("depth").max()]
        before = near[near.index <= 0.9 * near.index.max()]
        late = near.iloc[-1] - before.iloc[-1] if len(before) else np.nan
        found[head] = {"near": near.iloc[-1], "far": far.iloc[-1], "late": late}
    return pd.DataFrame.from_dict(found, orient="index")
