"""The bytes of tensors that are alive at once."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class CountedBytes(TorchDispatchMode):
    """Bytes of the tensors made inside `with`, on any device: `live` now, `peak` the most so far.

    A storage counts from the operation that returns it until its last tensor is deleted. Memory that an operation uses
    internally is not counted.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.counted: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_iter((args, kwargs)) if _has_storage(each)}
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if _has_storage(each):
                self._count(each.untyped_storage(), given)
        return out

    def _count(self, storage, given: set[int]) -> None:
        key = storage._cdata
        if key in given or key in self.counted:
            return
        self.counted.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.counted.discard(key)
        self.live -= size


def _has_storage(value) -> bool:
    """Packed weights expose none; they live as long as their model."""
    return isinstance(value, Tensor) and not value.is_mkldnn
