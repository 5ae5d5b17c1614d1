"""How long tree attention takes: a grid of cells, in each of which all alternatives run interleaved on the same inputs.

`measure` times one cell, `fill` a table of them, `roofline_rows` gives what any computation of the cells needs, and
`choice_rows` the times that `backend="auto"` chooses from.
"""

from dataclasses import asdict, astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Callable, Iterable, Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor

from lib.attention import choice
from lib.attention.operator import tree_attention
from lib.lab import processor, provenance, timing
from lib.lab.tables import Table
from lib.studies.attention.baselines import COLD, COMPILED, OURS, PREPARE, QUICK, Problem, copies, refused
from lib.studies.attention.peaks import GIGA, Peaks
from lib.trees import shapes
from lib.trees.tree import Tree

FEW_TOKENS = 16  # of prefix, of the small calls that load a kernel's code or estimate its time
PATIENCE = 3  # times its share of time that a call may take, by an estimate from smaller calls


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
        return 2 * self.batch * self.kv_heads * (self.prefix + self.draft) * self.head_dim * self.kind.itemsize

    @property
    def kind(self) -> torch.dtype:
        """The dtype by its name."""
        return getattr(torch, self.dtype)

    @property
    def tree(self) -> Tree:
        """The tree of the cell's draft length, its root included."""
        return shapes.at_budget(self.shape, self.draft - 1) if self.draft > 1 else Tree([-1])


@dataclass(frozen=True)
class Limits:
    """Limits of a cell: seconds for all its alternatives together, gigabytes for any one of them, repeats of a call."""

    seconds: float
    memory_gb: float
    repeats: int


def grid(batches, prefixes, drafts, dtypes, query_heads, kv_heads, head_dim, shape="kary:2") -> list[Cell]:
    """All combinations, the draft length innermost. ValueError for an unknown dtype or sizes that do not fit."""
    unknown = [name for name in dtypes if not isinstance(getattr(torch, name, None), torch.dtype)]
    if unknown:
        raise ValueError(f"dtypes holds {unknown[0]!r}; choose among float32, bfloat16, float16, float64")
    if query_heads % kv_heads:
        raise ValueError(f"query_heads {query_heads} over kv_heads {kv_heads}: give a multiple")
    if min([*batches, *drafts]) < 1 or min(prefixes) < 0:
        raise ValueError(f"batches {batches}, drafts {drafts} start at 1 and prefixes {prefixes} at 0")
    heads = query_heads, kv_heads, head_dim, shape
    return [Cell(b, p, n, t, *heads) for t, b, p, n in product(dtypes, batches, prefixes, drafts)]


def measurable(dtypes: Sequence[str], device: str = "cpu") -> list[str]:
    """The number formats that the device has units for. ValueError where there are none."""
    names = [name for name in dtypes if not processor.slow_dtype(getattr(torch, name), device)]
    if not names:
        raise ValueError(f"dtypes is {list(dtypes)}, and the processor has no units for any of them; add 'float32'")
    return names


def make_problem(cell: Cell, generator: torch.Generator, device: str = "cpu") -> Problem:
    """Random inputs of a cell. To save time, the rows of a batch repeat one row's numbers at other addresses."""
    slots = cell.prefix + cell.draft

    def normal(heads: int, tokens: int) -> Tensor:
        row = torch.randn(1, heads, tokens, cell.head_dim, generator=generator).to(device, cell.kind)
        return row.repeat(cell.batch, 1, 1, 1)

    query = normal(cell.query_heads, cell.draft)
    mask = torch.from_numpy(cell.tree.mask.copy()).to(device)
    return Problem(query, normal(cell.kv_heads, slots), normal(cell.kv_heads, slots), mask, cell.prefix)


def measure(cell: Cell, *, limits: Limits, generator: torch.Generator, alternatives: Iterable[str] = QUICK,
            device: str = "cpu", cold: bool = False) -> list[dict]:
    """One row per alternative: its times, or why it was skipped.

    An alternative is skipped where it cannot serve such a call here, failed, needs more memory than the limit, or
    cannot keep the limit of time, by an estimate from smaller calls. A cell whose number format the processor has no
    units for is skipped as a whole.
    cold: the caches are flushed before each call. A small call of the same kind then loads the code again, since
        between the layers of a model only keys and values are evicted.
    """
    names = list(alternatives)
    if reason := processor.slow_dtype(cell.kind, device):
        return [_row(cell, name, timing.Timing(skipped=f"refused: {reason}")) for name in names]
    if cell.key_bytes > limits.memory_gb * GIGA:
        reason = f"memory: keys and values need {cell.key_bytes / GIGA:.2f} GB, the limit is {limits.memory_gb:g} GB"
        return [_row(cell, name, timing.Timing(skipped=reason)) for name in names]
    problem, skipped = make_problem(cell, generator, device), {}
    for name in names:
        needed = cell.key_bytes * (1 + copies(name, problem)) / GIGA
        if reason := refused(name, problem):
            skipped[name] = f"refused: {reason}"
        elif needed > limits.memory_gb:
            skipped[name] = f"memory: needs {needed:.2f} GB, the limit is {limits.memory_gb:g} GB"
    with torch.inference_mode():
        estimated = [name for name in names if name not in skipped and name != COMPILED]
        skipped |= _too_slow(cell, estimated, limits, device)
        ready, failed = _prepared([name for name in names if name not in skipped], problem)
        times = timing.interleaved(ready, repeats=limits.repeats, seconds=limits.seconds, generator=generator,
                                   device=device, clock=timing.device_seconds,
                                   **({"before": _flusher(ready, cell, device)} if cold else {}))
    times |= {name: timing.Timing(skipped=reason) for name, reason in (skipped | failed).items()}
    return [_row(cell, name, times[name]) for name in names]


def _flusher(ready: Iterable[str], cell: Cell, device: str) -> Callable[[str], object]:
    """For `before`: flushes the caches, then calls the alternative with a prefix of a few tokens."""
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


def _too_slow(cell: Cell, names: list[str], limits: Limits, device: str) -> dict[str, str]:
    """Why alternatives would take more than PATIENCE times the limit of time, estimated from smaller calls.

    Each alternative is called on growing cells until the estimate, in proportion to the keys, is within the limit, or a
    call takes a tenth of it, which is long beside any overhead.
    """
    limit, reasons, undecided = PATIENCE * limits.seconds, {}, list(names)
    for smaller in _smaller(cell):
        if not undecided:
            break
        problem = make_problem(smaller, torch.Generator().manual_seed(0), device)
        calls, _ = _prepared(undecided, problem)
        for name in list(undecided):
            try:
                calls[name]()
                once = timing.device_seconds(calls[name], device)
            except Exception:  # the call on the whole cell says why
                undecided.remove(name)
                continue
            estimate = once * cell.key_bytes / smaller.key_bytes
            if estimate <= limit or once > limit / 10:
                undecided.remove(name)
            if estimate > limit and once > limit / 10:
                too_long = timing.too_long(estimate, limits.seconds)
                reasons[name] = f"{too_long}, estimated from {once:.3g} s of a smaller one"
    return reasons


def _smaller(cell: Cell) -> Iterator[Cell]:
    """The cell at batch 1 with prefixes that grow eightfold, then with its own prefix."""
    prefix = FEW_TOKENS
    while prefix < cell.prefix:
        yield replace(cell, batch=1, prefix=prefix)
        prefix *= 8
    if cell.batch > 1:
        yield replace(cell, batch=1)


def _prepared(names: list[str], problem: Problem) -> tuple[dict[str, Callable[[], Tensor]], dict[str, str]]:
    """The alternatives ready to be called, and why the others failed; a failure does not end the study."""
    ready, failed = {}, {}
    for name in names:
        try:
            ready[name] = PREPARE[name](problem)
        except Exception as error:  # compilers and libraries raise errors of many kinds
            failed[name] = timing.failure(error)
    return ready, failed


def _row(cell: Cell, name: str, timed: timing.Timing) -> dict:
    return {**asdict(cell), "alternative": name, **timed.row, "skipped": timed.skipped}


def fill(run_dir: str | Path, name: str, cells: Iterable[Cell], *, limits: Limits, seed: int, device: str = "cpu",
         compiled: bool = False) -> pd.DataFrame:
    """The table "attention" or "attention_cold" over these cells; cells that a stopped run has finished are not
    repeated.

    A cell's rows are on disk as soon as it is done. Its inputs depend on `seed` and its place in the grid. `compiled`:
    includes FlexAttention, which takes long to compile.
    """
    cold = name == "attention_cold"
    alternatives = [each for each in (COLD if cold else PREPARE) if compiled or each != COMPILED]
    given = asdict(limits) | {"seed": seed, "alternatives": alternatives}
    mark = provenance.fingerprint(parameters=given, device=device)
    table = Table(run_dir, name, mark)
    done = {key[:-1] for key in table.keys()}
    for place, cell in enumerate(cells):
        if astuple(cell) not in done:
            generator = torch.Generator().manual_seed(seed + place)
            table.extend(measure(cell, limits=limits, generator=generator, alternatives=alternatives, device=device,
                                 cold=cold))
    return table.frame()


def roofline_rows(cells: Iterable[Cell], peaks: Peaks) -> list[dict]:
    """The rows of the table "attention_roofline", for cells of number formats that have a peak.

    Any computation reads queries, keys and values once and writes its output; of the tree's own pairs of nodes it
    computes the visible ones.
    """
    rows = []
    for cell in (cell for cell in cells if cell.dtype in peaks.throughput):
        ends = 2 * cell.batch * cell.query_heads * cell.draft * cell.head_dim * cell.kind.itemsize
        pairs = cell.batch * cell.query_heads * (cell.draft * cell.prefix + int(cell.tree.mask.sum()))
        moved, operations = cell.key_bytes + ends, 4 * cell.head_dim * pairs
        seconds = max(moved / peaks.bandwidth, operations / peaks.throughput[cell.dtype])
        rows.append({**asdict(cell), "bytes": moved, "operations": operations, "least_ms": 1e3 * seconds})
    return rows


def choice_rows(rows: pd.DataFrame, device: str = "cpu") -> list[dict]:
    """The rows of table "attention_choice", from timed rows of table "attention"; of several shapes, the first.

    A cell in which a backend was skipped is left out: the skipped one may be the fastest.
    """
    own = rows[rows["alternative"].isin(OURS) & (rows["repeats"] > 0)]
    own = own.assign(kind=choice.device_kind(device), blocks=own["batch"] * own["kv_heads"],
                     rows=own["query_heads"] // own["kv_heads"] * own["draft"], backend=own["alternative"])
    cell = ["kind", "dtype", "blocks", "prefix", "rows", "head_dim"]
    own = own.drop_duplicates([*cell, "backend"])
    complete = own.groupby(cell)["backend"].transform("size") == own.groupby("dtype")["backend"].transform("nunique")
    return own.loc[complete, [*cell, "backend", "median_ms"]].round({"median_ms": 5}).to_dict("records")
