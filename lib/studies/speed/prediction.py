"""Speeds predicted by replay and a calibration, beside the measured ones; and the rounds of a batch in lockstep beside
those of a ragged one.

Every prediction is for prompts that neither the calibration nor the choice of a tree has seen.
"""

from typing import Mapping, Sequence

import numpy as np
import pandas as pd

from lib import cost, replay
from lib.cost.fit import Costs
from lib.cost.ways import MIXED, together
from lib.replay.trace import Trace
from lib.studies.speed.alternatives import ADVISED, PLAIN
from lib.trees.shapes import parse
from lib.trees.tree import Tree

SETTING = ["pair", "batch", "shape", "kind"]


def compare(rows: pd.DataFrame, recorded: Trace, costs: Costs, drafter: str, trees: Mapping[str, str | Tree],
            tokens: Mapping[str, float], rng: np.random.Generator) -> pd.DataFrame:
    """The table "speed_predicted": one row per batch, shape and kind of text in `rows` (the table "speed").

    recorded: continuations of the measured prompts, as long as the timed ones, with the ranks of `drafter`. trees: by
    their labels in `rows`. tokens: by kind, the committed tokens in the middle of decoding. All rounds of a batch
    count, those after the end of its first row too; prefill is in neither speed.
    """
    named = [PLAIN, ADVISED, *(f"{drafter}, {label}" for label in trees)]
    own = rows[rows["alternative"].isin(named) & rows["drafter"].isin([drafter, ""]) & rows["shape"].isin([*trees, ""])]
    own = own.dropna(subset="round_seconds")
    own = own.assign(tokens=own["tokens"] - own["batch"])  # without the roots, which prefill gives
    summed = own.groupby(SETTING, as_index=False)[["tokens", "round_seconds"]].sum()
    middle = {**tokens, MIXED: float(np.mean(list(tokens.values())))}
    compared = []
    for setting in summed.to_dict("records"):
        tree = parse(trees[setting["shape"]]) if setting["shape"] else Tree([-1])
        groups = [group for kind, group in together(recorded.kinds, setting["batch"]) if kind == setting["kind"]]
        predicted = cost.predict(recorded, costs, drafter, tree, groups, middle[setting["kind"]], rng)
        measured = setting["tokens"] / setting["round_seconds"]
        compared.append({**{name: setting[name] for name in SETTING}, **predicted, "measured": measured,
                         "error": predicted["predicted"] / measured - 1})
    return pd.DataFrame(compared).replace({"shape": {"": PLAIN}})


def errors(compared: pd.DataFrame) -> tuple[float, float]:
    """Median and 90th percentile of the absolute relative error; compared: the table "speed_predicted"."""
    middle, high = np.quantile(compared["error"].abs(), [0.5, 0.9])
    return float(middle), float(high)


def of_speedups(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows of trees, with the error of their speed over plain decoding's of the same batch and kind of text: this
    corrects for drift of the machine's speed since the calibration.
    """
    own = ["pair", "batch", "kind"]
    plain = compared.loc[compared["shape"] == PLAIN, [*own, "predicted", "measured"]]
    trees = compared[compared["shape"] != PLAIN].merge(plain, on=own, suffixes=("", "_plain"))
    predicted, measured = (trees[name] / trees[f"{name}_plain"] for name in ("predicted", "measured"))
    return trees.assign(error=predicted / measured - 1)[compared.columns]


# ------------------------------------------------------------------------------------------------------------- lockstep


def rounds_together(accepted: Sequence[np.ndarray]) -> int:
    """Rounds until all rows have ended in lockstep: accepted[b][t] is the number that row b accepts in a round from t.

    A round advances each row by 1 + the fewest that any running row accepts; rows leave at their ends.
    """
    at, rounds = 0, 0
    while running := [row for row in accepted if at < len(row)]:
        at += 1 + min(int(row[at]) for row in running)
        rounds += 1
    return rounds


def rounds_apart(accepted: Sequence[np.ndarray]) -> int:
    """Rounds until all rows have ended, each at its own pace: those of the slowest."""
    return max((rounds_together([row]) for row in accepted), default=0)


def lockstep(recorded: Trace, trees: Mapping[str, str | Tree], batches: Sequence[int], pair: str,
             drafter: str) -> pd.DataFrame:
    """The table "lockstep": rounds of groups of prompts in the order of the trace, kinds mixed as on a server.

    In lockstep all rows stop at the first row's rejection; in a ragged batch every row keeps its own path. Under greedy
    verification replay counts both exactly: a row that is held back continues where it was stopped, with the same text.
    Incomplete groups are left out. In batches of one both numbers are the same.
    """
    rows = []
    for label, tree in trees.items():
        ends = np.cumsum(recorded.starts(parse(tree).max_depth))[:-1]
        own = np.split(replay.accepted_lengths(recorded, parse(tree), drafter), ends)
        for batch in batches:
            for first in range(0, len(own) - batch + 1, batch):
                group = own[first : first + batch]
                rows.append({"pair": pair, "shape": label, "batch": batch, "prompt": recorded.prompts[first],
                             "kind": recorded.kinds[first] if batch == 1 else MIXED, "tokens": max(map(len, group)),
                             "lockstep": rounds_together(group), "ragged": rounds_apart(group)})
    return pd.DataFrame(rows)
