"""Predicted beside measured speed: a calibration on some prompts, tokens a second on others, shapes it ran and not."""

from typing import Mapping

import numpy as np
import pandas as pd

from lib import cost
from lib.cost.fit import Costs
from lib.replay.trace import Trace
from lib.studies.speed.alternatives import ADVISED, PLAIN
from lib.studies.speed.measure import MIXED, together
from lib.trees.shapes import parse
from lib.trees.tree import Tree

SETTING = ["pair", "batch", "shape", "kind"]


def compare(rows: pd.DataFrame, recorded: Trace, costs: Costs, drafter: str, trees: Mapping[str, str | Tree],
            tokens: Mapping[str, float], generator: np.random.Generator) -> pd.DataFrame:
    """The table "speed_predicted": a row a batch, shape and kind of text that `rows` (the table "speed") measured.

    recorded: the measured prompts' own continuations, as long as they were timed, with what `drafter` thought. trees:
    what the labels in `rows` mean. tokens: by kind the committed tokens in the middle of decoding. All rounds of a
    batch count, those behind the end of its first row too; prefill is in neither.
    """
    named = [PLAIN, ADVISED, *(f"{drafter}, {label}" for label in trees)]
    own = rows[rows["alternative"].isin(named) & rows["drafter"].isin([drafter, ""]) & rows["shape"].isin([*trees, ""])]
    own = own.dropna(subset="round_seconds")
    own = own.assign(tokens=own["tokens"] - own["batch"])  # without the roots, which prefill gives
    summed = own.groupby(SETTING, as_index=False)[["tokens", "round_seconds"]].sum()
    middle = {**tokens, MIXED: float(np.mean(list(tokens.values())))}
    found = []
    for setting in summed.to_dict("records"):
        tree = parse(trees[setting["shape"]]) if setting["shape"] else Tree([-1])
        groups = [group for kind, group in together(recorded.kinds, setting["batch"]) if kind == setting["kind"]]
        said = cost.predict(recorded, costs, drafter, tree, groups, middle[setting["kind"]], generator)
        measured = setting["tokens"] / setting["round_seconds"]
        found.append({**{name: setting[name] for name in SETTING}, **said, "measured": measured,
                      "error": said["predicted"] / measured - 1})
    return pd.DataFrame(found).replace({"shape": {"": PLAIN}})


def errors(found: pd.DataFrame) -> tuple[float, float]:
    """Median and 90th percentile of the relative error's size."""
    middle, high = np.quantile(found["error"].abs(), [0.5, 0.9])
    return float(middle), float(high)


def of_speedups(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of trees, with `error` that of their speed over plain decoding's of the same batch and kind of text: a
    machine that has become faster or slower since it was calibrated is divided out.
    """
    own = ["pair", "batch", "kind"]
    plain = found.loc[found["shape"] == PLAIN, [*own, "predicted", "measured"]]
    trees = found[found["shape"] != PLAIN].merge(plain, on=own, suffixes=("", "_plain"))
    said, was = trees["predicted"] / trees["predicted_plain"], trees["measured"] / trees["measured_plain"]
    return trees.assign(error=said / was - 1)[found.columns]
