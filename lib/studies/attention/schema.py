"""Tables of tree attention: times, errors, roofline, and peaks of the machine."""

from lib.studies.columns import table
from lib.studies.parameters import dtype, family, nodes

NOTEBOOK = "03_attention_timing"
PARAMETERS = {"dtypes": dtype, "shape": family, "drafts": nodes}

CELL = "batch prefix draft dtype query_heads kv_heads head_dim shape"
PROBLEM = """
    batch integer sequences verified together
    prefix integer committed tokens before the tree, per sequence
    draft integer tree nodes in the call, root included; 1 is plain one-token decoding
    dtype text number format of queries, keys and values
    query_heads integer attention heads of the queries
    kv_heads integer heads of the keys and values, each shared by query_heads / kv_heads query heads
    head_dim integer numbers per head and token
    shape text family of the draft tree
    """
TIMES = f"""
    {PROBLEM}
    alternative text how attention is computed
    median_ms real median milliseconds per call
    lower_ms upper_ms repeats
    skipped text why the cell was not timed; empty if it was
    """

TABLES = (
    table("peaks", "measured peaks of the machine: the limits of the times in the table attention",
          "device threads what", """
          device text cpu or cuda
          threads integer threads of the measurement
          what text bandwidth of the memory, or throughput of products with their number format
          value real bytes or operations per second
          unit text unit of value
          """),
    table("attention_errors", "error of one way to compute tree attention against the definition in float64",
          "dtype alternative", """
          dtype text number format of queries, keys and values
          alternative text how attention is computed
          error real norm of the difference from the definition, over the definition's norm
          """),
    table("attention", "time of one way to compute tree attention in one cell of the grid, with warm caches",
          f"{CELL} alternative", TIMES, compressed=True),
    table("attention_roofline", "least data and operations of one cell, and their least time at the measured peaks",
          CELL, f"""
          {PROBLEM}
          bytes integer bytes of queries, keys, values and output
          operations integer floating-point operations over the visible pairs of nodes and keys
          least_ms real least milliseconds, with keys and values in memory
          """, compressed=True),
    table("attention_cold", "as attention, with the processor's caches flushed before each call", f"{CELL} alternative",
          TIMES, compressed=True),
)
