"""How many bytes of tensors live at once while something runs."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class CountedBytes(TorchDispatchMode):
    """Bytes of the tensors made inside `with`, on any device: `live` now, `peak` at most so far.

    Counted by storage, as operations give them out, until the last tensor that uses it is gone; what an operation needs
    within itself is not seen.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_iter((args, kwargs)) if _has_storage(each)}
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if _has_storage(each):
                self._count(each.untyped_storage(), given)
        return out

    def _count(self, storage, given: set[int]) -> None:
        key = storage._cdata
        if key in given or key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def _has_storage(value) -> bool:
    """Packed weights have none that can be seen; they live as long as their model."""
    return isinstance(value, Tensor) and not value.is_mkldnn
