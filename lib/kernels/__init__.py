"""C++ sources, their build and bare bindings: products of few rows, decoder layers, one-pass attention.

Start at `build` (compiles a source at its first use for the processor's instruction set, and caches the library) and
`products` (linear layers of few rows). `onepass` binds the attention kernel. Each algorithm is written once, on the
vectors of `lanes.h`; an instruction set is one file beside it.
"""
