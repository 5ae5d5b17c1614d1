"""How long tree attention takes, beside its alternatives and the peaks of the machine: the tables of notebook 03.

In each cell of a grid all alternatives run interleaved on the same inputs. An alternative is prepared once and then
called: `PREPARE[name](problem)` returns a function without arguments that computes [B, Hq, m, d]. Preparation makes
what a decoder has at hand anyway (index lists, a cache with room after the prefix); the timed call includes whatever a
decoder must do for each tree (copies of keys, masks, plans).
"""

from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from types import SimpleNamespace
from typing import Callable, Iterable, Iterator, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lib.attention.backends import BACKENDS, refusal
from lib.attention.operator import tree_attention
from lib.lab import processor, timing
from lib.lab.chapter import Store
from lib.trees import named
from lib.trees.tree import Tree

OURS = tuple(name for name in BACKENDS if name != "reference")
FLEX = "flex"  # takes many seconds to compile, so that not every run wants it
FEW_TOKENS = 16  # of prefix, of the small calls that load a kernel's code
ESTIMATED = 1024  # tokens of prefix of the calls from which a time is estimated: long beside any overhead
PATIENCE = 3  # times the limit of time that one call may take, by that estimate
GIGA = 1e9
LEAST_READ, READ_BY_GPU = 2**28, 2**30  # bytes, to find the memory's bandwidth: more than the caches hold
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of the matrices that are multiplied
CHECKED = {"batch": 2, "prefix": 256, "draft": 32}  # of the cell in which the results are compared
Call = Callable[[], Tensor]
COMPILE = cache(torch.compile)  # each function once


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
        return 2 * self.batch * self.kv_heads * (self.prefix + self.draft) * self.head_dim * self.number.itemsize

    @property
    def number(self) -> torch.dtype:
        """The dtype by its name."""
        return getattr(torch, self.dtype)

    @property
    def tree(self) -> Tree:
        """The tree of the cell's draft length, its root included."""
        return named(f"{self.shape}@{self.draft - 1}") if self.draft > 1 else Tree([-1])


def measure(store: Store, *, device: str, batches: Sequence[int], prefixes: Sequence[int], drafts: Sequence[int],
            dtypes: Sequence[str], query_heads: int, kv_heads: int, head_dim: int, shape: str, repeats: int,
            cell_seconds: float, memory_limit_gb: float, compiled: bool, seed: int) -> None:
    """The tables "peaks", "attention_errors", "attention_roofline", "attention" and "attention_cold".

    A cell's rows are on disk as soon as it is done; its inputs depend on `seed` and its place in the grid. With flushed
    caches only the smallest batch is timed. compiled: includes FlexAttention. ValueError where the device has units for
    none of the dtypes, or heads do not fit.
    """
    if query_heads % kv_heads:
        raise ValueError(f"query_heads {query_heads} over kv_heads {kv_heads}: give a multiple")
    with_units = [name for name in dtypes if not processor.slow_dtype(getattr(torch, name), device)]
    if not with_units:
        raise ValueError(f"dtypes is {list(dtypes)}, and the processor has no units for any of them; add 'float32'")
    heads = dict(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, shape=shape)
    peaks = store.once("peaks", lambda: peak_rows(with_units, device))
    checked = [Cell(**CHECKED, dtype=name, **heads) for name in with_units]
    store.once("attention_errors", lambda: pd.concat(error_rows(cell, seed, device) for cell in checked))
    cells = [Cell(batch, prefix, draft, name, **heads)
             for name, batch, prefix, draft in product(dtypes, batches, prefixes, drafts)]
    store.write("attention_roofline", roofline_rows(cells, peaks.set_index("what")["value"]))
    limits = dict(seconds=cell_seconds, memory_gb=memory_limit_gb, repeats=repeats, device=device)
    first = [cell for cell in cells if cell.batch == min(batches)]
    for name, names, timed in (("attention", PREPARE, cells), ("attention_cold", COLD, first)):
        table, names = store.open(name), [other for other in names if compiled or other != FLEX]
        done = {key[:-1] for key in table.keys()}
        for place, cell in enumerate(timed):
            if astuple(cell) not in done:
                generator = torch.Generator().manual_seed(seed + place)
                table.extend(time_cell(cell, names, generator=generator, cold=name == "attention_cold", **limits))


# --------------------------------------------------------------------------------------------------------- alternatives


@dataclass(frozen=True)
class Problem:
    """One call of tree attention: the same tree and prefix length in every row."""

    query: Tensor  # [B, Hq, m, d]
    key: Tensor  # [B, Hkv, prefix + m, d]
    value: Tensor  # [B, Hkv, prefix + m, d]
    tree_mask: Tensor  # bool [m, m], nodes in topological order
    prefix: int

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def scratch(self) -> tuple[Tensor, Tensor]:
        """A sequential decoder's cache: keys and values whose slots after the prefix are overwritten path by path."""
        return self.key.clone(), self.value.clone()

    @property
    def paths(self) -> list[Tensor]:
        """Node indices root .. leaf, one int64 tensor per leaf."""
        seen_by = self.tree_mask.sum(0)  # a leaf is seen by itself alone
        return [self.tree_mask[leaf].nonzero().flatten() for leaf in (seen_by == 1).nonzero().flatten()]


def in_backend(backend: str, p: Problem) -> Call:
    """`tree_attention` itself as an alternative."""
    return lambda: tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend=backend)


def flex(p: Problem) -> Call:
    """Compiled FlexAttention, called once here, since its compilation is not part of its time."""
    inputs = p.query, p.key, p.value, p.tree_mask, torch.tensor(p.prefix, device=p.query.device)
    COMPILE(_flex, dynamic=True)(*inputs)
    return partial(COMPILE(_flex, dynamic=True), *inputs)


def _flex(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, prefix: Tensor) -> Tensor:
    """The mask is a function of positions that captures the prefix as a tensor: a new one needs no compilation."""
    from torch.nn.attention.flex_attention import flex_attention

    def seen(score, batch, head, node, key_at):
        """The score of a key that the node sees, else minus infinity."""
        in_tree = visible[node, torch.clamp(key_at - prefix, min=0)]
        return torch.where((key_at < prefix) | in_tree, score, -float("inf"))

    return flex_attention(query, key, value, score_mod=seen, enable_gqa=True)


def sequential(p: Problem, by_path: bool) -> Call:
    """Path by path: one root-to-leaf path after another, causal, with folded heads; each computes only the nodes that
    no earlier path has computed. Otherwise node by node, as in plain decoding: one query row per call.

    The keys of a path are appended in place after the prefix.
    """
    done, fresh = set(), []  # fresh: how many nodes at a path's end are computed with it
    paths = p.paths if by_path else [row.nonzero().flatten() for row in p.tree_mask]
    for path in paths:
        fresh.append(len(set(path.tolist()) - done))
        done.update(path.tolist())
    cache_key, cache_value = p.scratch
    masks = [causal_tail(p, len(path), new) for path, new in zip(paths, fresh)]

    def run() -> Tensor:
        """Attention [B, Hq, m, d], one path after another."""
        output = torch.empty_like(p.query)
        for path, new, mask in zip(paths, fresh, masks):
            end = p.prefix + len(path)
            cache_key[:, :, p.prefix : end] = p.key[:, :, p.prefix + path]
            cache_value[:, :, p.prefix : end] = p.value[:, :, p.prefix + path]
            keys, values, query = cache_key[:, :, :end], cache_value[:, :, :end], p.query[:, :, path[-new:]]
            rows = query.reshape(*keys.shape[:2], p.group * new, -1)
            out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
            output[:, :, path[-new:]] = out.reshape(query.shape)
        return output

    return run


def causal_tail(problem: Problem, length: int, new: int) -> Tensor | None:
    """Additive mask [group * new, prefix + length] of a path's last `new` nodes; one node sees everything."""
    if new == 1:
        return None
    hidden = torch.ones(new, problem.prefix + length, dtype=torch.bool, device=problem.query.device)
    hidden = hidden.triu(problem.prefix + length - new + 1)
    mask = torch.zeros_like(hidden, dtype=problem.query.dtype).masked_fill_(hidden, float("-inf"))
    return mask.repeat(problem.group, 1)


def branch_batch(p: Problem) -> Call:
    """Each path is a row of its own, with its own copy of the prefix: one causal call with folded heads."""
    nodes = torch.nn.utils.rnn.pad_sequence(p.paths, batch_first=True).to(p.query.device)  # [leaves, longest], padded
    leaves, longest = nodes.shape
    mask = causal_tail(p, longest, longest)
    places = {node: (leaf, at) for leaf, path in enumerate(p.paths) for at, node in enumerate(path.tolist())}
    leaf_of, place_of = torch.tensor([places[node] for node in range(p.query.shape[2])], device=nodes.device).unbind(1)

    def copied(x: Tensor) -> Tensor:  # [B, H, S, d] -> [B * leaves, H, prefix + longest, d]
        """A copy of keys or values for each path."""
        batch, heads, _, dim = x.shape
        copy = x.new_empty(batch, leaves, heads, p.prefix + longest, dim)
        copy[..., : p.prefix, :] = x[:, None, :, : p.prefix]
        copy[..., p.prefix :, :] = x[:, :, p.prefix + nodes].transpose(1, 2)
        return copy.flatten(0, 1)

    def run() -> Tensor:
        """Attention [B, Hq, m, d], all paths at once."""
        query = p.query[:, :, nodes].transpose(1, 2).flatten(0, 1)  # [B * leaves, Hq, longest, d]
        rows = query.reshape(query.shape[0], p.key.shape[1], p.group * longest, -1)
        out = F.scaled_dot_product_attention(rows, copied(p.key), copied(p.value), attn_mask=mask)
        out = out.reshape(p.query.shape[0], leaves, p.query.shape[1], longest, -1)
        return out[:, leaf_of, :, place_of].permute(1, 2, 0, 3)  # the index pair comes first: [m, B, Hq, d]

    return run


def dense_mask(p: Problem) -> Call:
    """transformers' "sdpa": a mask over prefix and tree for each tree; keys and values repeated per query head."""
    module = SimpleNamespace(num_key_value_groups=p.group, is_causal=True)

    def run() -> Tensor:
        """Attention [B, Hq, m, d], with a new mask."""
        batch, _, m, _ = p.query.shape
        mask = torch.ones(batch, 1, m, p.prefix + m, dtype=torch.bool, device=p.query.device)
        mask[..., p.prefix :] = p.tree_mask
        output, _ = sdpa_attention_forward(module, p.query, p.key, p.value, mask)
        return output.transpose(1, 2)

    return run


PREPARE: dict[str, Callable[[Problem], Call]] = {
    **{name: partial(in_backend, name) for name in ("auto", *OURS)},
    FLEX: flex,
    "dense mask": dense_mask,
    "branch batch": branch_batch,
    "path by path": partial(sequential, by_path=True),
    "node by node": partial(sequential, by_path=False),
}
COLD = (*OURS, "dense mask")  # the alternatives that are also timed with flushed caches


def refused(name: str, p: Problem) -> str | None:
    """Why an alternative cannot serve a problem on this machine; None if it can, or only a call can tell."""
    return refusal(name, p.query, p.key, p.value) if name in OURS else None


# ---------------------------------------------------------------------------------------------------------- one cell


def make_problem(cell: Cell, generator: torch.Generator, device: str = "cpu") -> Problem:
    """Random inputs of a cell. To save time, the rows of a batch repeat one row's numbers at other addresses."""
    slots = cell.prefix + cell.draft

    def normal(heads: int, tokens: int) -> Tensor:
        """[batch, heads, tokens, head_dim], alike in all rows."""
        row = torch.randn(1, heads, tokens, cell.head_dim, generator=generator).to(device, cell.number)
        return row.repeat(cell.batch, 1, 1, 1)

    query = normal(cell.query_heads, cell.draft)
    mask = torch.from_numpy(cell.tree.mask.copy()).to(device)
    return Problem(query, normal(cell.kv_heads, slots), normal(cell.kv_heads, slots), mask, cell.prefix)


def time_cell(cell: Cell, names: Sequence[str], *, seconds: float, memory_gb: float, repeats: int,
              generator: torch.Generator, device: str = "cpu", cold: bool = False) -> list[dict]:
    """One row per alternative: its times, or why it was skipped: it cannot serve such a call here, failed, or would
    need more memory or time than the limit.

    seconds: for all alternatives together; memory_gb: for any one of them; repeats: of a call, at most. cold: the
    caches are flushed before each call. A call with a prefix of a few tokens then loads the code again, since between
    the layers of a model only keys and values are evicted.
    """
    gigabytes, limit = cell.key_bytes / GIGA, f"GB, the limit is {memory_gb:g} GB"
    lacking = processor.slow_dtype(cell.number, device)
    if lacking or gigabytes > memory_gb:
        reason = f"refused: {lacking}" if lacking else f"memory: keys and values need {gigabytes:.2f} {limit}"
        return [asdict(cell) | {"alternative": name, **timing.Timing().row, "skipped": reason} for name in names]
    problem, skipped = make_problem(cell, generator, device), {}
    copies = {"branch batch": len(problem.paths), "dense mask": problem.group, "path by path": 1, "node by node": 1}
    for name in names:
        needed = gigabytes * (1 + copies.get(name, 0))
        if reason := refused(name, problem):
            skipped[name] = f"refused: {reason}"
        elif needed > memory_gb:
            skipped[name] = f"memory: needs {needed:.2f} {limit}"
    with torch.inference_mode():
        skipped |= _too_slow(cell, [name for name in names if name not in skipped and name != FLEX], seconds, device)
        ready, failed = _prepared([name for name in names if name not in skipped], problem)
        before = {}
        if cold:
            flush = timing.flusher(device)
            small = make_problem(replace(cell, batch=1, prefix=FEW_TOKENS), torch.Generator().manual_seed(0), device)
            loads, _ = _prepared(list(ready), small)
            before = {"before": lambda name: (flush(name), loads.get(name, int)())}
        times = timing.interleaved(ready, repeats=repeats, seconds=seconds, generator=generator, device=device,
                                   clock=timing.device_seconds, **before)
    times |= {name: timing.Timing(skipped=reason) for name, reason in (skipped | failed).items()}
    return [asdict(cell) | {"alternative": name, **times[name].row, "skipped": times[name].skipped} for name in names]


def _too_slow(cell: Cell, names: list[str], seconds: float, device: str) -> dict[str, str]:
    """Why alternatives would take more than PATIENCE times the limit of time, estimated in proportion to the keys from
    a call at batch 1 with a prefix of at most ESTIMATED tokens.
    """
    smaller, reasons = replace(cell, batch=1, prefix=min(cell.prefix, ESTIMATED)), {}
    if smaller == cell:
        return reasons
    calls, _ = _prepared(names, make_problem(smaller, torch.Generator().manual_seed(0), device))
    for name, call in calls.items():
        try:
            call()
            once = timing.device_seconds(call, device)
        except Exception:  # the call on the whole cell says why
            continue
        estimate = once * cell.key_bytes / smaller.key_bytes
        if estimate > PATIENCE * seconds:
            too_long = timing.too_long(estimate, seconds)
            reasons[name] = f"{too_long}, estimated from {once:.3g} s of a smaller one"
    return reasons


def _prepared(names: list[str], problem: Problem) -> tuple[dict[str, Call], dict[str, str]]:
    """The alternatives ready to be called, and why the others failed; a failure does not end the study."""
    ready, failed = {}, {}
    for name in names:
        try:
            ready[name] = PREPARE[name](problem)
        except Exception as error:  # compilers and libraries raise errors of many kinds
            failed[name] = timing.failure(error)
    return ready, failed


def error_rows(cell: Cell, seed: int = 0, device: str = "cpu") -> pd.DataFrame:
    """The rows of the table "attention_errors" in one cell's dtype: || ours - truth || / || truth || against the
    float64 reference on its inputs; compiled FlexAttention is left out.
    """
    p = make_problem(cell, torch.Generator().manual_seed(seed), device)
    wide = [x.double() for x in (p.query, p.key, p.value)]
    truth = tree_attention(*wide, p.tree_mask, p.prefix, backend="reference")
    rows = []
    for name in PREPARE:
        if name != FLEX and not refused(name, p):
            error = (PREPARE[name](p)().double() - truth).norm() / truth.norm()
            rows.append({"dtype": cell.dtype, "alternative": name, "error": error.item()})
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------ peaks and roofline


def peak_rows(dtypes: Iterable[str], device: str = "cpu", seconds: float = 0.06) -> pd.DataFrame:
    """The rows of the table "peaks", from calls repeated for `seconds` each: bytes per second from memory, and for each
    dtype operations per second of the fastest products.
    """
    rates = {"bandwidth": (bytes_per_second(device, seconds), "bytes/s")}
    for name in dtypes:
        rates[f"throughput {name}"] = max(operations / timing.shortest(call, device, seconds) for operations, call
                                          in counted_calls(getattr(torch, name), device)), "operations/s"
    rows = [{"what": what, "value": value, "unit": unit} for what, (value, unit) in rates.items()]
    return pd.DataFrame(rows).assign(device=torch.device(device).type, threads=torch.get_num_threads())


def bytes_per_second(device: str, seconds: float) -> float:
    """The faster of a sum and a dot product over twice the bytes that the processor's caches hold."""
    cached = processor.cache_bytes() or 0
    size = READ_BY_GPU if torch.device(device).type == "cuda" else max(LEAST_READ, 2 * cached)
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


def roofline_rows(cells: Iterable[Cell], peaks: pd.Series) -> pd.DataFrame:
    """The rows of the table "attention_roofline", for cells of number formats that have a peak; peaks: by `what`.

    Any computation reads queries, keys and values once and writes its output; of the tree's own pairs of nodes it
    computes the visible ones, with 4 d operations per pair of query row and key (2 d for q k^T, 2 d for p v). The
    roofline (Williams et al. 2009) is the longer of bytes / bandwidth and operations / throughput.
    """
    rows = []
    for cell in (cell for cell in cells if f"throughput {cell.dtype}" in peaks):
        ends = 2 * cell.batch * cell.query_heads * cell.draft * cell.head_dim * cell.number.itemsize
        pairs = cell.batch * cell.query_heads * (cell.draft * cell.prefix + int(cell.tree.mask.sum()))
        moved, operations = cell.key_bytes + ends, 4 * cell.head_dim * pairs
        seconds = max(moved / peaks["bandwidth"], operations / peaks[f"throughput {cell.dtype}"])
        rows.append({**asdict(cell), "bytes": moved, "operations": operations, "least_ms": 1e3 * seconds})
    return pd.DataFrame(rows)
