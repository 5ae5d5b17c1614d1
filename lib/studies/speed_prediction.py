"""Predicted beside measured speed: a calibration on some prompts, tokens a second on others, shapes that it never ran."""

from typing import Mapping

import numpy as np
import pandas as pd

from lib import cost
from lib.cost import Costs
from lib.studies.alternatives import ADVISED, PLAIN
from lib.studies.speed import MIXED
from lib.trace import Trace
from lib.tree import Tree

ROOT_ALONE = Tree([-1])


def compare(rows: pd.DataFrame, recorded: Trace, costs: Costs, drafter: str, trees: Mapping[str, str | Tree],
            tokens: Mapping[str, float], generator: np.random.Generator) -> pd.DataFrame:
    """The table "speed_predicted": a row a batch, shape and kind of text that `rows` (the table "speed") measured.

    recorded: the measured prompts' own continuations, with what `drafter` thought. trees: what the labels in `rows`
    mean. tokens: by kind the committed tokens in the middle of decoding. Steady rounds alone are compared, in which
    all rows of a batch ran; prefill is in neither.
    """
    named = [PLAIN, ADVISED, *(f"{drafter}, {label}" for label in trees)]
    own = rows[rows["alternative"].isin(named) & rows["drafter"].isin([drafter, ""]) & rows["shape"].isin([*trees, ""])]
    own = own.dropna(subset="steady_seconds")
    summed = own.groupby(["pair", "batch", "shape", "kind"], as_index=False)[["steady_tokens", "steady_seconds"]].sum()
    summed["measured"] = summed["steady_tokens"] / summed["steady_seconds"]
    parts = []
    tokens = {**tokens, MIXED: float(np.mean(list(tokens.values())))}
    for kind, settings in summed.groupby("kind"):
        asked = settings.drop(columns=["steady_tokens", "steady_seconds"]).assign(
            drafter=drafter, prefix=tokens[kind], tree=[trees.get(label, ROOT_ALONE) for label in settings["shape"]])
        of_kind = recorded.select(np.array([kind in (own_kind, MIXED) for own_kind in recorded.kinds]))
        parts.append(cost.predict_rows(of_kind, costs, asked, generator))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(shape=found["shape"].replace("", PLAIN)).drop(columns=["tree", "prefix", "drafter"])


def errors(found: pd.DataFrame) -> tuple[float, float]:
    """Median and 90th percentile of the relative error's size."""
    middle, high = np.quantile(found["error"].abs(), [0.5, 0.9])
    return float(middle), float(high)
