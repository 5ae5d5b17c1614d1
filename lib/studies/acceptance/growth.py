"""The growth study: grown trees beside static ones of equal budget, on the same traces and the same judged prompts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.marginals import MarginalDrafter
from lib.drafters.ngrams import NgramDrafter
from lib.lab import stats
from lib.replay import acceptance, grown
from lib.replay.grown import GrownWalk
from lib.replay.trace import Trace
from lib.studies.acceptance import measure, recording
from lib.trees import growth
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

BASE = "best static"
BESIDE = ("chain", "optimal")  # static families that grown trees stand beside
CONFIDENCES = (1.0, 0.6)  # temperatures of drafting probabilities that are tried
SETTING = ["target", "drafter", "protocol", "temperature", "budget"]
ALONE = Tree([-1])


def rounds_of(trace: Trace, drafter, prompts: Sequence[Tensor], rule: Growth) -> GrownWalk:
    """The rounds that the trace's protocol has (see `acceptance.rounds_of`), for trees that a rule grows.

    prompts int64[T]: the texts that the trace's rows continue; drafter: as it would run live.
    """
    if trace.about["protocol"] != acceptance.REAL_TEXT:
        return grown.chained(trace, drafter, prompts, rule)
    first = [(row, 0) for row in np.flatnonzero(trace.lengths > 0).tolist()]
    found = grown.walk(trace, drafter, prompts, rule, first)
    horizon = trace.tokens.shape[1] - 1
    return GrownWalk(**{**vars(found), "cut": found.cut & (trace.lengths[found.rows] < horizon)})


def tally(trace: Trace, rounds: GrownWalk) -> pd.DataFrame:
    """`acceptance.tally` of rounds whose trees differ; `calls`: the drafter's forwards in the uncut ones."""
    frame = acceptance.tally(trace, ALONE, rounds).drop(columns="drafted")
    looped = rounds.starts >= trace.loops[rounds.rows]
    spent = pd.DataFrame({
        "prompt": np.array(trace.prompts)[rounds.rows],
        "stretch": np.where(looped, "loop", "before"),
        "drafted": np.where(rounds.cut, 0, rounds.drafted),
        "calls": np.where(rounds.cut, 0, rounds.draft_calls),
    })
    return frame.merge(spent.groupby(["prompt", "stretch"], as_index=False).sum(), on=["prompt", "stretch"])


def evaluate(trace: Trace, name: str, model, prompts: Sequence[Tensor], rules: Sequence[tuple[str, int, Growth]],
             vocabulary: int | None = None, confidence: float | None = None) -> pd.DataFrame:
    """`tally` of every (family, budget, rule) for one drafter, under one another: the columns of
    `acceptance.evaluate`, `calls` and `confidence`. depth is that of the deepest tree that grew.

    name: the drafter's in the trace; model: a language model, or a drafter of heads as it is; prompts int64[T]: the
    texts that its rows continue; vocabulary: the target's, where the model has more. confidence: the temperature of
    the probabilities that trees grow by; None: the trace's, or 1 where that is greedy.
    """
    confidence = confidence or trace.about["temperature"] or 1.0
    is_model = not hasattr(model, "propose")
    drafter = LanguageModelDrafter(model, temperature=confidence, vocabulary=vocabulary) if is_model else model
    frames = []
    for family, budget, rule in rules:
        rounds = rounds_of(trace, drafter, prompts, rule)
        frames.append(tally(trace, rounds).assign(family=family, budget=budget, depth=rounds.depth.max(initial=0)))
    about = {key: trace.about[key] for key in ("target", "protocol", "temperature")}
    return pd.concat(frames, ignore_index=True).assign(drafter=name, confidence=confidence, **about)


def evaluate_static(trace: Trace, name: str, trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`acceptance.evaluate` with `calls`: a static tree costs a forward for each of its levels, and asks no confidence.
    """
    rows = acceptance.evaluate(trace, name, trees)
    return rows.assign(calls=rows["rounds"] * rows["depth"], confidence=np.nan)


def compare(recorded: Trace, name: str, model, asked: recording.Prompts, *, families: Sequence[str],
            rules: Sequence[str], budgets: Sequence[int], vocabulary: int | None = None,
            confidences: Sequence[float] = ()) -> pd.DataFrame:
    """Static families and growth rules (names without a budget) at each budget, on the trace's judged prompts.

    asked: the prompts that the trace was recorded of, `recording.real_text_starts` of them where it has that protocol.
    confidences: temperatures of the drafter's probabilities, of which each rule and budget takes the best on the
    choosing prompts, from which static trees are grown too; none: as `evaluate` has it.
    """
    choosing, judged = recording.halves(recorded)
    texts = {half: [asked.ids[row] for row in np.flatnonzero(asked.choosing == half)] for half in (True, False)}
    frames = [evaluate_static(judged, name, measure.forest(choosing, name, families, budgets))]
    for rule in rules:
        for budget in budgets:
            wanted = [(rule, budget, growth.at_budget(rule, budget))]
            tried = [evaluate(choosing, name, model, texts[True], wanted, vocabulary, each) for each in confidences]
            best = _longest(tried)["confidence"].iloc[0] if tried else None
            frames.append(evaluate(judged, name, model, texts[False], wanted, vocabulary, best))
    return pd.concat(frames, ignore_index=True)


def judging(recorded: Trace, models: Mapping[str, object], asked: recording.Prompts,
            vocabulary: int | None = None) -> Callable[[str, Growth], pd.DataFrame | None]:
    """(drafter, rule) -> `evaluate` of that rule on the trace's judged prompts, as `advice.advise` asks for it; None
    for drafters without a distribution a node, over which such rules grow: those that give one a depth, and n-grams.

    models: by the drafters' names in the trace, as `evaluate` takes them; asked: as `compare` takes it.
    """
    judged = recording.halves(recorded)[1]
    texts = [asked.ids[row] for row in np.flatnonzero(~np.asarray(asked.choosing))]

    def judge(drafter: str, rule: Growth) -> pd.DataFrame | None:
        if isinstance(models[drafter], (MarginalDrafter, NgramDrafter)):
            return None
        return evaluate(judged, drafter, models[drafter], texts, [(rule.name, rule.budget, rule)], vocabulary)

    return judge


def with_best_static(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of growth rules, and as family `BASE` the static family that gained most on these very rows.

    Chosen by setting and budget, in hindsight: which flatters the static side, so that a rule that beats it does.
    """
    is_grown = rows["family"].map(lambda family: family.partition(":")[0] in growth.RULES)
    static = rows[~is_grown]
    sums = static.groupby([*SETTING, "family"], sort=False)[["accepted", "rounds"]].sum()
    length = (sums["accepted"] / sums["rounds"]).rename("length").reset_index()
    best = length.loc[length.groupby(SETTING)["length"].idxmax(), [*SETTING, "family"]]
    return pd.concat([static.merge(best, on=[*SETTING, "family"]).assign(family=BASE), rows[is_grown]])


def lengths(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Acceptance length of every setting, with its interval."""
    return stats.summarise(rows, [*SETTING, "family"], "accepted", "rounds", generator)


def differences(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Acceptance length of each rule less that of the best static family, prompt for prompt, with its interval."""
    return stats.compare(with_best_static(rows), SETTING, "family", BASE, "accepted", "rounds", generator)


def forwards(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Forwards of the drafter a round, with their interval."""
    return stats.summarise(rows, [*SETTING, "family"], "calls", "rounds", generator)


def _longest(tried: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of the largest acceptance length before loops, the first of equals."""
    before = [rows[rows["stretch"] == "before"] for rows in tried]
    return tried[int(np.argmax([rows["accepted"].sum() / max(1, rows["rounds"].sum()) for rows in before]))]
