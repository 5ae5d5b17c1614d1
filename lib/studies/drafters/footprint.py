"""What a drafter needs beside its target: weights of its own, and what it holds of the text."""

import sys
from typing import Iterator

import torch
from torch import nn

from lib.drafters.heads.layers import Behind
from lib.drafters.heads.native_features import NativeFeatures
from lib.models.fused import copied_bytes
from lib.models.packed import packed_bytes

ENDS = nn.Module, Behind, NativeFeatures  # what holds weights, and is not looked into


def own_weights(drafter, target: nn.Module) -> int:
    """Bytes of the drafter's parameters and buffers that are not the target's, and of copies that its blocks hold."""
    shared = {tensor.data_ptr() for tensor in _tensors(target)}
    reached = list(_reach(drafter))
    modules = [module for module in reached if isinstance(module, nn.Module) and module is not target]
    copied = sum(layers.copied_bytes for layers in reached if isinstance(layers, (Behind, NativeFeatures)))
    own = {tensor.data_ptr(): tensor.nbytes for module in modules for tensor in _tensors(module)
           if tensor.data_ptr() not in shared}
    return copied + sum(own.values()) + sum(copied_bytes(module) + packed_bytes(module) for module in modules)


def weights(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers, and of copies that its blocks hold."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}.values()) + copied_bytes(model)


def held(drafter) -> int:
    """Bytes of everything else that can be reached from the drafter: caches, texts, tables, the last drafts."""
    reached = [thing for thing in _reach(drafter) if not isinstance(thing, ENDS)]
    storages = {thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes()
                for thing in reached if isinstance(thing, torch.Tensor)}
    others = [thing for thing in reached if not isinstance(thing, torch.Tensor)]
    return sum(storages.values()) + sum(map(sys.getsizeof, others))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _reach(thing) -> Iterator:
    """The thing and all that its containers and attributes lead to, each once; modules and tensors are ends."""
    seen, waiting = set(), [thing]
    while waiting:
        here = waiting.pop()
        if id(here) in seen or isinstance(here, type) or callable(here) and not isinstance(here, ENDS):
            continue
        seen.add(id(here))
        yield here
        if isinstance(here, (*ENDS, torch.Tensor, str, bytes)):
            continue
        if isinstance(here, dict):
            waiting += [*here.keys(), *here.values()]
        elif isinstance(here, (list, tuple, set, frozenset)):
            waiting += here
        else:
            waiting += getattr(here, "__dict__", {}).values()
