"""Experts that a check touches: a mixture of experts reads the weights of each expert that any of its tokens takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import product

import pandas as pd
import torch
from torch import Tensor, nn

from lib.attention.masks import causal
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill

INDICES = {"top_k_index", "router_indices"}  # as classes call this argument
TEXT, RANDOM = "text", "random tokens"


def routers(model: nn.Module) -> list[nn.Module]:
    """The modules that compute experts for tokens; in transformers the second argument of their forward passes has the
    experts of each token.
    """
    return [module for module in model.modules() if INDICES & {*signature(type(module).forward).parameters}]


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """A list that each layer of experts extends, in each forward pass, by the number of different experts it runs."""
    counts: list[int] = []
    hooks = [module.register_forward_pre_hook(
        lambda _, given, named: counts.append(_indices(given, named).unique().numel()), with_kwargs=True)
        for module in routers(model)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _indices(given: tuple, named: dict) -> Tensor:
    return given[1] if len(given) > 1 else next(named[name] for name in INDICES if name in named)


@torch.inference_mode()
def per_check(target, texts: Sequence[Tensor], nodes: Sequence[int], seed: int = 0) -> pd.DataFrame:
    """For checks of a chain of so many draft tokens the mean number of different experts per layer, of text and of
    random tokens, after half of each text; no rows for a model without experts.

    texts: int64[T] with more than twice as many tokens as the longest chain.
    """
    if not routers(target):
        return pd.DataFrame()
    generator, rows = torch.Generator().manual_seed(seed), []
    vocabulary = target.config.get_text_config().vocab_size
    run = forward_pass(target, "layers")
    for text in texts:
        half = len(text) // 2
        cache = prefill(run, [text[:half]]).cache
        for count, name in product(nodes, (TEXT, RANDOM)):
            block = text[half : half + count + 1].clone()
            if name == RANDOM:
                block[1:] = torch.randint(vocabulary, (len(block) - 1,), generator=generator)
            with counted(target) as counts:
                run(block[None], torch.arange(len(block)), causal(len(block), 0), cache)
            cache.forget()
            rows.append(dict(tokens=name, nodes=count, experts=sum(counts) / len(counts), layers=len(counts)))
    return pd.DataFrame(rows).groupby(["tokens", "nodes"], sort=False, as_index=False).mean().astype(
        {"layers": int}).assign(n_prompts=len(texts))
