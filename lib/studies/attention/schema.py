"""Tables of tree attention: times, roofline, the machine's peaks, what `auto` chooses from."""

from lib.lab.schema import Schema, integer, real, text

CELL = ("batch", "prefix", "draft", "dtype", "query_heads", "kv_heads", "head_dim", "shape", "alternative")
TIMES = {
    "batch": integer("sequences verified together"),
    "prefix": integer("committed tokens before the tree, per sequence"),
    "draft": integer("tree nodes in the call, root included; 1 is plain one-token decoding"),
    "dtype": text("number format of queries, keys and values"),
    "query_heads": integer("attention heads of the queries"),
    "kv_heads": integer("heads of the keys and values, each shared by query_heads / kv_heads query heads"),
    "head_dim": integer("numbers a head holds for a token"),
    "shape": text("family of the draft tree"),
    "alternative": text("how the attention is computed"),
    "median_ms": real("median time of a call in milliseconds, over interleaved repeats"),
    "lower_ms": real("lower quartile of the same"),
    "upper_ms": real("upper quartile of the same"),
    "repeats": integer("timed calls behind the quartiles"),
    "bytes": integer("bytes that the alternative must at least read and write"),
    "operations": integer("floating-point operations that it must at least do"),
    "extra_bytes": integer("temporary memory that it allocates, estimated"),
    "skipped": text("why the cell was not timed; empty if it was"),
}

TABLES = (
    Schema(
        "peaks",
        "what the machine was measured to reach in the run of the attention table: the ceilings of its cells",
        ("device", "threads", "what"),
        {
            "device": text("cpu or cuda"),
            "threads": integer("threads of the measurement"),
            "what": text("bandwidth; or throughput of the units, or of products of matrices, and their number format"),
            "value": real("bytes or operations a second"),
            "unit": text("unit of value"),
        },
    ),
    Schema(
        "attention_choice",
        "how long each of the project's own backends took in a cell: what backend=auto chooses from",
        ("kind", "dtype", "blocks", "prefix", "rows", "head_dim", "backend"),
        {
            "kind": text("kind of machine: a processor's widest instructions, or a GPU's capability"),
            "dtype": text("number format of queries, keys and values"),
            "blocks": integer("batch times key heads"),
            "prefix": integer("committed tokens before the tree"),
            "rows": integer("query rows that share a key: heads of a group times nodes"),
            "head_dim": integer("numbers a head holds for a token"),
            "backend": text("name for tree_attention's backend="),
            "median_ms": real("median time of a call in milliseconds, over interleaved repeats"),
        },
    ),
    Schema(
        "attention",
        "time of one way to compute tree attention in one cell of the grid, interleaved with the others, caches warm",
        CELL,
        TIMES,
        compressed=True,
    ),
    Schema(
        "attention_roofline",
        "what any way of computing a cell of the attention tables must move and compute, and the time that this takes "
        "at the run's measured peaks",
        CELL[:-1],
        {name: TIMES[name] for name in CELL[:-1]} | {
            "bytes": integer("bytes of queries, keys, values and output"),
            "operations": integer("floating-point operations over the pairs of nodes and keys that are seen"),
            "warm_ms": real("least time in milliseconds, at the caches' bandwidth where keys and values fit them"),
            "cold_ms": real("least time in milliseconds, at the memory's bandwidth"),
        },
        compressed=True,
    ),
    Schema(
        "attention_forward",
        "time of a whole verifying forward, and of what the cache adds to the attention of one layer, interleaved",
        ("what", "prefix", "draft", "dtype", "layers", "query_heads", "kv_heads", "head_dim"),
        {"what": text("forward, tree; forward, transformers; or of one layer: attention, append, keep, concatenate")}
        | {name: TIMES[name] for name in ("prefix", "draft", "dtype")}
        | {"layers": integer("layers of the model")}
        | {name: TIMES[name] for name in ("query_heads", "kv_heads", "head_dim", "median_ms", "lower_ms", "upper_ms",
                                          "repeats")},
    ),
    Schema("attention_cold", "the same with the processor's caches flushed before each call", CELL, TIMES,
           compressed=True),
    Schema("attention_heads", "the same, caches flushed, for other numbers of heads", CELL, TIMES, compressed=True),
)
