"""What the machine can reach: the roofs of the attention study, each the best of several probes.

A roof that is too low is worse than none, since cells would lie above it; so a peak takes whatever form is fastest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable

import torch

from lib import timing
from lib.attention import tree_attention
from lib.attention_backends import refusal
from lib.packed import packed

GIGA = 1e9
MEGA = 2**20
CACHED_MEGABYTES = (1, 2, 4, 8)  # what the probe of the caches reads
MEMORY_MEGABYTES = {"cpu": (64, 256), "cuda": (256, 1024)}  # more than caches hold, and beside which a launch is short
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
Forms = dict[str, tuple[float, Callable[[], object]]]  # name -> (bytes or operations of a call, the call)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: bytes a second from memory and from the caches, operations a second by dtype."""

    bandwidth: float
    cached_bandwidth: float
    throughput: dict[str, float]


def probe(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> Peaks:
    """The machine's peaks; `seconds` for each form and size."""
    kind = torch.device(device).type
    return Peaks(
        bandwidth(device, megabytes=MEMORY_MEGABYTES[kind], seconds=seconds),
        bandwidth(device, megabytes=CACHED_MEGABYTES, seconds=seconds),
        {name: throughput(getattr(torch, name), device, sizes=SIZES[kind], seconds=seconds) for name in dtypes},
    )


def bandwidth(device: str = "cpu", *, megabytes: tuple[int, ...], seconds: float) -> float:
    """Bytes a second that the device moves: the best of several kernels and sizes, each its best call.

    From memory where `megabytes` fit no cache of the device, else from that cache.
    """
    return max(best_rate(readings(size, device), device, seconds) for size in megabytes)


def throughput(dtype: torch.dtype, device: str = "cpu", *, sizes: tuple[int, ...], seconds: float) -> float:
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
    left, right = torch.ones(2, size, size, dtype=dtype, device=device)
    out, linear = torch.empty_like(left), packed(right, None)
    batch = torch.ones(4, size // 2, size, dtype=dtype, device=device)
    return {
        "product": (2 * size**3, lambda: torch.mm(left, right, out=out)),
        "four of half the size": (2 * size**3, lambda: torch.bmm(batch, batch.mT)),
        "packed layer": (2 * size**3, lambda: linear(left)),
    }


def attention(dtype: torch.dtype, device: str) -> Forms:
    """The processor's own attention kernel where it serves: 4 d operations for each of its pairs of row and key."""
    (heads, rows), keys, dim = (8, 256), 1024, 128
    query = torch.ones(1, heads, rows, dim, dtype=dtype, device=device)
    key = torch.ones(1, heads, keys, dim, dtype=dtype, device=device)
    if refusal("onepass", query, key, key):
        return {}
    mask, operations = torch.ones(rows, 1, dtype=torch.bool), 4 * dim * heads * rows * keys
    return {"attention": (operations, lambda: tree_attention(query, key, key, mask, keys - 1, backend="onepass"))}


def cache_bytes(device: str = "cpu") -> int:
    """Bytes of the largest cache of the device; those of the cache probe where they cannot be known."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max([int(size[:-1]) * 1024 for size in sizes if size.endswith("K")], default=max(CACHED_MEGABYTES) * MEGA)


def in_words(peaks: Peaks) -> dict[str, str]:
    """The peaks with their units, to be read."""
    reading = {"memory": peaks.bandwidth, "cache": peaks.cached_bandwidth}
    told = {f"reads from {place}": f"{rate / GIGA:,.1f} GB/s" for place, rate in reading.items()}
    return told | {f"multiplies {name}": f"{rate / GIGA:,.0f} GFLOP/s" for name, rate in peaks.throughput.items()}


def peak_rows(peaks: Peaks, device: str = "cpu") -> list[dict]:
    """The peaks as rows of the table "peaks"."""
    about = {"device": torch.device(device).type, "threads": torch.get_num_threads()}
    found = [("bandwidth", peaks.bandwidth, "bytes/s"), ("cached bandwidth", peaks.cached_bandwidth, "bytes/s")]
    found += [(f"throughput {name}", rate, "operations/s") for name, rate in peaks.throughput.items()]
    return [{**about, "what": what, "value": value, "unit": unit} for what, value, unit in found]


def balanced_draft(peaks: Peaks, dtype: str, query_heads: int, kv_heads: int) -> float:
    """The draft length at which arithmetic takes as long as reading the prefix: below it, more nodes should be free.

    Reading: 2 Hkv L d w bytes. Arithmetic: 4 Hq m L d operations. Equal at m = w throughput / (2 G bandwidth).
    """
    width = getattr(torch, dtype).itemsize
    return width * peaks.throughput[dtype] / (2 * query_heads / kv_heads * peaks.bandwidth)
