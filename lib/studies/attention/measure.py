"""How long tree attention takes: a grid of cells, in each of them every alternative on the same inputs, interleaved."""

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Callable, Iterable

import torch
from torch import Tensor

from lib.attention.operator import tree_attention
from lib.lab import timing
from lib.studies.attention.baselines import KERNELS, OURS, PREPARE, QUICK, refused
from lib.studies.attention.peaks import GIGA, Peaks
from lib.studies.attention.problem import AUTO, CHAIN, Problem
from lib.studies.attention.roofline import Work, work
from lib.trees import shapes
from lib.trees.tree import Tree

FEW_TOKENS = 16  # of prefix, of a call that brings back the code alone


@dataclass(frozen=True)
class Cell:
    """One point of the grid; its fields are the first columns of the table "attention", in their order."""

    batch: int
    prefix: int
    draft: int
    dtype: str
    query_heads: int
    kv_heads: int
    head_dim: int
    shape: str = "kary:2"

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys and values."""
        width = getattr(torch, self.dtype).itemsize
        return 2 * self.batch * self.kv_heads * (self.prefix + self.draft) * self.head_dim * width

    @property
    def tree(self) -> Tree:
        """The tree of the cell's draft length, its root included."""
        return shapes.at_budget(self.shape, self.draft - 1) if self.draft > 1 else Tree([-1])


@dataclass(frozen=True)
class Limits:
    """What a cell may use: seconds for all its alternatives together, gigabytes for any one of them."""

    seconds: float
    memory_gb: float
    repeats: int


def grid(batches, prefixes, drafts, dtypes, query_heads, kv_heads, head_dim, shape="kary:2") -> list[Cell]:
    """Every combination, the draft length innermost. ValueError for a dtype or a number of heads that cannot be."""
    unknown = [name for name in dtypes if not isinstance(getattr(torch, name, None), torch.dtype)]
    if unknown:
        raise ValueError(f"dtypes holds {unknown[0]!r}; choose among float32, bfloat16, float16, float64")
    if query_heads % kv_heads:
        raise ValueError(f"query_heads {query_heads} over kv_heads {kv_heads}: give a multiple")
    if min([*batches, *drafts]) < 1 or min(prefixes) < 0:
        raise ValueError(f"batches {batches}, drafts {drafts} start at 1 and prefixes {prefixes} at 0")
    heads = query_heads, kv_heads, head_dim, shape
    return [Cell(b, p, n, t, *heads) for t, b, p, n in product(dtypes, batches, prefixes, drafts)]


def make_problem(cell: Cell, generator: torch.Generator, device: str = "cpu") -> Problem:
    """Random inputs of a cell. The batch's rows repeat one row's numbers (at other addresses), to be made quickly."""
    dtype, slots = getattr(torch, cell.dtype), cell.prefix + cell.draft

    def normal(heads: int, tokens: int) -> Tensor:
        row = torch.randn(1, heads, tokens, cell.head_dim, generator=generator).to(device, dtype)
        return row.repeat(cell.batch, 1, 1, 1)

    query = normal(cell.query_heads, cell.draft)
    mask = torch.from_numpy(cell.tree.mask.copy()).to(device)
    return Problem(query, normal(cell.kv_heads, slots), normal(cell.kv_heads, slots), mask, cell.prefix)


def measure(
    cell: Cell,
    *,
    limits: Limits,
    peaks: Peaks,
    generator: torch.Generator,
    alternatives: Iterable[str] = QUICK,
    device: str = "cpu",
    cold: bool = False,
) -> list[dict]:
    """One row an alternative: its times, or why it was skipped: it cannot serve such a call here, it failed, or memory,
    or a time that it could not possibly keep. With `cold` the caches are flushed before each call, and a small call of
    the same kind then brings back the code: between the layers of a model it is keys and values that are gone.
    """
    names = list(alternatives)
    if cell.key_bytes > limits.memory_gb * GIGA:
        reason = f"memory: keys and values need {cell.key_bytes / GIGA:.2f} GB, the limit is {limits.memory_gb:g} GB"
        return [_row(cell, name, timing.Timing(skipped=reason)) for name in names]
    problem = make_problem(cell, generator, device)
    # Where not all fit: kernels made for trees before what they replace, and last the chain, which is no rival.
    urgency = [AUTO, *KERNELS, *OURS, *(name for name in names if name != CHAIN)]
    costs = {name: work(name, problem) for name in sorted(names, key=[*urgency, CHAIN].index)}
    skipped = {name: f"refused: {reason}" for name in names if (reason := refused(name, problem))}
    kept, too_much = _feasible(cell, {name: costs[name] for name in costs if name not in skipped}, limits, peaks)
    skipped |= too_much
    with torch.inference_mode():
        ready, failed = _prepared(sorted(kept, key=list(costs).index), problem)
        skipped |= failed
        times = timing.interleaved(
            ready, repeats=limits.repeats, seconds=limits.seconds, generator=generator, device=device,
            clock=timing.device_seconds,
            **({"before": _flusher(ready, cell, device)} if cold else {}),
        )
    times |= {name: timing.Timing(skipped=reason) for name, reason in skipped.items()}
    return [_row(cell, name, times[name], costs[name]) for name in names]


def _flusher(ready: Iterable[str], cell: Cell, device: str) -> Callable[[str], object]:
    """For `before`: flushes the caches, and calls the alternative behind a prefix of a few tokens."""
    flush = timing.flusher(device)
    small = make_problem(replace(cell, batch=1, prefix=FEW_TOKENS), torch.Generator().manual_seed(0), device)
    calls, _ = _prepared(list(ready), small)

    def before(name: str) -> None:
        flush(name)
        if name in calls:
            calls[name]()

    return before


def relative_errors(cell: Cell, generator: torch.Generator, device: str = "cpu") -> dict[str, float]:
    """||ours - truth|| / ||truth|| against the float64 reference on one cell's inputs, by alternative of QUICK."""
    problem = make_problem(cell, generator, device)
    p, wide = problem, [x.double() for x in (problem.query, problem.key, problem.value)]
    truth = tree_attention(*wide, p.tree_mask, p.prefix, backend="reference")
    outputs = {name: PREPARE[name](p)().double() for name in QUICK if not refused(name, p)}
    return {name: ((output - truth).norm() / truth.norm()).item() for name, output in outputs.items()}


def _feasible(
    cell: Cell, costs: dict[str, Work], limits: Limits, peaks: Peaks
) -> tuple[list[str], dict[str, str]]:
    """Alternatives that may fit the limits, cheapest first, and why the others cannot, even at the machine's peak."""
    reasons, least = {}, {}
    for name, cost in costs.items():
        needed = (cell.key_bytes + cost.extra_bytes) / GIGA
        if needed > limits.memory_gb:
            reasons[name] = f"memory: needs {needed:.2f} GB, the limit is {limits.memory_gb:g} GB"
        else:
            least[name] = cost.seconds(peaks.cached_bandwidth, peaks.throughput[cell.dtype])
    kept = timing.affordable(least, limits.seconds)
    too_long = {name: timing.too_long(each, limits.seconds) for name, each in least.items() if name not in kept}
    return kept, reasons | {name: f"{reason}, at the machine's peak" for name, reason in too_long.items()}


def _prepared(names: list[str], problem: Problem) -> tuple[dict[str, Callable[[], Tensor]], dict[str, str]]:
    """The alternatives ready to be called, and why the others failed.

    One that a device cannot compile, or has no memory for, does not end the study.
    """
    ready, failed = {}, {}
    for name in names:
        try:
            ready[name] = PREPARE[name](problem)
        except Exception as error:  # whatever a compiler or a library raises
            failed[name] = timing.failure(error)
    return ready, failed


def _row(cell: Cell, name: str, timed: timing.Timing, cost: Work = Work(0, 0)) -> dict:
    times = {"median_ms": 1e3 * timed.median, "lower_ms": 1e3 * timed.lower, "upper_ms": 1e3 * timed.upper}
    costs = {**asdict(cost), "skipped": timed.skipped}
    return {**asdict(cell), "alternative": name, **times, "repeats": timed.repeats, **costs}
