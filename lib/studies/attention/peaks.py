"""The machine's peaks, from which the roofline of a call of tree attention follows.

A call reads the queries and each key and value once, and writes its output; it computes 4 d operations for each pair of
a query row and a key that it sees (2 d for q k^T, 2 d for p v). The roofline (Williams et al. 2009) is the longer of
bytes / bandwidth and operations / throughput of the fastest products in its number format.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from lib.attention.backends import refusal
from lib.attention.operator import tree_attention
from lib.lab import processor, timing

GIGA = 1e9
LEAST_READ, READ_BY_GPU = 2**28, 2**30  # bytes, to find the memory's bandwidth: more than the caches hold
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Counted = Iterator[tuple[int, Callable[[], object]]]  # (operations of a call, the call)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: bytes per second from memory, and by dtype operations per second of the fastest products."""

    bandwidth: float
    throughput: dict[str, float]


def probe(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> Peaks:
    """The machine's peaks, for the dtypes that it has units for; `seconds` for each call."""
    measured = [name for name in dtypes if not processor.slow_dtype(getattr(torch, name), device)]
    throughput = {name: operations_per_second(getattr(torch, name), device, seconds) for name in measured}
    return Peaks(bytes_per_second(device, seconds), throughput)


def bytes_per_second(device: str, seconds: float) -> float:
    """The faster of a sum and a dot product over twice what the processor's caches hold."""
    cached = processor.cache_bytes() or 0
    size = READ_BY_GPU if torch.device(device).type == "cuda" else max(LEAST_READ, 2 * cached)
    data = torch.ones(2, size // 8, device=device)
    return data.nbytes / min(timing.shortest(call, device, seconds) for call in (data.sum, partial(torch.dot, *data)))


def operations_per_second(dtype: torch.dtype, device: str, seconds: float) -> float:
    """The fastest of square products and the attention kernel: no cell lies above a roof that it helped to find."""
    calls = *products(dtype, device), *attention(dtype, device)
    return max(operations / timing.shortest(call, device, seconds) for operations, call in calls)


def products(dtype: torch.dtype, device: str) -> Counted:
    """Products of matrices [size, size]."""
    for size in SIZES[torch.device(device).type]:
        left, right = torch.randn(2, size, size, device=device).to(dtype)  # units are faster on zeros or ones
        yield 2 * size**3, partial(torch.mm, left, right, out=torch.empty_like(left))


def attention(dtype: torch.dtype, device: str) -> Counted:
    """The attention kernel for processors, where it can run."""
    (heads, rows), keys, dim = (8, 256), 1024, 128
    query = torch.randn(1, heads, rows, dim, device=device).to(dtype)
    key = torch.randn(1, heads, keys, dim, device=device).to(dtype)
    if not refusal("onepass", query, key, key):
        mask = torch.ones(rows, 1, dtype=torch.bool)
        yield 4 * dim * heads * rows * keys, partial(tree_attention, query, key, key, mask, keys - 1, backend="onepass")


def described(peaks: Peaks) -> dict[str, str]:
    """The peaks as text with their units."""
    return {"reads from memory": f"{peaks.bandwidth / GIGA:,.1f} GB/s"} | {
        f"multiplies {name}": f"{rate / GIGA:,.0f} GFLOP/s" for name, rate in peaks.throughput.items()}


def peak_rows(peaks: Peaks, device: str = "cpu") -> list[dict]:
    """The peaks as rows of the table "peaks"."""
    about = {"device": torch.device(device).type, "threads": torch.get_num_threads()}
    rates = [("bandwidth", peaks.bandwidth, "bytes/s")]
    rates += [(f"throughput {name}", rate, "operations/s") for name, rate in peaks.throughput.items()]
    return [{**about, "what": what, "value": value, "unit": unit} for what, value, unit in rates]


def balanced_draft(peaks: Peaks, dtype: str, query_heads: int, kv_heads: int) -> float:
    """The draft length at which arithmetic takes as long as reading the prefix; below it, more nodes should be free.

    Reading: 2 Hkv L d w bytes. Arithmetic: 4 Hq m L d operations. Equal at m = w throughput / (2 G bandwidth).
    """
    width = getattr(torch, dtype).itemsize
    return width * peaks.throughput[dtype] / (2 * query_heads / kv_heads * peaks.bandwidth)
