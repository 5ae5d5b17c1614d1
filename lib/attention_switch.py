"""A model with another attention for a while: speculation in a script that loaded its model without trees in mind."""

from contextlib import contextmanager
from typing import Iterator

from lib.attention import register


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
