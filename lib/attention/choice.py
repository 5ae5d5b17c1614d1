"""The backend that `auto` takes: the fastest in the nearest measured cell, on a processor of the same kind.

Notebook 03 writes the measurements as the table `attention_choice`. The copy beside this file (choice.csv) was measured
on the reference machine; replace it to use your own. It is read at the first call.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from lib.lab import processor

SIZES = ("blocks", "prefix", "rows", "head_dim")  # of a call
TABLE = Path(__file__).with_name("choice.csv")
LENGTHS_APART = ("folded", "split")  # backends that serve rows of one length at a time
DEFAULT = "folded"  # where nothing was measured, and where all others refuse
# kinds without measurements -> the nearest kind with some; "cuda": any other GPU
SIMILAR = {"cpu avx512f": "cpu avx512_bf16", "cpu avx2": "cpu avx512_bf16", "cuda": "cuda sm_90"}


@dataclass(frozen=True)
class Situation:
    """What a choice depends on. blocks: batch times key heads; rows: queries per key head, G * m."""

    kind: str
    dtype: str
    blocks: int
    prefix: int
    rows: int
    head_dim: int

    def distance(self, other: "Situation") -> float:
        """The difference of the logarithms (base 2) of blocks, prefix, rows and head size, summed."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in SIZES)
        return sum(abs(math.log2((one + 1) / (another + 1))) for one, another in pairs)


def situation(query: torch.Tensor, key: torch.Tensor, prefix: int) -> Situation:
    """The situation of a call with query [B, Hq, m, d] and key [B, Hkv, S, d]."""
    batch, heads, nodes, dim = query.shape
    rows = heads // key.shape[1] * nodes
    dtype = str(query.dtype).removeprefix("torch.")
    return Situation(device_kind(query.device), dtype, batch * key.shape[1], prefix, rows, dim)


def device_kind(device: torch.device | str) -> str:
    """The class of machines that share measurements: a processor's widest instructions, or a GPU's capability."""
    device = torch.device(device)
    if device.type == "cuda":
        return "cuda sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return f"cpu {processor.kind()}" if device.type == "cpu" else device.type


def ranked(call: Situation, table: Path = TABLE, calls: int = 1) -> list[str]:
    """Backends, the fastest of the nearest measured cell first; the last, DEFAULT, serves all calls.

    calls: those of a backend that serves rows of one length at a time, each as long as one of all rows.
    """
    cells = _cells(table)
    similar = SIMILAR.get(call.kind) or SIMILAR.get(call.kind.split()[0])
    measured = cells.get((call.kind, call.dtype)) or cells.get((similar, call.dtype))
    if not measured:
        return [DEFAULT]
    times = measured[min(measured, key=call.distance)]
    taken = {name: time * (calls if name in LENGTHS_APART else 1) for name, time in times.items()}
    return [*sorted(taken, key=taken.get), DEFAULT]


@cache
def _cells(table: Path) -> dict[tuple[str, str], dict[Situation, dict[str, float]]]:
    """(kind, dtype) -> cell -> backend -> milliseconds; empty where there is no such file."""
    if not table.exists():
        return {}
    cells: dict[tuple[str, str], dict[Situation, dict[str, float]]] = {}
    with open(table, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = (int(row[name]) for name in SIZES)
            cell = Situation(row["kind"], row["dtype"], *sizes)
            cells.setdefault((cell.kind, cell.dtype), {}).setdefault(cell, {})[row["backend"]] = float(row["median_ms"])
    return cells
