"""Calls of a function of static shapes: as CUDA graphs, captured once per bucket of shapes; elsewhere as they are.

The inputs of a call lie in one array, which one copy moves to the device; the results stay there.
"""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Callable, Hashable, Mapping

import numpy as np
import torch
from torch import Tensor

MOST = 12  # buckets; the least recently used one leaves
WARM_UPS = 3  # calls before a capture, in which kernels are compiled and workspaces allocated


@dataclass(frozen=True)
class Captured:
    """One bucket: the seconds of its warm-up (which compiles) and capture, and the bytes that the device's reserved
    memory grew by; 0 where nothing is captured.
    """

    bucket: Hashable
    seconds: float
    bytes: int


class Inputs:
    """Named int32 arrays in one block of memory, on the host and on the device.

    host: NumPy views to write to after `wait`. On a CPU both are the same memory.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device):
        self.shapes, on_gpu = shapes, device.type == "cuda"
        self._host = torch.zeros(sum(map(math.prod, shapes.values())), dtype=torch.int32, pin_memory=on_gpu)
        self.whole = torch.zeros_like(self._host, device=device, pin_memory=False) if on_gpu else self._host
        self.host: dict[str, np.ndarray] = {name: part.numpy() for name, part in self.parts(self._host).items()}
        self._sent = torch.cuda.Event() if on_gpu else None

    def parts(self, whole: Tensor) -> dict[str, Tensor]:
        """The named arrays in a tensor of the block's length."""
        pieces = whole.split([math.prod(shape) for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces)}

    def wait(self) -> None:
        """Waits until the last copy has read the host's memory."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self) -> None:
        """Copies everything to the device, which the host does not wait for."""
        if self._sent is not None:
            self.whole.copy_(self._host, non_blocking=True)
            self._sent.record()


@dataclass(frozen=True)
class Call:
    """One bucket's inputs, and `run`, which gives the results for the inputs that were sent."""

    inputs: Inputs
    run: Callable[[], object]
    captured: Captured


class Graphs:
    """Calls by bucket on one device, at most MOST; captured on a GPU alone.

    Results are valid until the next call of any bucket: the buckets share one pool of memory.
    """

    def __init__(self, device: torch.device):
        self.device, self.on_gpu, self.calls = device, device.type == "cuda", OrderedDict[Hashable, Call]()
        self._stream = torch.cuda.Stream(device) if self.on_gpu else None  # cuBLAS has a workspace for each
        self.forget()

    def forget(self) -> None:
        """Drops all graphs, for functions whose buffers have moved."""
        self._finish()
        self.calls.clear()
        self._pool = torch.cuda.graph_pool_handle() if self.on_gpu else None  # one without graphs cannot serve again

    @property
    def captured(self) -> tuple[Captured, ...]:
        """The buckets held, the least recently used first."""
        return tuple(call.captured for call in self.calls.values())

    def call(self, bucket: Hashable, make: Callable[[], tuple[Inputs, Callable[[], object]]]) -> Call:
        """A bucket's call; of a new bucket `make` gives the inputs, with values for the warm-up, and the function of
        them, which never reads them on the host.
        """
        if bucket not in self.calls:
            if len(self.calls) >= MOST:
                self._finish()
                self.calls.popitem(last=False)
            (inputs, run), captured = make(), Captured(bucket, 0.0, 0)
            if self.on_gpu:
                inputs.send()
                start, before = time.perf_counter(), self._reserved()
                run = self._capture(run)
                captured = Captured(bucket, time.perf_counter() - start, max(0, self._reserved() - before))
            self.calls[bucket] = Call(inputs, run, captured)
        self.calls.move_to_end(bucket)
        return self.calls[bucket]

    def _capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """A call's replay."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(self._stream)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            results = run()
        return partial(_replay, graph, results, run)

    def _reserved(self) -> int:
        """Bytes of the device's memory that torch uses, without those that it keeps for later."""
        self._finish()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self.device)

    def _finish(self) -> None:
        """Waits for the device, which may still run a graph that is dropped."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def _replay(graph, results: object, function: Callable[[], object]) -> object:
    """Replays a graph; function: what was captured, kept because the graph reads the tensors that it holds."""
    graph.replay()
    return results
