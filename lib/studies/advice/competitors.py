"""The drafters that compete for a target in the advice: its pairs' own models, trained heads, and n-grams."""

from typing import Sequence

import pandas as pd
import torch

from lib import cost
from lib.drafters.heads.store import check_shipped
from lib.studies.acceptance import measure
from lib.studies.speed import alternatives

CELL, CHECKING = ["batch", "prefix", "shape"], ["verify_ms", "commit_ms"]


def of_target(pairs: Sequence, heads: Sequence[str]) -> dict[str, object]:
    """By name the models of pairs that share a target, and drafters of its shipped heads (or n-grams) of these kinds: as
    `trace.record` takes them.
    """
    models = {pair.drafter_name: pair.draft_model for pair in pairs}
    return models | {kind: _head(pairs[0], kind) for kind in heads}


def folders(pairs: Sequence, heads: Sequence[str]) -> list[str]:
    """The local folders of all models and heads: their content is what results depend on."""
    own = {folder for pair in pairs for folder in pair.folders}
    return sorted(own | {_head(pair, kind).name_or_path for pair in pairs for kind in heads})


def calibrate(pairs: Sequence, heads: Sequence[str], prompts: Sequence[torch.Tensor], **settings) -> pd.DataFrame:
    """`cost.calibrate` of every pair, and of the heads of each target; settings: as that takes them.

    What verifying a shape takes is the pair's own model's to say where a drafter leaves out nodes.
    """
    parts = [cost.calibrate(pair, prompts, **settings) for pair in pairs]
    for group in measure.by_target(pairs).values():
        for kind in heads:
            made = _head(group[0], kind)
            found = cost.calibrate(group[0], prompts, drafter=made, **settings).assign(drafter=kind)
            if getattr(made, "leaves_out", False):
                checked = parts[pairs.index(group[0])]
                found[CHECKING] = checked.set_index(CELL)[CHECKING].loc[list(found[CELL].itertuples(index=False))].values
            parts.append(found)
    return pd.concat(parts, ignore_index=True)


def _head(pair, kind: str):
    check_shipped(pair.target_name, kind)
    return alternatives.made(pair, kind)
