"""The machine's peaks, from which the roofline of a call of tree attention follows.

A call reads the queries and each key and value once, and writes its output; it computes 4 d operations for each pair of
a query row and a key that it sees (2 d for q k^T, 2 d for p v). The roofline (Williams et al. 2009) is the longer of
bytes / bandwidth and operations / throughput of the fastest products in its number format.

Each peak is the best of several probes, since a roof that is too low would lie below measured cells. A number format is
probed only where the processor has units for it.
"""

from dataclasses import dataclass
from typing import Callable, Iterable

import torch

from lib.attention.backends import refusal
from lib.attention.operator import tree_attention
from lib.lab import processor, timing
from lib.models.packed import packed

GIGA = 1e9
MEGA = 2**20
GPU_MEGABYTES = (256, 1024)  # more than a GPU's caches hold; launches are short beside reading them
LEAST_MEGABYTES, MOST_MEGABYTES = 256, 1024  # read by the probe of a processor's memory
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Forms = dict[str, tuple[float, Callable[[], object]]]  # name -> (bytes or operations of a call, the call)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: bytes per second from memory, and by dtype operations per second of the fastest products."""

    bandwidth: float
    throughput: dict[str, float]


def probe(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> Peaks:
    """The machine's peaks, for the dtypes that it has units for; `seconds` for each form and size."""
    kind = torch.device(device).type
    throughput = {name: whole_products(getattr(torch, name), device, sizes=SIZES[kind], seconds=seconds)
                  for name in dtypes if not processor.slow_dtype(getattr(torch, name), device)}
    reads = [best_rate(readings(size, device), device, seconds) for size in memory_megabytes(device)]
    return Peaks(max(reads), throughput)


def memory_megabytes(device: str = "cpu") -> tuple[int, ...]:
    """Megabytes read to find the memory's bandwidth: twice what the caches hold, within limits."""
    if torch.device(device).type == "cuda":
        return GPU_MEGABYTES
    return (min(MOST_MEGABYTES, max(LEAST_MEGABYTES, 2 * (processor.cache_bytes() or 0) // MEGA)),)


def whole_products(dtype: torch.dtype, device: str = "cpu", *, sizes: tuple[int, ...], seconds: float) -> float:
    """Operations per second in `dtype`: the best call of the attention kernel and of products of several sizes."""
    return max(best_rate(forms, device, seconds)
               for forms in (attention(dtype, device), *(products(size, dtype, device) for size in sizes)))


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
