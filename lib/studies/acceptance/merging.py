"""What it spares to merge several drafters' sequences into one tree (SpecInfer, Miao et al. 2024, section 3)."""

from collections import defaultdict
from itertools import product
from typing import Sequence

import numpy as np
import pandas as pd

from lib import drafters
from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.drafters.merged import Sharing, node_bytes
from lib.lab import stats

ROWS = 16  # of a batch
SETTING = ["shape", "drafters"]


def measure(pair, models: Sequence, asked, shape_names: Sequence[str], *, new_tokens: int) -> pd.DataFrame:
    """The table "merging": for every shape, the first two, three, .. models and every prompt, the nodes that were
    drafted greedily with each sequence apart, with each drafter's tree apart, and in one tree.

    models: drafters of the pair's target. asked: names, kinds, ids (see `recording.Prompts`).
    """
    rows = []
    for shape, count in product(shape_names, range(2, len(models) + 1)):
        drafter, done = drafters.make("merged", models=models[:count], vocabulary=pair.vocabulary), 0
        for padded, mask in in_batches(asked.ids, ROWS):
            shared: dict[int, Sharing] = defaultdict(Sharing)

            def note(alive, drafts, decided):
                for row, own, draft in zip(alive, zip(*drafter.apart), drafts):
                    shared[row] = shared[row].and_round(own, draft)

            generate(pair.target, drafter, padded, attention_mask=mask, shape=shape, max_new_tokens=new_tokens,
                     eos_token_id=pair.eos_token_ids, observe=note)
            rows += [dict(target=pair.target_name, shape=shape, drafters=count, prompt=asked.names[done + row],
                          kind=asked.kinds[done + row], **vars(found), node_bytes=node_bytes(pair.target))
                     for row, found in shared.items()]
            done += len(padded)
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """By shape and how many drafters are merged: nodes a round in the three ways, the share of the sequences' nodes
    that one tree spares (value, low, high: 95 % over prompts), and the KiB of the target's cache that a round spares.
    """
    nodes = rows.groupby(SETTING)[["rounds", "sequences", "trees", "merged"]].sum()
    each = nodes[["sequences", "trees", "merged"]].div(nodes["rounds"], axis=0)
    share = stats.summarise(rows, SETTING, "merged", "sequences", generator).set_index(SETTING)
    spared = (1 - share[["value", "high", "low"]]).set_axis(["value", "low", "high"], axis=1)
    kib = (each["sequences"] - each["merged"]) * rows["node_bytes"].iloc[0] / 1024
    return each.join(spared).assign(kib=kib)


def needed(found: pd.DataFrame) -> str:
    """Of the sequences' nodes the share that one tree needs, over all settings of a `summary`, in words."""
    return " to ".join(dict.fromkeys(f"{1 - share:.0%}" for share in (found["value"].max(), found["value"].min())))
