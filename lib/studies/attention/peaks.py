"""The machine's peaks, and the roofline that follows for a call of tree attention.

A call reads the queries and each key and value once, and writes its output; it computes 4 d operations for each pair of
a query row and a key that it sees (2 d for q k^T, 2 d for p v). The roofline (Williams et al. 2009) is the longer of
bytes / bandwidth and operations / throughput of the units for its number format: no computation on these units takes
less. (Float32 in parts of bfloat16, on matrix units for these, is another computation.)

Each peak is the best of several probes, since a roof that is too low would lie below measured cells. A number format is
probed only where the processor has units for it.
"""

import math
from dataclasses import dataclass
from typing import Callable, Iterable

import torch

from lib.attention.backends import refusal
from lib.attention.operator import tree_attention
from lib.kernels import units
from lib.lab import processor, timing
from lib.models.packed import packed
from lib.studies.attention.baselines import Problem

GIGA = 1e9
MEGA = 2**20
CACHED_MEGABYTES = (1, 2, 4, 8)  # read by the probe of the caches
GPU_MEGABYTES = (256, 1024)  # more than a GPU's caches hold; launches are short beside reading them
LEAST_MEGABYTES, MOST_MEGABYTES = 256, 1024  # read by the probe of a processor's memory
ROUNDS = 30000  # of the probe of its units, which take a millisecond or more
SMALL = 128  # size of the matrices from whose product the time of larger ones is estimated
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied, ascending
CALLS, LONGEST = 4, 1.5  # least calls of a product, and the most seconds that they may take together
Forms = dict[str, tuple[float, Callable[[], object]]]  # name -> (bytes or operations of a call, the call)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: bytes per second from memory and from the caches, operations per second by dtype.

    throughput: of the units at their best, which nothing exceeds.
    products: of the fastest product of whole matrices, whose operands have to be brought to the units.
    """

    bandwidth: float
    cached_bandwidth: float
    throughput: dict[str, float]
    products: dict[str, float]


def probe(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> Peaks:
    """The machine's peaks, for the dtypes that it has units for; `seconds` for each form and size."""
    kind = torch.device(device).type
    best = {name: whole_products(getattr(torch, name), device, sizes=SIZES[kind], seconds=seconds) for name in dtypes
            if not processor.slow_dtype(getattr(torch, name), device)}
    of_units = {name: best_rate(unit_forms(getattr(torch, name), device), device, seconds) for name in best}
    memory = bandwidth(device, megabytes=memory_megabytes(device), seconds=seconds)
    return Peaks(memory, max(memory, bandwidth(device, megabytes=cached_megabytes(device), seconds=seconds)),
                 {name: max(rate, of_units[name]) for name, rate in best.items()}, best)


def memory_megabytes(device: str = "cpu") -> tuple[int, ...]:
    """Megabytes read to find the memory's bandwidth: twice what the caches hold, within limits."""
    if torch.device(device).type == "cuda":
        return GPU_MEGABYTES
    return (min(MOST_MEGABYTES, max(LEAST_MEGABYTES, 2 * cache_bytes(device) // MEGA)),)


def cached_megabytes(device: str = "cpu") -> tuple[int, ...]:
    """Megabytes read to find the caches' bandwidth."""
    if torch.device(device).type == "cuda":  # reading less would take less than a launch
        return tuple(max(1, cache_bytes(device) // part // MEGA) for part in (4, 2))
    return CACHED_MEGABYTES


def bandwidth(device: str = "cpu", *, megabytes: tuple[int, ...], seconds: float) -> float:
    """Bytes per second that the device moves: the best call of several kernels and sizes.

    From memory where `megabytes` fit no cache of the device, else from that cache.
    """
    return max(best_rate(readings(size, device), device, seconds) for size in megabytes)


def whole_products(dtype: torch.dtype, device: str = "cpu", *, sizes: tuple[int, ...], seconds: float) -> float:
    """Operations per second in `dtype`: the best call of several kinds of products and ascending sizes.

    A size at which CALLS calls would take longer than LONGEST, at the rate of the size before, is left out.
    """
    rates, best = {}, best_rate(attention(dtype, device), device, seconds)
    for size in (SMALL, *sizes):
        for name, (operations, call) in products(size, dtype, device).items():
            if CALLS * operations <= LONGEST * rates.get(name, math.inf):
                rates[name] = operations / timing.shortest(call, device, seconds if size > SMALL else 0.0)
        best = max(best, *rates.values())
    return best


def best_rate(forms: Forms, device: str, seconds: float) -> float:
    """The highest rate of any of the forms; 0 of none."""
    return max((amount / timing.shortest(call, device, seconds) for amount, call in forms.values()), default=0.0)


def readings(megabytes: int, device: str) -> Forms:
    """Kernels over `megabytes` of float32, with the bytes that they move."""
    data = torch.ones(1024, megabytes * 1024 // 4, device=device)
    vector, target = torch.ones(data.shape[1], device=device), torch.empty_like(data)
    first, second = data.view(2, -1)
    return {
        "sum": (data.nbytes, data.sum),
        "largest": (data.nbytes, data.max),
        "dot": (data.nbytes, lambda: torch.dot(first, second)),
        "matrix by vector": (data.nbytes, lambda: data @ vector),
        "copy": (2 * data.nbytes, lambda: target.copy_(data)),
    }


def products(size: int, dtype: torch.dtype, device: str) -> Forms:
    """Products of square matrices [size, size], with their 2 size^3 operations."""
    left, right = torch.randn(2, size, size, device=device).to(dtype)  # units are faster on zeros or ones
    out, linear = torch.empty_like(left), packed(right, None)
    batch = torch.randn(4, size // 2, size, device=device).to(dtype)
    return {
        "product": (2 * size**3, lambda: torch.mm(left, right, out=out)),
        "four of half the size": (2 * size**3, lambda: torch.bmm(batch, batch.mT)),
        "packed layer": (2 * size**3, lambda: linear(left)),
    }


def attention(dtype: torch.dtype, device: str) -> Forms:
    """The attention kernel for processors, where it can run: 4 d operations for each pair of row and key."""
    (heads, rows), keys, dim = (8, 256), 1024, 128
    query = torch.randn(1, heads, rows, dim, device=device).to(dtype)
    key = torch.randn(1, heads, keys, dim, device=device).to(dtype)
    if refusal("onepass", query, key, key):
        return {}
    mask, operations = torch.ones(rows, 1, dtype=torch.bool), 4 * dim * heads * rows * keys
    return {"attention": (operations, lambda: tree_attention(query, key, key, mask, keys - 1, backend="onepass"))}


def unit_forms(dtype: torch.dtype, device: str) -> Forms:
    """The processor's units on numbers in their registers, where the probe can run."""
    if torch.device(device).type != "cpu" or units.unavailable(dtype):
        return {}
    return {"units": (units.run(dtype, ROUNDS), lambda: units.run(dtype, ROUNDS))}


def cache_bytes(device: str = "cpu") -> int:
    """Bytes of the largest cache of the device; those of the cache probe where they are unknown."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return processor.cache_bytes() or max(CACHED_MEGABYTES) * MEGA


def described(peaks: Peaks) -> dict[str, str]:
    """The peaks as text with their units."""
    reading = {"memory": peaks.bandwidth, "cache": peaks.cached_bandwidth}
    return {f"reads from {place}": f"{rate / GIGA:,.1f} GB/s" for place, rate in reading.items()} | {
        f"multiplies {name}": f"{rate / GIGA:,.0f} GFLOP/s at best, {peaks.products[name] / GIGA:,.0f} in products"
        for name, rate in peaks.throughput.items()
    }


def peak_rows(peaks: Peaks, device: str = "cpu") -> list[dict]:
    """The peaks as rows of the table "peaks"."""
    about = {"device": torch.device(device).type, "threads": torch.get_num_threads()}
    rates = [("bandwidth", peaks.bandwidth, "bytes/s"), ("cached bandwidth", peaks.cached_bandwidth, "bytes/s")]
    rates += [(f"throughput {name}", rate, "operations/s") for name, rate in peaks.throughput.items()]
    rates += [(f"products {name}", rate, "operations/s") for name, rate in peaks.products.items()]
    return [{**about, "what": what, "value": value, "unit": unit} for what, value, unit in rates]


def balanced_draft(peaks: Peaks, dtype: str, query_heads: int, kv_heads: int) -> float:
    """The draft length at which arithmetic takes as long as reading the prefix; below it, more nodes should be free.

    Reading: 2 Hkv L d w bytes. Arithmetic: 4 Hq m L d operations, as fast as products of matrices. Equal at
    m = w rate / (2 G bandwidth).
    """
    width = getattr(torch, dtype).itemsize
    return width * peaks.products[dtype] / (2 * query_heads / kv_heads * peaks.bandwidth)


@dataclass(frozen=True)
class Work:
    """Bytes moved, operations, and bytes of simultaneous temporary buffers (an estimate)."""

    bytes: int
    operations: int
    extra_bytes: int = 0

    def seconds(self, bandwidth: float, throughput: float) -> float:
        """The roofline's time, from bytes and operations per second."""
        return max(self.bytes / bandwidth, self.operations / throughput)


def least(problem: Problem) -> Work:
    """The bytes and operations of any computation of a problem: of the tree's own pairs, the visible ones."""
    batch, heads, nodes, dim = problem.query.shape
    ends = 2 * batch * heads * nodes * dim * problem.query.element_size()  # queries read, output written
    pairs = batch * heads * (nodes * problem.prefix + int(problem.tree_mask.sum()))
    return Work(ends + _token(problem) * (problem.prefix + nodes), 4 * dim * pairs)


def work(name: str, problem: Problem) -> Work:
    """The least bytes and operations of the alternative `name`, and what it allocates."""
    p = problem
    batch, heads, nodes, dim = p.query.shape
    keys, width = p.prefix + nodes, p.query.element_size()
    ends, once = 2 * batch * heads * nodes * dim * width, _token(p) * keys
    column = p.group * nodes * width  # of the folded additive mask
    operations = 4 * dim * batch * heads * nodes * keys
    if name == "folded":  # its mask is written once and read once
        return Work(ends + once + 2 * column * keys, operations, column * keys)
    if name == "dense mask":
        mask = batch * nodes * keys * (1 + width)  # truth values, and the additive mask that the fused call makes
        return Work(ends + (1 + 2 * p.group) * once + 2 * mask, operations, p.group * once + mask)
    if name == "flashinfer":  # its mask over prefix and tree is made of truth values, then packed and read in bits
        mask = batch * nodes * keys
        return Work(ends + once + mask + 2 * (mask // 8), operations, mask + mask // 8)
    if name in ("branch batch", "path by path", "path by path, folded", "node by node"):
        return _one_after_another(name, p, ends)
    return Work(ends + once + 2 * column * nodes, operations, column * nodes)  # the mask covers the tree alone


def _one_after_another(name: str, problem: Problem, ends: int) -> Work:
    """The work of alternatives that take a tree path by path or node by node: each of their calls reads the prefix."""
    p = problem
    batch, heads, nodes, dim = p.query.shape
    paths = [len(path) for path in p.paths]
    longest, leaves = max(paths), len(paths)
    if name == "branch batch":  # copies are written and read, their sources read
        copies = _token(p) * leaves * (p.prefix + longest)
        return Work(ends + 3 * copies, 4 * dim * batch * leaves * heads * longest * (p.prefix + longest), copies)
    seen = p.tree_mask.sum(-1).tolist() if name == "node by node" else paths
    read = _token(p) * (len(seen) * p.prefix + sum(seen))
    masks = 0 if name == "node by node" else p.group * longest * (p.prefix + longest) * p.query.element_size() * leaves
    return Work(ends + read + masks, least(p).operations, _token(p) * (p.prefix + nodes) + masks)


def _token(problem: Problem) -> int:
    """Bytes of one token's keys and values, over the batch."""
    batch, kv_heads, _, dim = problem.key.shape
    return 2 * batch * kv_heads * dim * problem.key.element_size()
