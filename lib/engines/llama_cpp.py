"""llama.cpp: a chain, by `--draft-max` and `--draft-min` (newer builds: `--spec-draft-n-max`, `--spec-draft-n-min`).

`--draft-p-min 0` keeps it from stopping at tokens that the drafter is not sure of.
"""

from lib.engines.forms import length_of_chain, options
from lib.shapes import chain
from lib.tree import Tree

LENGTHS = ("draft-max", "spec-draft-n-max")


def write(tree: Tree, model: str = "DRAFTER") -> str:
    """The options of llama-server and llama-speculative."""
    length = length_of_chain(tree, "llama.cpp")
    return f"-md {model} --draft-max {length} --draft-min {length} --draft-p-min 0"


def read(text: str) -> Tree:
    """The longest chain that the options allow, in either spelling. ValueError where they say none."""
    found = options(text)
    lengths = [found[name] for name in LENGTHS if name in found]
    if not lengths:
        raise ValueError(f"{text[:60]!r} lacks --{' and --'.join(LENGTHS)}")
    return chain(int(lengths[0]))
