"""One forward pass over the nodes of a draft tree, by an implementation with a name:

- "layers": transformers' own layers, each of which calls the tree-attention operator;
- "native": all layers in one call of C++ over the model's own weights, on processors that the kernels serve.

Start at `passes` (`forward_pass`, which gives a model's forward pass by name; "auto" takes the faster one that the
model and the machine allow). `native` holds the C++ implementation. `load` loads pairs in every number format:
`packed` has layers over weights in the kernels' order, in 16 or 8 bits, `stored` keeps a GGUF file's own blocks.
`prefill` reads the prompts of a batch, `reduced` makes models that know some of their tokens alone.
"""

from lib.forward.load import load_pair, load_pairs, load_served
from lib.forward.passes import AUTO, NAMES, ForwardPass, forward_pass

__all__ = ["AUTO", "NAMES", "ForwardPass", "forward_pass", "load_pair", "load_pairs", "load_served"]
