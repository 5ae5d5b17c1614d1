"""The attention study's tables: times of a grid, cell by cell; each cell's roofline; what `auto` chooses from."""

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Iterable

import pandas as pd
import torch

from lib.attention import choice
from lib.attention.choice import device_kind
from lib.kernels import onepass
from lib.lab import provenance
from lib.lab.tables import Table
from lib.studies.attention import gpu_libraries
from lib.studies.attention import measure as study
from lib.studies.attention.baselines import COMPILED, OURS, PREPARE
from lib.studies.attention.measure import Cell, Limits
from lib.studies.attention.peaks import Peaks
from lib.studies.attention.problem import Problem
from lib.studies.attention.roofline import least

COLD = (*OURS, "dense mask", *gpu_libraries.LIBRARIES)  # what is timed with flushed caches too
FLUSHED = ("attention_cold", "attention_heads")  # the tables of such times


def fill(
    run_dir: str | Path, name: str, cells: Iterable[Cell], *, limits: Limits, peaks: Peaks, seed: int,
    device: str = "cpu", compiled: bool = False,
) -> pd.DataFrame:
    """The table "attention" or one of FLUSHED over these cells; those that a stopped run has done are not done again.

    A cell's rows are on disk as soon as it is done. Its inputs follow from `seed` and its place in the grid.
    `compiled`: with what takes long to compile. Libraries that are not installed have no rows.
    """
    cold = name in FLUSHED
    absent = {*gpu_libraries.LIBRARIES} - {*gpu_libraries.installed()} | (set() if compiled else {COMPILED})
    alternatives = [each for each in (COLD if cold else PREPARE) if each not in absent]
    given = asdict(limits) | {"seed": seed, "alternatives": alternatives}
    files = [*onepass.SOURCES, choice.TABLE]  # they decide about times, and are no Python
    mark = provenance.fingerprint(code=[study], files=files, parameters=given, device=device)
    table = Table(run_dir, name, mark)
    done = {key[:-1] for key in table.keys()}
    for place, cell in enumerate(cells):
        if astuple(cell) not in done:
            generator = torch.Generator().manual_seed(seed + place)
            table.extend(study.measure(cell, limits=limits, peaks=peaks, generator=generator,
                                       alternatives=alternatives, device=device, cold=cold))
    return table.close()


def roofline_row(cell: Cell, peaks: Peaks, cache_bytes: int) -> dict:
    """A cell's row of the table "attention_roofline", on a device whose caches hold `cache_bytes`."""
    # Sizes alone count: expanded scalars stand for the tensors.
    query, key = (
        torch.zeros((), dtype=getattr(torch, cell.dtype)).expand(cell.batch, heads, tokens, cell.head_dim)
        for heads, tokens in ((cell.query_heads, cell.draft), (cell.kv_heads, cell.prefix + cell.draft))
    )
    need = least(Problem(query, key, key, torch.from_numpy(cell.tree.mask.copy()), cell.prefix))
    warm = peaks.cached_bandwidth if cell.key_bytes <= cache_bytes else peaks.bandwidth
    milliseconds = {
        name: 1e3 * need.seconds(bandwidth, peaks.throughput[cell.dtype])
        for name, bandwidth in (("warm_ms", warm), ("cold_ms", peaks.bandwidth))
    }
    return {**asdict(cell), "bytes": need.bytes, "operations": need.operations, **milliseconds}


def choice_rows(rows: pd.DataFrame, device: str = "cpu") -> list[dict]:
    """The rows of table "attention_choice" that timed rows of table "attention" give; of several shapes, the first.

    A cell in which a backend was skipped is left out: its fastest may be the one that there was no time for.
    """
    own = rows[rows["alternative"].isin(OURS) & (rows["repeats"] > 0)]
    own = own.assign(
        kind=device_kind(device), blocks=own["batch"] * own["kv_heads"],
        rows=own["query_heads"] // own["kv_heads"] * own["draft"], backend=own["alternative"],
    )
    cell = ["kind", "dtype", "blocks", "prefix", "rows", "head_dim"]
    own = own.drop_duplicates([*cell, "backend"])
    complete = own.groupby(cell)["backend"].transform("size") == own.groupby("dtype")["backend"].transform("nunique")
    return own.loc[complete, [*cell, "backend", "median_ms"]].round({"median_ms": 5}).to_dict("records")
