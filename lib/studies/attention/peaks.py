"""What the machine can reach: the roofs of the attention study, each the best of several probes.

A roof that is too low is worse than none, since cells would lie above it; so a peak takes whatever form is fastest.
"""

from dataclasses import dataclass
from typing import Callable, Iterable

import torch

from lib.attention.backends import refusal
from lib.attention.operator import tree_attention
from lib.kernels import units
from lib.lab import processor, timing
from lib.models.packed import packed

GIGA = 1e9
MEGA = 2**20
CACHED_MEGABYTES = (1, 2, 4, 8)  # what the probe of the caches reads
GPU_MEGABYTES = (256, 1024)  # more than its caches hold, and beside which a launch is short
LEAST_MEGABYTES, MOST_MEGABYTES = 256, 1024  # of what a processor's memory is read by
ROUNDS = 30000  # of its units, a millisecond or more
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Forms = dict[str, tuple[float, Callable[[], object]]]  # name -> (bytes or operations of a call, the call)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: bytes a second from memory and from the caches, operations a second by dtype.

    throughput: of the units at their best, which nothing exceeds; products: of the fastest product of whole matrices,
    whose operands have to be brought to the units.
    """

    bandwidth: float
    cached_bandwidth: float
    throughput: dict[str, float]
    products: dict[str, float]


def probe(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> Peaks:
    """The machine's peaks; `seconds` for each form and size."""
    kind = torch.device(device).type
    best = {name: whole_products(getattr(torch, name), device, sizes=SIZES[kind], seconds=seconds) for name in dtypes}
    of_units = {name: best_rate(unit_forms(getattr(torch, name), device), device, seconds) for name in best}
    memory = bandwidth(device, megabytes=memory_megabytes(device), seconds=seconds)
    return Peaks(
        memory,
        max(memory, bandwidth(device, megabytes=cached_megabytes(device), seconds=seconds)),
        {name: max(rate, of_units[name]) for name, rate in best.items()},
        best,
    )


def memory_megabytes(device: str = "cpu") -> tuple[int, ...]:
    """Sizes of what is read to find the memory's bandwidth: twice what the caches hold, within limits."""
    if torch.device(device).type == "cuda":
        return GPU_MEGABYTES
    return (min(MOST_MEGABYTES, max(LEAST_MEGABYTES, 2 * cache_bytes(device) // MEGA)),)


def cached_megabytes(device: str = "cpu") -> tuple[int, ...]:
    """Sizes of what is read to find the caches' bandwidth."""
    if torch.device(device).type == "cuda":  # in less, a launch would take longer than the reading
        return tuple(max(1, cache_bytes(device) // part // MEGA) for part in (4, 2))
    return CACHED_MEGABYTES


def bandwidth(device: str = "cpu", *, megabytes: tuple[int, ...], seconds: float) -> float:
    """Bytes a second that the device moves: the best of several kernels and sizes, each its best call.

    From memory where `megabytes` fit no cache of the device, else from that cache.
    """
    return max(best_rate(readings(size, device), device, seconds) for size in megabytes)


def whole_products(dtype: torch.dtype, device: str = "cpu", *, sizes: tuple[int, ...], seconds: float) -> float:
    """Operations a second in `dtype`: the best of several kinds of products and sizes, each its best call."""
    found = [best_rate(products(size, dtype, device), device, seconds) for size in sizes]
    return max(*found, best_rate(attention(dtype, device), device, seconds))


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
    """The processor's own attention kernel where it serves: 4 d operations for each of its pairs of row and key."""
    (heads, rows), keys, dim = (8, 256), 1024, 128
    query = torch.randn(1, heads, rows, dim, device=device).to(dtype)
    key = torch.randn(1, heads, keys, dim, device=device).to(dtype)
    if refusal("onepass", query, key, key):
        return {}
    mask, operations = torch.ones(rows, 1, dtype=torch.bool), 4 * dim * heads * rows * keys
    return {"attention": (operations, lambda: tree_attention(query, key, key, mask, keys - 1, backend="onepass"))}


def unit_forms(dtype: torch.dtype, device: str) -> Forms:
    """The processor's units on numbers in their registers, where they can be asked."""
    if torch.device(device).type != "cpu" or units.unavailable(dtype):
        return {}
    return {"units": (units.run(dtype, ROUNDS), lambda: units.run(dtype, ROUNDS))}


def cache_bytes(device: str = "cpu") -> int:
    """Bytes of the largest cache of the device; those of the cache probe where they cannot be known."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    return processor.cache_bytes() or max(CACHED_MEGABYTES) * MEGA


def in_words(peaks: Peaks) -> dict[str, str]:
    """The peaks with their units, to be read."""
    reading = {"memory": peaks.bandwidth, "cache": peaks.cached_bandwidth}
    told = {f"reads from {place}": f"{rate / GIGA:,.1f} GB/s" for place, rate in reading.items()}
    return told | {
        f"multiplies {name}": f"{rate / GIGA:,.0f} GFLOP/s at best, {peaks.products[name] / GIGA:,.0f} in products"
        for name, rate in peaks.throughput.items()
    }


def peak_rows(peaks: Peaks, device: str = "cpu") -> list[dict]:
    """The peaks as rows of the table "peaks"."""
    about = {"device": torch.device(device).type, "threads": torch.get_num_threads()}
    found = [("bandwidth", peaks.bandwidth, "bytes/s"), ("cached bandwidth", peaks.cached_bandwidth, "bytes/s")]
    found += [(f"throughput {name}", rate, "operations/s") for name, rate in peaks.throughput.items()]
    found += [(f"products {name}", rate, "operations/s") for name, rate in peaks.products.items()]
    return [{**about, "what": what, "value": value, "unit": unit} for what, value, unit in found]


def balanced_draft(peaks: Peaks, dtype: str, query_heads: int, kv_heads: int) -> float:
    """The draft length at which arithmetic takes as long as reading the prefix: below it, more nodes should be free.

    Reading: 2 Hkv L d w bytes. Arithmetic: 4 Hq m L d operations, as fast as products of matrices. Equal at
    m = w rate / (2 G bandwidth).
    """
    width = getattr(torch, dtype).itemsize
    return width * peaks.products[dtype] / (2 * query_heads / kv_heads * peaks.bandwidth)
