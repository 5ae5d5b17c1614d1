"""Acceptance by depth and rank, as a run measured it or as a file gives it.

A file is CSV with the columns depth (1 for the root's children), rank (0 for the drafter's favourite) and acceptance:
the share of rounds that accept the node of this rank, of those that accepted its parent. Nothing is drafted past the
last depth; a drafter without depths has the same acceptance at each. Optional columns: drafter, for several in one
file, and source, which says where the numbers are from.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.lab import provenance
from lib.replay.acceptance import RANKS

COLUMNS = ("depth", "rank", "acceptance")
PUBLISHED = sorted((provenance.HOME / "data" / "rates").glob("*.csv"))  # of papers
DEEPEST = 16  # levels of a drafter whose acceptance is the same at each
LEAST_REACHED = 50  # rounds that accepted a depth: with fewer, the next has the acceptance of the last known one
DRAWS = 200  # of the prompts, with replacement


@dataclass(frozen=True)
class Rates:
    """A drafter's acceptance. tables: float[1 + draws, D, R], the estimate and those of resampled prompts; prompts: how
    many were measured, 0 where it is not known.
    """

    drafter: str
    source: str
    tables: np.ndarray
    prompts: int = 0


def read(path: str | Path) -> list[Rates]:
    """The drafters of a file. FileNotFoundError without it; ValueError names the first thing that is wrong."""
    path, columns = Path(path).expanduser(), ", ".join(COLUMNS)
    if not path.is_file():
        raise FileNotFoundError(f"no rates at {path.resolve()}; give a CSV file with the columns {columns}")
    try:
        rows = pd.read_csv(path)
        rows = rows.astype({name: float for name in rows.columns.intersection(COLUMNS)})
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is no table of acceptance ({' '.join(str(error).split())}); give numbers in the "
                         f"columns {columns}") from None
    if rows.empty or not {*COLUMNS} <= {*rows}:
        raise ValueError(f"{path} has {len(rows)} rows of {', '.join(rows.columns)}; give rows of {columns}")
    for name, least, most in (("depth", 1, 512), ("rank", 0, 511), ("acceptance", 0, 1)):
        right = rows[name].between(least, most) & ((rows[name] % 1 == 0) | (name == "acceptance"))
        right |= rows[name].isna() & (name == "depth")
        if not right.all():
            raise ValueError(f"{path} has {name} {rows.loc[~right, name].iloc[0]:g}; give "
                             f"{'a share' if name == 'acceptance' else 'whole numbers'} from {least} to {most}")
    texts = {name: rows[name].fillna("").astype(str) if name in rows else "" for name in ("drafter", "source")}
    return [_of_file(path, name or path.stem, own) for name, own in rows.assign(**texts).groupby("drafter", sort=False)]


def _of_file(path: Path, drafter: str, rows: pd.DataFrame) -> Rates:
    """The acceptance of one drafter."""
    everywhere = rows["depth"].isna()
    if everywhere.any() != everywhere.all():
        raise ValueError(f"{path} has rows of {drafter} with a depth and without one; give each a depth, or none")
    depth, rank = rows["depth"].fillna(1).astype(int), rows["rank"].astype(int)
    table = np.zeros((depth.max(), rank.max() + 1))
    np.add.at(table, (depth - 1, rank), rows["acceptance"])
    if rows.duplicated(["depth", "rank"]).any() or table.sum(1).max() > 1 + 1e-6:
        raise ValueError(f"{path} has a rank of {drafter} twice, or {table.sum(1).max():g} as the acceptance of all "
                         "ranks of a depth; one of them at most is accepted: give each once, as a share")
    source = next(filter(None, rows["source"]), path.name)
    return Rates(drafter, source, np.tile(table, (DEEPEST, 1))[None] if everywhere.all() else table[None])


def of_run(ranks: pd.DataFrame, depths: pd.DataFrame, target: str, rng: np.random.Generator) -> list[Rates]:
    """The drafters of a target in the tables "rank" and "depth" of a run: greedy continuations before a loop.

    The favourite has the conditional acceptance of the longest chain at each depth. Where it is wrong, the other ranks
    share the rest as they do over all positions of the text.
    """
    asked = f"target == {target!r} and temperature == 0"
    chains, found = depths.query(f"{asked} and family == 'chain'"), []
    for drafter, own in ranks.query(asked).groupby("drafter", sort=False):
        rounds = chains[(chains["drafter"] == drafter) & (chains["budget"] == chains["budget"].max())]
        names = [name for name in own["prompt"] if name in set(rounds["prompt"])]
        if not names:
            continue
        weights = np.vstack([np.ones(len(names)), rng.multinomial(len(names), np.ones(len(names)) / len(names), DRAWS)])
        own, wide = own.set_index("prompt").loc[names], rounds.pivot(index="prompt", columns="depth").loc[names]
        counts = weights @ own[[f"rank_{rank}" for rank in range(RANKS)]].to_numpy()
        wrong = np.maximum(1, weights @ own["positions"].to_numpy() - counts[:, 0])
        reached, accepted = (weights @ wide[column].fillna(0).to_numpy() for column in ("reached", "accepted"))
        last = max(0, (reached[0] >= LEAST_REACHED).cumprod().sum() - 1)
        first = (accepted / np.maximum(1, reached))[:, np.minimum(np.arange(reached.shape[1]), last)]
        others = (1 - first)[:, :, None] * (counts[:, 1:] / wrong[:, None])[:, None]
        tables = np.concatenate([first[:, :, None], others], axis=2)
        found.append(Rates(str(drafter), f"measured in this run, {target}", tables, len(names)))
    return found
