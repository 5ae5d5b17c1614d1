"""One forward pass over the nodes of a draft tree, by an implementation with a name:

- "layers": transformers' own layers, each of which calls the tree-attention operator;
- "native": all layers in one call of C++ over the model's own weights, on processors that the kernels serve.

Start at `passes` (`forward_pass`, which gives a model's forward pass by name; "auto" takes the fastest that the model
and the machine allow). `native` holds the C++ implementation, `packed` linear layers for few rows. `load` loads pairs
in every number format: `quantize` rounds weights to int8, `stored` keeps a GGUF file's own blocks. `prefill` reads the
prompts of a batch, `reduced` makes models that know some of their tokens alone.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(__name__, load=("load_again", "load_pair", "load_pairs", "load_served"),
                                    passes=("AUTO", "NAMES", "ForwardPass", "forward_pass"))
