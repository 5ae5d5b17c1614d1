"""llama.cpp: a chain, by `--spec-draft-n-max` (in older builds `--draft-max`, which those of mid-2026 refuse).

`--spec-draft-p-min 0` keeps it from stopping at tokens that the drafter is not sure of. A smallest length is not given:
a draft that the end of the answer leaves no room for would then be given up, not cut.
"""

from lib.cost.engines.forms import length_of_chain, options, whole
from lib.trees.shapes import chain
from lib.trees.tree import Tree

LENGTHS = ("spec-draft-n-max", "draft-max")


def write(tree: Tree, model: str = "DRAFTER", kind: str = "draft-simple") -> str:
    """The options of llama-server for a drafter in a file of its own. kind: "draft-simple" for a language model,
    "draft-eagle3".
    """
    length = length_of_chain(tree, "llama.cpp")
    return f"-md {model} --spec-type {kind} --spec-draft-n-max {length} --spec-draft-p-min 0"


def read(text: str) -> Tree:
    """The longest chain that the options allow, in either spelling. ValueError where they say none."""
    found = options(text)
    spelt = next((name for name in LENGTHS if name in found), LENGTHS[0])
    return chain(*whole(found, [spelt], text))
