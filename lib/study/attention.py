"""How long tree attention takes, beside its alternatives and the peaks of the machine: the tables of notebook 03.

In each cell of a grid all alternatives run interleaved on the same inputs. `PREPARE[name](*inputs)` makes what a
decoder has at hand anyway (index lists, a cache with room after the prefix) and returns the function without arguments
that is timed: it computes [B, Hq, m, d], and does what a decoder must do for each tree (copies of keys, masks, plans).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
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
CHECKED = (2, 256, 32, False)  # batch, prefix, draft and cold of the cell in which the results are compared
FEW_TOKENS = 16  # of prefix, of the small calls that load a kernel's code
PATIENCE = 3  # times the limit of time that one call may take, by the bytes that it reads
LEAST_READ = {"cpu": 2**28, "cuda": 2**30}  # bytes, to find the memory's bandwidth: more than the caches hold
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Call = Callable[[], Tensor]
# What `tree_attention` takes: query [B, Hq, m, d], key and value [B, Hkv, prefix + m, d], tree mask bool[m, m], prefix.
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, int]


@dataclass(frozen=True)
class Cell:
    """One point of the grid. cold: the processor's caches are flushed before each call. shape: the trees' family."""

    dtype: str
    batch: int
    prefix: int
    draft: int
    cold: bool
    query_heads: int
    kv_heads: int
    head_dim: int
    shape: str

    @property
    def tree(self) -> Tree:
        """The tree of the cell's draft length, its root included."""
        return named(f"{self.shape}@{self.draft - 1}") if self.draft > 1 else Tree([-1])

    def bytes_of_two(self, heads: int, tokens: int) -> int:
        """Bytes of two tensors with so many heads and tokens: of keys and values, or of queries and output."""
        return 2 * self.batch * heads * tokens * self.head_dim * getattr(torch, self.dtype).itemsize

    def roofline(self, peaks: Mapping[str, float]) -> dict[str, float]:
        """The least bytes, operations and milliseconds of the cell.

        Any computation reads queries, keys and values once and writes its output. A visible pair of query row and key
        takes 4 d operations, 2 d for q k^T and 2 d for p v. The roofline (Williams et al. 2009) is the longer of
        bytes / bandwidth and operations / throughput.
        """
        moved = (self.bytes_of_two(self.kv_heads, self.prefix + self.draft)
                 + self.bytes_of_two(self.query_heads, self.draft))
        pairs = self.batch * self.query_heads * (self.draft * self.prefix + int(self.tree.mask.sum()))
        operations = 4 * self.head_dim * pairs
        seconds = max(operations / peaks[f"throughput {self.dtype}"], moved / peaks["bandwidth"])
        return {"bytes": moved, "operations": operations, "least_ms": 1e3 * seconds}

    def inputs(self, generator: torch.Generator, device: str = "cpu") -> Inputs:
        """Random inputs. To save time, the rows of a batch repeat one row's numbers at other addresses."""
        heads, tokens = [self.query_heads, *2 * [self.kv_heads]], [self.draft, *2 * [self.prefix + self.draft]]
        rows = [torch.randn(1, *shape, self.head_dim, generator=generator).to(device, getattr(torch, self.dtype))
                for shape in zip(heads, tokens)]
        mask = torch.from_numpy(self.tree.mask.copy()).to(device)
        return *(row.repeat(self.batch, 1, 1, 1) for row in rows), mask, self.prefix


def measure(store: Store, settings: Attention) -> None:
    """The tables "peaks", "attention_errors" and "attention"; a cell's inputs depend on the seed and its place in the
    grid. With flushed caches only the smallest batch is timed. Dtypes that the processor has no units for are left out;
    ValueError where it has units for none, or heads do not fit.
    """
    device, drafts, prefixes = settings.device, settings.drafts, settings.prefixes
    dtypes = [name for name in settings.dtypes
              if name != "bfloat16" or device != "cpu" or processor.has_bfloat16_units()]
    if not dtypes:
        raise ValueError(f"dtypes is {settings.dtypes}, and the processor has no units for any of them; add 'float32'")
    layer = (settings.query_heads, settings.kv_heads, settings.head_dim, settings.shape)
    peaks = store.once("peaks", lambda: peak_rows(dtypes, device)).set_index("what")["value"]
    store.once("attention_errors", lambda: pd.concat(
        error_rows(Cell(name, *CHECKED, *layer), settings.seed, device) for name in dtypes))
    table = store.open("attention")
    done = {key[:-1] for key in table.keys()}
    grid = [*product(dtypes, settings.batches, prefixes, drafts, [False]),
            *product(dtypes, [min(settings.batches)], prefixes, drafts, [True])]
    for number, key in enumerate(grid):
        if key not in done:
            table.extend(time_cell(Cell(*key, *layer), settings, peaks, settings.seed + number))


def dense_mask(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor, prefix: int) -> Call:
    """transformers' "sdpa": a mask over prefix and tree for each tree; keys and values repeated per query head."""
    module = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], is_causal=True)

    def run() -> Tensor:
        batch, _, m, _ = query.shape
        mask = torch.ones(batch, 1, m, prefix + m, dtype=torch.bool, device=query.device)
        mask[..., prefix:] = tree_mask
        output, _ = sdpa_attention_forward(module, query, key, value, mask)
        return output.transpose(1, 2)

    return run


def sequential(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor, prefix: int, *, by_path: bool) -> Call:
    """One root-to-leaf path after another, each causal and for the nodes that no earlier path has computed; or node by
    node, as in plain decoding. A path's keys and values are copied to the slots after the prefix.
    """
    computed, calls = set(), []
    is_leaf = tree_mask.sum(0) == 1  # a leaf is visible to itself alone
    for row in tree_mask[is_leaf] if by_path else tree_mask:
        path = row.nonzero().flatten()
        new = path[[node not in computed for node in path.tolist()]]  # at the path's end
        computed.update(path.tolist())
        calls.append((path, new, SharedMask(causal(len(new), 0, path.device))))
    cache_key, cache_value = key.clone(), value.clone()

    def run() -> Tensor:
        output = torch.empty_like(query)
        for path, new, mask in calls:
            end = prefix + len(path)
            cache_key[:, :, prefix:end] = key[:, :, prefix + path]
            cache_value[:, :, prefix:end] = value[:, :, prefix + path]
            output[:, :, new] = folded(query[:, :, new], cache_key, cache_value, mask, [end - len(new)] * len(output),
                                       output.shape[-1] ** -0.5, need_lse=False)[0]
        return output

    return run


PREPARE: dict[str, Callable[..., Call]] = {
    **{name: partial(partial, tree_attention, backend=name) for name in ("auto", *OURS)},  # nothing to prepare
    "dense mask": dense_mask,
    "path by path": partial(sequential, by_path=True),
    "node by node": partial(sequential, by_path=False),
}


def time_cell(cell: Cell, settings: Attention, peaks: Mapping[str, float], seed: int) -> list[dict]:
    """A row of the table "attention" for each alternative: its quartiles, or why it was skipped. In a cold cell a call
    with a short prefix loads the code again after the caches were flushed, since layers share it.
    """
    device, generator = settings.device, torch.Generator().manual_seed(seed)
    small = replace(cell, batch=1, prefix=FEW_TOKENS).inputs(torch.Generator().manual_seed(0), device)
    reasons = {name: reason_to_skip(name, cell, small, peaks["bandwidth"], settings)
               for name in (COLD if cell.cold else PREPARE)}
    before = {}
    with torch.inference_mode():
        inputs = cell.inputs(generator, device) if "" in reasons.values() else small
        ready = {name: PREPARE[name](*inputs) for name, reason in reasons.items() if not reason}
        if cell.cold:
            flush, small_calls = timing.flusher(device), {name: PREPARE[name](*small) for name in ready}
            before = {"before": lambda name: (flush(name), small_calls[name]())}
        times = {name: timing.Timing(skipped=reason) for name, reason in reasons.items()}
        times |= timing.interleaved(ready, repeats=settings.repeats, seconds=settings.cell_seconds, generator=generator,
                                    device=device, **before)
    columns = dict(dtype=cell.dtype, batch=cell.batch, prefix=cell.prefix, draft=cell.draft, cold=cell.cold,
                   **cell.roofline(peaks))
    return [dict(**columns, alternative=name, ms=1e3 * time.median, low=1e3 * time.lower, high=1e3 * time.upper,
                 n=time.repeats, skipped=time.skipped) for name, time in times.items()]


def reason_to_skip(name: str, cell: Cell, small: Inputs, bandwidth: float, settings: Attention) -> str:
    """Why an alternative cannot serve a cell or would pass its limits, by the copies of keys and values that it makes
    and how often it reads them; empty if it can, or only a call can tell. small: inputs of this kind.
    """
    if refused := refusal(name, *small[:3]):
        return f"refused: {refused}"
    group, key_bytes = cell.query_heads // cell.kv_heads, cell.bytes_of_two(cell.kv_heads, cell.prefix + cell.draft)
    copies, reads = {"dense mask": (group, group), "path by path": (1, len(cell.tree.leaves)),
                     "node by node": (1, cell.draft)}.get(name, (0, 1))
    gigabytes = key_bytes * (1 + copies) / 1e9
    if gigabytes > settings.memory_limit_gb:
        return f"memory: needs {gigabytes:.2f} GB, the limit is {settings.memory_limit_gb:g} GB"
    estimate = reads * key_bytes / bandwidth
    return timing.too_long(estimate, settings.cell_seconds) if estimate > PATIENCE * settings.cell_seconds else ""


def error_rows(cell: Cell, seed: int = 0, device: str = "cpu") -> pd.DataFrame:
    """The rows of "attention_errors" of one dtype: || ours - truth || / || truth || against the float64 reference."""
    *tensors, tree_mask, prefix = inputs = cell.inputs(torch.Generator().manual_seed(seed), device)
    truth = tree_attention(*(tensor.double() for tensor in tensors), tree_mask, prefix, backend="reference")
    errors = {name: float((prepare(*inputs)().double() - truth).norm() / truth.norm())
              for name, prepare in PREPARE.items() if not refusal(name, *tensors)}
    return pd.DataFrame([dict(dtype=cell.dtype, alternative=name, error=error) for name, error in errors.items()])


def peak_rows(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> pd.DataFrame:
    """The rows of the table "peaks", from calls repeated for `seconds` each: bytes per second from memory, and
    operations per second of the fastest products in each dtype.
    """
    calls = {"bandwidth": reads(device)}
    calls |= {f"throughput {name}": products(getattr(torch, name), device) for name in dtypes}
    return pd.DataFrame([
        dict(what=what, value=max(amount / timing.shortest(call, device, seconds) for amount, call in counted))
        for what, counted in calls.items()])


def reads(device: str) -> Iterator[tuple[int, Call]]:
    """A sum and a dot product over twice the bytes that the processor's caches hold; each with its number of bytes."""
    size = max(LEAST_READ[torch.device(device).type], 2 * processor.cache_bytes())
    data = torch.ones(2, size // 8, device=device)
    yield from ((data.nbytes, data.sum), (data.nbytes, partial(torch.dot, *data)))


def products(dtype: torch.dtype, device: str) -> Iterator[tuple[int, Call]]:
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


def growth_law(rows: pd.DataFrame) -> pd.DataFrame:
    """How the time of attention grows: for each dtype ms = fixed_ms + keys (ns_per_key + nodes x ns_per_pair) / 1e6
    with batch x (prefix + nodes) keys, by least squares of relative errors without negative terms; its errors, n settings.

    rows: of the table "attention", of one alternative.
    """
    laws = []
    for dtype, part in rows.groupby("dtype", sort=False):
        keys = part["batch"] * (part["prefix"] + part["draft"]) / 1e6
        relative = np.stack([np.ones(len(part)), keys, part["draft"] * keys], axis=1) / part[["ms"]].to_numpy()
        terms, _ = nnls(relative, np.ones(len(part)))
        errors = np.abs(relative @ terms - 1)
        laws.append([dtype, *terms, np.median(errors), errors.max(), len(part)])
    return pd.DataFrame(laws, columns=["dtype", "fixed_ms", "ns_per_key", "ns_per_pair", "median error", "largest error",
                                       "n"]).set_index("dtype")
