"""transformers' assisted generation: a chain, by the drafter's own generation settings; batch 1 alone.

The schedule is set to constant and the confidence threshold to 0, or the drafter stops and adapts on its own.
"""

from lib.cost.engines.forms import keywords, length_of_chain, whole
from lib.trees.shapes import chain
from lib.trees.tree import Tree


def write(tree: Tree) -> str:
    """The line of Python before `model.generate(..., assistant_model=assistant_model)`."""
    return (f"assistant_model.generation_config.update(num_assistant_tokens={length_of_chain(tree, 'transformers')}, "
            'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)')


def read(text: str) -> Tree:
    """The chain of such a line. ValueError where its length is missing, or is not kept constant."""
    found = keywords(text)
    if found.get("num_assistant_tokens_schedule") != "constant":
        raise ValueError(f"{text[:60]!r} gives no constant num_assistant_tokens: set num_assistant_tokens_schedule to "
                         "'constant'")
    return chain(*whole(found, ["num_assistant_tokens"], text))
