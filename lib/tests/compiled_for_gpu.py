"""Compiles the CUDA kernels for an H200, on any machine, and prints what each needs, as JSON."""

import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lib.attention import triton as kernel

H200 = GPUTarget("cuda", 90, 32)
WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
KINDS = [("bf16", 128, 4), ("bf16", 128, 64), ("bf16", 128, 256), ("fp16", 64, 64), ("bf16", 256, 256),
         ("fp32", 128, 64), ("fp32", 256, 64)]  # dtype, numbers a head, rows


def compiled(function, types: dict[str, str], constants: dict[str, int], **options):
    """A kernel with these pointers and constants; all its other arguments are int32, but for factors."""
    signature = {name: "i32" for name in function.arg_names} | types | {name: "constexpr" for name in constants}
    constexprs = {(function.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=constexprs)
    return triton.compile(source, target=H200, options=options)


def need(dtype: str, dim: int, rows: int) -> dict:
    """Shared memory in bytes of a program over a range of keys, and whether it multiplies by matrix units."""
    tile, keys, warps = kernel.tiles(rows, dim, WIDTHS[dtype])
    types = {name: f"*{dtype}" for name in ("query", "key", "value")} | {"words": "*i32", "prefixes": "*i32"}
    types |= {"partial": "*fp32", "partial_lse": "*fp32", "factor": "fp32", "softcap": "fp32"}
    constants = {"CAPPED": 1, "ROWS": tile, "KEYS": keys, "DIM": dim, "VALUE_DIM": dim, "GROUP": 4}
    made = compiled(kernel._range_of_keys, types, constants, num_warps=warps, num_stages=kernel.STAGES)
    units = "wgmma" in made.asm["ptx"] or "mma.sync" in made.asm["ptx"]
    return {"dtype": dtype, "dim": dim, "rows": tile, "shared": made.metadata.shared, "matrix units": units}


def merge(dtype: str) -> None:
    """The kernel that merges the ranges: that it compiles is all that is asked."""
    types = {"partial": "*fp32", "partial_lse": "*fp32", "output": f"*{dtype}", "lse": "*fp32"}
    compiled(kernel._merge_ranges, types, {"SPLITS": 64, "VALUE_DIM": 128}, num_warps=1)


if __name__ == "__main__":
    for dtype in WIDTHS:
        merge(dtype)
    print(json.dumps([need(*kind) for kind in KINDS]))
