"""Which backend `auto` takes: the fastest one that was measured in the nearest cell, on a processor of the same kind.

The table `attention_choice` is what notebook 03 writes; the one beside this file was measured on the reference machine.
A user's own takes its place by being copied there. It is read at the first call.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch

from lib.lab import processor

TABLE = Path(__file__).with_name("choice.csv")
DEFAULT = "folded"  # where nothing is known, and where all else is refused
KIN = {"cpu avx512f": "cpu avx512_bf16"}  # kinds without a measurement of their own, and the nearest with one
UNMEASURED = {"cuda": "triton"}  # before DEFAULT, by device: one call without a split over the prefix fills no GPU


@dataclass(frozen=True)
class Choice:
    """The backend that `auto` takes, and the reason in words."""

    backend: str
    reason: str


@dataclass(frozen=True)
class Situation:
    """What a choice depends on. blocks: batch times key heads; rows: queries that share a key, G * m."""

    kind: str
    dtype: str
    blocks: int
    prefix: int
    rows: int
    head_dim: int

    def distance(self, other: "Situation") -> float:
        """Factors of two between them, summed over blocks, prefix, rows and the size of a head."""
        pairs = zip(self._sizes(), other._sizes())
        return sum(abs(math.log2((own + 1) / (their + 1))) for own, their in pairs)

    def _sizes(self) -> tuple[int, ...]:
        return self.blocks, self.prefix, self.rows, self.head_dim


def situation(query: torch.Tensor, key: torch.Tensor, prefix: int) -> Situation:
    """The situation of a call with query [B, Hq, m, d] and key [B, Hkv, S, d]."""
    batch, heads, nodes, dim = query.shape
    rows = heads // key.shape[1] * nodes
    dtype = str(query.dtype).removeprefix("torch.")
    return Situation(device_kind(query.device), dtype, batch * key.shape[1], prefix, rows, dim)


def device_kind(device: torch.device | str) -> str:
    """Machines whose measurements hold for each other: a processor's widest instructions, or a GPU's capability."""
    device = torch.device(device)
    if device.type == "cuda":
        return "cuda sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return f"cpu {processor.kind()}" if device.type == "cpu" else device.type


def ranked(asked: Situation, table: Path = TABLE) -> tuple[tuple[str, str], ...]:
    """(backend, reason) from the fastest of the nearest measured cell on; the last, DEFAULT, serves everything."""
    # Prefixes grow from call to call: near ones share an answer.
    near = round(2 ** (round(4 * math.log2(asked.prefix + 1)) / 4)) - 1
    return _ranked(Situation(asked.kind, asked.dtype, asked.blocks, near, asked.rows, asked.head_dim), table)


@lru_cache(maxsize=4096)
def _ranked(asked: Situation, table: Path) -> tuple[tuple[str, str], ...]:
    cells = _cells(table)
    known = cells.get((asked.kind, asked.dtype)) or cells.get((KIN.get(asked.kind), asked.dtype), {})
    unknown = f"nothing is measured for {asked.dtype} on {asked.kind}"
    general = (DEFAULT, f"{unknown}; one fused call is good everywhere")
    if not known:
        first = UNMEASURED.get(asked.kind.split()[0])
        return ((first, f"{unknown}; its kernel is made for such devices"), general) if first else (general,)
    nearest = min(known, key=asked.distance)
    times = sorted((ms, name) for name, ms in known[nearest].items())
    sizes = f"{nearest.blocks} x {nearest.prefix} keys, {nearest.rows} rows of {nearest.head_dim}"
    where = f"the nearest measured cell ({sizes})"
    found = [(name, f"{ms:.3g} ms in {where}, {_beside(name, times)}") for ms, name in times]
    return (*found, general)


def _beside(name: str, times: list[tuple[float, str]]) -> str:
    other_ms, other = next(((ms, other) for ms, other in times if other != name), (math.nan, "nothing else"))
    return f"{other} {other_ms:.3g} ms" if other_ms == other_ms else "beside nothing else"


@cache
def _cells(table: Path) -> dict[tuple[str, str], dict[Situation, dict[str, float]]]:
    """(kind, dtype) -> cell -> backend -> milliseconds; nothing where there is no such file."""
    if not table.exists():
        return {}
    cells: dict[tuple[str, str], dict[Situation, dict[str, float]]] = {}
    with open(table, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = (int(row[name]) for name in ("blocks", "prefix", "rows", "head_dim"))
            cell = Situation(row["kind"], row["dtype"], *sizes)
            own = cells.setdefault((cell.kind, cell.dtype), {}).setdefault(cell, {})
            own[row["backend"]] = float(row["median_ms"])
    return cells
