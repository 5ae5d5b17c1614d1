"""What a call of tree attention must move and compute, written out, and how near a measured time comes to the machine.

A call reads the queries, and each key and value once, and writes its output; it computes 4 d operations for each pair
of a query row and a key that it sees (2 d for q k^T, 2 d for p v). The roofline (Williams et al. 2009) is the longer
of bytes / bandwidth and operations / throughput of its number format's units: no way of computing it on them can take
less. (Float32 in parts of bfloat16, on matrix units for these, is another way.)
"""

from dataclasses import dataclass

from lib.studies.attention.problem import Problem


@dataclass(frozen=True)
class Work:
    """Bytes moved, operations, and bytes of temporary buffers that live at the same time (an estimate)."""

    bytes: int
    operations: int
    extra_bytes: int = 0

    def seconds(self, bandwidth: float, throughput: float) -> float:
        """The roofline's time, from bytes and operations a second."""
        return max(self.bytes / bandwidth, self.operations / throughput)


def least(problem: Problem) -> Work:
    """What any way of computing a problem must move and compute: of the tree's own pairs, those that are seen."""
    batch, heads, nodes, dim = problem.query.shape
    ends = 2 * batch * heads * nodes * dim * problem.query.element_size()  # queries read, output written
    pairs = batch * heads * (nodes * problem.prefix + int(problem.tree_mask.sum()))
    return Work(ends + _token(problem) * (problem.prefix + nodes), 4 * dim * pairs)


def work(name: str, problem: Problem) -> Work:
    """What the alternative called `name` must at least move and compute, and what it allocates."""
    p = problem
    batch, heads, nodes, dim = p.query.shape
    keys, width = p.prefix + nodes, p.query.element_size()
    ends, once = 2 * batch * heads * nodes * dim * width, _token(p) * keys
    column = p.group * nodes * width  # of the folded additive mask
    operations = 4 * dim * batch * heads * nodes * keys
    if name == "folded":  # its mask is written once and read once
        return Work(ends + once + 2 * column * keys, operations, column * keys)
    if name == "dense mask":
        mask = batch * nodes * keys * (1 + width)  # of truth values, and what the fused call adds
        return Work(ends + (1 + 2 * p.group) * once + 2 * mask, operations, p.group * once + mask)
    if name == "flashinfer":  # its mask over prefix and tree is made of truth values, packed and read in bits
        mask = batch * nodes * keys
        return Work(ends + once + mask + 2 * (mask // 8), operations, mask + mask // 8)
    if name in ("branch batch", "path by path", "path by path, folded", "node by node"):
        return _one_after_another(name, p, ends)
    return Work(ends + once + 2 * column * nodes, operations, column * nodes)  # the mask covers the tree alone


def _one_after_another(name: str, problem: Problem, ends: int) -> Work:
    """The ways that take a tree path by path or node by node: each of their calls sees the prefix again."""
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
