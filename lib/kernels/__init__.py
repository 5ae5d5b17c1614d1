"""C++ sources, their build and bare bindings: products of few rows, decoder layers, one-pass attention.

Start at `build` (compiles at first use), `products` (linear layers of few rows) and `panels` (weights of 16, 8 or 4
bits). `lib.attention` binds the attention kernel. Each algorithm is written once, on the vectors of `lanes.h` and the
threads of `threads.h`; an instruction set is one file beside them.
"""
