"""How long tree attention takes, beside its alternatives and the peaks of the machine: the tables of notebook 03.

In each cell of a grid all alternatives run interleaved on the same inputs. `PREPARE[name](problem)` makes what a
decoder has at hand anyway (index lists, a cache with room after the prefix) and returns the function without arguments
that is timed: it computes [B, Hq, m, d], and does what a decoder must do for each tree (copies of keys, masks, plans).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import pandas as pd
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lib.attention.backends import BACKENDS, folded, refusal
from lib.attention.masks import SharedMask, causal
from lib.attention.operator import tree_attention
from lib.lab import processor, timing
from lib.lab.chapter import Store
from lib.study.settings import Attention
from lib.trees import named
from lib.trees.tree import Tree

OURS = tuple(name for name in BACKENDS if name != "reference")
COLD = (*OURS, "dense mask")  # the alternatives that are also timed with flushed caches
CELL = ("dtype", "batch", "prefix", "draft", "cold")  # the columns of the table "attention" that name a cell
CHECKED = (2, 256, 32)  # batch, prefix and draft of the cell in which the results are compared
FEW_TOKENS = 16  # of prefix, of the small calls that load a kernel's code
PATIENCE = 3  # times the limit of time that one call may take, by the bytes that it reads
LEAST_READ, READ_BY_GPU = 2**28, 2**30  # bytes, to find the memory's bandwidth: more than the caches hold
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Cell:
    """One point of the grid. cold: the processor's caches are flushed before each call."""

    dtype: str
    batch: int
    prefix: int
    draft: int
    cold: bool = False
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    shape: str = "kary:2"

    @property
    def number(self) -> torch.dtype:
        """The dtype by its name."""
        return getattr(torch, self.dtype)

    @property
    def tree(self) -> Tree:
        """The tree of the cell's draft length, its root included."""
        return named(f"{self.shape}@{self.draft - 1}") if self.draft > 1 else Tree([-1])

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys and values."""
        return 2 * self.batch * self.kv_heads * (self.prefix + self.draft) * self.head_dim * self.number.itemsize

    def roofline(self, peaks: Mapping[str, float]) -> dict[str, float]:
        """The least bytes, operations and milliseconds of the cell; the last NaN where its dtype has no peak.

        Any computation reads queries, keys and values once and writes its output. A visible pair of query row and key
        takes 4 d operations, 2 d for q k^T and 2 d for p v. The roofline (Williams et al. 2009) is the longer of
        bytes / bandwidth and operations / throughput.
        """
        ends = 2 * self.batch * self.query_heads * self.draft * self.head_dim * self.number.itemsize
        pairs = self.batch * self.query_heads * (self.draft * self.prefix + int(self.tree.mask.sum()))
        moved, operations = self.key_bytes + ends, 4 * self.head_dim * pairs
        throughput = peaks.get(f"throughput {self.dtype}", float("nan"))
        seconds = max(operations / throughput, moved / peaks["bandwidth"])
        return {"bytes": moved, "operations": operations, "least_ms": 1e3 * seconds}


def measure(store: Store, settings: Attention) -> None:
    """The tables "peaks", "attention_errors" and "attention"; a cell's inputs depend on the seed and its place in the
    grid. With flushed caches only the smallest batch is timed. ValueError where the device has units for none of the
    dtypes, or heads do not fit.
    """
    device, dtypes, drafts, prefixes = settings.device, settings.dtypes, settings.drafts, settings.prefixes
    if settings.query_heads % settings.kv_heads:
        raise ValueError(f"query_heads {settings.query_heads} over kv_heads {settings.kv_heads}: give a multiple")
    with_units = [name for name in dtypes if not processor.slow_dtype(getattr(torch, name), device)]
    if not with_units:
        raise ValueError(f"dtypes is {dtypes}, and the processor has no units for any of them; add 'float32'")
    layer = (settings.query_heads, settings.kv_heads, settings.head_dim, settings.shape)
    peaks = store.once("peaks", lambda: peak_rows(with_units, device)).set_index("what")["value"]
    checked = [Cell(name, *CHECKED, False, *layer) for name in with_units]
    store.once("attention_errors", lambda: pd.concat(error_rows(cell, settings.seed, device) for cell in checked))
    table = store.open("attention")
    done = {key[:-1] for key in table.keys()}
    grid = [*product(dtypes, settings.batches, prefixes, drafts, [False]),
            *product(dtypes, [min(settings.batches)], prefixes, drafts, [True])]
    for number, key in enumerate(grid):
        if key not in done:
            generator = torch.Generator().manual_seed(settings.seed + number)
            table.extend(time_cell(
                Cell(*key, *layer), [*(COLD if key[-1] else PREPARE)], peaks, seconds=settings.cell_seconds,
                memory_gb=settings.memory_limit_gb, repeats=settings.repeats, generator=generator, device=device))


@dataclass(frozen=True)
class Problem:
    """One call of tree attention: the same tree and prefix length in every row."""

    query: Tensor  # [B, Hq, m, d]
    key: Tensor  # [B, Hkv, prefix + m, d]
    value: Tensor  # [B, Hkv, prefix + m, d]
    tree_mask: Tensor  # bool [m, m], nodes in topological order
    prefix: int

    @classmethod
    def random(cls, cell: Cell, generator: torch.Generator, device: str = "cpu") -> "Problem":
        """Random inputs of a cell. To save time, the rows of a batch repeat one row's numbers at other addresses."""
        heads, tokens = [cell.query_heads, *2 * [cell.kv_heads]], [cell.draft, *2 * [cell.prefix + cell.draft]]
        rows = [torch.randn(1, *shape, cell.head_dim, generator=generator).to(device, cell.number)
                for shape in zip(heads, tokens)]
        mask = torch.from_numpy(cell.tree.mask.copy()).to(device)
        return cls(*(row.repeat(cell.batch, 1, 1, 1) for row in rows), mask, cell.prefix)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def paths(self) -> list[Tensor]:
        """Node indices root .. leaf, one int64 tensor per leaf."""
        is_leaf = self.tree_mask.sum(0) == 1  # a leaf is visible to itself alone
        return [self.tree_mask[leaf].nonzero().flatten() for leaf in is_leaf.nonzero().flatten()]


def in_backend(backend: str, p: Problem) -> Call:
    """`tree_attention` itself as an alternative."""
    return lambda: tree_attention(*p.inputs, p.tree_mask, p.prefix, backend=backend)


def dense_mask(p: Problem) -> Call:
    """transformers' "sdpa": a mask over prefix and tree for each tree; keys and values repeated per query head."""
    module = SimpleNamespace(num_key_value_groups=p.group, is_causal=True)

    def run() -> Tensor:
        batch, _, m, _ = p.query.shape
        mask = torch.ones(batch, 1, m, p.prefix + m, dtype=torch.bool, device=p.query.device)
        mask[..., p.prefix :] = p.tree_mask
        output, _ = sdpa_attention_forward(module, p.query, p.key, p.value, mask)
        return output.transpose(1, 2)

    return run


def sequential(p: Problem, by_path: bool) -> Call:
    """One root-to-leaf path after another, each causal and for the nodes that no earlier path has computed; or node by
    node, as in plain decoding. A path's keys and values are copied to the slots after the prefix.
    """
    computed, calls = set(), []
    for path in p.paths if by_path else [row.nonzero().flatten() for row in p.tree_mask]:
        new = path[[node not in computed for node in path.tolist()]]  # at the path's end
        computed.update(path.tolist())
        calls.append((path, new, SharedMask(causal(len(new), 0, path.device))))
    cache_key, cache_value = p.key.clone(), p.value.clone()

    def run() -> Tensor:
        output = torch.empty_like(p.query)
        for path, new, mask in calls:
            end = p.prefix + len(path)
            cache_key[:, :, p.prefix : end] = p.key[:, :, p.prefix + path]
            cache_value[:, :, p.prefix : end] = p.value[:, :, p.prefix + path]
            output[:, :, new] = folded(p.query[:, :, new], cache_key, cache_value, mask, [end - len(new)] * len(output),
                                       output.shape[-1] ** -0.5, need_lse=False)[0]
        return output

    return run


PREPARE: dict[str, Callable[[Problem], Call]] = {
    **{name: partial(in_backend, name) for name in ("auto", *OURS)},
    "dense mask": dense_mask,
    "path by path": partial(sequential, by_path=True),
    "node by node": partial(sequential, by_path=False),
}


def time_cell(cell: Cell, names: Sequence[str], peaks: Mapping[str, float], *, seconds: float, memory_gb: float,
              repeats: int, generator: torch.Generator, device: str = "cpu") -> list[dict]:
    """A row of the table "attention" for each alternative: its quartiles, or why it was skipped.

    seconds: for all alternatives together; memory_gb: for any one of them; repeats: of a call, at most. In a cold cell
    a call with a short prefix loads the code again after the caches were flushed, since layers share it.
    """
    small = Problem.random(replace(cell, batch=1, prefix=FEW_TOKENS), torch.Generator().manual_seed(0), device)
    skipped = {name: reason for name in names
               if (reason := reason_to_skip(name, cell, small, peaks["bandwidth"], seconds, memory_gb))}
    serving, before = [name for name in names if name not in skipped], {}
    with torch.inference_mode():
        ready, failed = prepared(serving, Problem.random(cell, generator, device) if serving else small)
        if cell.cold:
            flush, (small_calls, _) = timing.flusher(device), prepared(ready, small)
            before = {"before": lambda name: (flush(name), small_calls.get(name, int)())}
        times = timing.interleaved(ready, repeats=repeats, seconds=seconds, generator=generator, device=device,
                                   **before)
    times |= {name: timing.Timing(skipped=reason) for name, reason in (skipped | failed).items()}
    columns, roofline = dict(zip(CELL, astuple(cell))), cell.roofline(peaks)
    return [dict(**columns, alternative=name, ms=1e3 * time.median, low=1e3 * time.lower, high=1e3 * time.upper,
                 n=time.repeats, skipped=time.skipped, **roofline) for name, time in zip(names, map(times.get, names))]


def reason_to_skip(name: str, cell: Cell, small: Problem, bandwidth: float, seconds: float, memory_gb: float) -> str:
    """Why an alternative cannot serve a cell or would pass its limits, by the copies of keys and values that it makes
    and how often it reads them; empty if it can, or only a call can tell. small: a problem of this kind.
    """
    if refused := processor.slow_dtype(cell.number, small.query.device) or refusal(name, *small.inputs):
        return f"refused: {refused}"
    copies, reads = {"dense mask": (small.group, small.group), "path by path": (1, len(small.paths)),
                     "node by node": (1, cell.draft)}.get(name, (0, 1))
    gigabytes = cell.key_bytes * (1 + copies) / 1e9
    if gigabytes > memory_gb:
        return f"memory: needs {gigabytes:.2f} GB, the limit is {memory_gb:g} GB"
    estimate = reads * cell.key_bytes / bandwidth
    return timing.too_long(estimate, seconds) if estimate > PATIENCE * seconds else ""


def prepared(names: Iterable[str], problem: Problem) -> tuple[dict[str, Call], dict[str, str]]:
    """The alternatives ready to be called, and why the others failed; a failure does not end the study."""
    ready, failed = {}, {}
    for name in names:
        try:
            ready[name] = PREPARE[name](problem)
        except Exception as error:  # compilers and libraries raise errors of many kinds
            failed[name] = timing.failure(error)
    return ready, failed


def error_rows(cell: Cell, seed: int = 0, device: str = "cpu") -> pd.DataFrame:
    """The rows of "attention_errors" of one dtype: || ours - truth || / || truth || against the float64 reference."""
    p = Problem.random(cell, torch.Generator().manual_seed(seed), device)
    wide = [x.double() for x in p.inputs]
    truth = tree_attention(*wide, p.tree_mask, p.prefix, backend="reference")
    errors = {name: float((prepare(p)().double() - truth).norm() / truth.norm()) for name, prepare in PREPARE.items()
              if not refusal(name, *p.inputs)}
    return pd.DataFrame([dict(dtype=cell.dtype, alternative=name, error=error) for name, error in errors.items()])


def peak_rows(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> pd.DataFrame:
    """The rows of the table "peaks", from calls repeated for `seconds` each: bytes per second from memory, and
    operations per second of the fastest products in each dtype.
    """
    rates = {"bandwidth": bytes_per_second(device, seconds)}
    for name in dtypes:
        rates[f"throughput {name}"] = max(operations / timing.shortest(call, device, seconds)
                                          for operations, call in counted_calls(getattr(torch, name), device))
    return pd.DataFrame([dict(what=what, value=value) for what, value in rates.items()])


def bytes_per_second(device: str, seconds: float) -> float:
    """The faster of a sum and a dot product over twice the bytes that the processor's caches hold."""
    size = READ_BY_GPU if torch.device(device).type == "cuda" else max(LEAST_READ, 2 * processor.cache_bytes())
    data = torch.ones(2, size // 8, device=device)
    return data.nbytes / min(timing.shortest(call, device, seconds) for call in (data.sum, partial(torch.dot, *data)))


def counted_calls(dtype: torch.dtype, device: str) -> Iterator[tuple[int, Call]]:
    """Products of matrices [size, size], and the attention kernel where it can run, so that no cell lies above a roof
    that it helped to find; each with its number of operations.
    """
    for size in SIZES[torch.device(device).type]:
        left, right = torch.randn(2, size, size, device=device).to(dtype)  # units are faster on zeros or ones
        yield 2 * size**3, partial(torch.mm, left, right, out=torch.empty_like(left))
    (heads, rows), keys, dim = (8, 256), 1024, 128
    query, key = (torch.randn(1, heads, length, dim, device=device).to(dtype) for length in (rows, keys))
    if not refusal("onepass", query, key, key):
        mask = torch.ones(rows, 1, dtype=torch.bool)
        yield 4 * dim * heads * rows * keys, partial(tree_attention, query, key, key, mask, keys - 1, backend="onepass")
