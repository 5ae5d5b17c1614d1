"""A model with another attention, for a while or for good: models may have been loaded without trees in mind."""

from contextlib import contextmanager
from typing import Iterator

from lib.attention.operator import TREE, register


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
            f"{type(model).__name__} has attention {found!r}, which cannot verify a tree; pass it through "
            "lib.attention.switch.hosting_trees, or load the pair with lib.models"
        )


def hosting_trees(model):
    """The model itself, with attention "tree" from now on."""
    register()
    model.set_attn_implementation(TREE)
    return model
