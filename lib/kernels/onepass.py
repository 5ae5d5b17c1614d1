"""The one-pass attention kernel's binding: the struct of a call.

`onepass.cpp` says how it computes, `onepass_panels.h` holds one tile's computation, `onepass_tiles.h` and
`onepass_amx.h` its innermost loops.
"""

import ctypes

import torch

ENTRIES = {torch.float32: "onepass_float32", torch.bfloat16: "onepass_bfloat16"}
Strides = 3 * ctypes.c_int64


class Call(ctypes.Structure):
    """The struct of the same name in the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "mask", "prefix", "output", "lse")),
        *((name, ctypes.c_int64) for name in ("batch", "kv_heads", "group", "nodes", "tree_keys", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("mask_stride", "threads")),
        *((f"{name}_stride", Strides) for name in ("query", "key", "value")),
        ("scale", ctypes.c_float),
    ]
