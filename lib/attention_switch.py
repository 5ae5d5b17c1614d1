"""A model with another attention for a while: speculation in a script that loaded its model without trees in mind."""

from contextlib import contextmanager
from typing import Iterator

from lib.attention import TREE, register


@contextmanager
def using_attention(model, name: str) -> Iterator[None]:
    """The model with this `attn_implementation` inside, with its own again behind."""
    register()
    before = model.config._attn_implementation
    if before != name:
        model.set_attn_implementation(name)
    try:
        yield
    finally:
        if before != name:
            model.set_attn_implementation(before)


def check_attention(model) -> None:
    """ValueError where a model has another attention than "tree", which would take a tree's nodes for a text."""
    found = getattr(model.config, "_attn_implementation", TREE)
    if found != TREE:
        raise ValueError(
            f"{type(model).__name__} has attention {found!r}; load it with attn_implementation={TREE!r} behind "
            f"lib.attention.register(), or call model.set_attn_implementation({TREE!r})"
        )
