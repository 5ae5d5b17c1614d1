"""Work spread over processes and machines, on Dask (`distributed`, optional): a function of pieces, in their order.

Results do not depend on the worker that computes a piece: each piece draws from a generator of its own (`seeded`), and
workers with other code, models, versions or another kind of processor are refused. Timed work is never spread. The
pieces of a worker that dies are done by others. Dask sends pickled objects: the cluster must be trusted.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from click import UsageError

from lib.lab import environment, processor, provenance

ADDRESS = "DRAFT_TREES_CLUSTER"  # in the environment: the scheduler's, while a run has workers
SECONDS = 30  # to find a scheduler


def seeded(*words: object) -> torch.Generator:
    """A generator for one piece of work, a function of these plain values."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def spread(function: Callable, pieces: Iterable, *shared) -> Iterator:
    """function(piece, *shared) for each piece, in their order: one after another here, or on the run's workers, which
    get copies of the arguments. An error of a piece is raised here; UsageError where workers died of it.
    """
    if ADDRESS not in os.environ:
        yield from (function(piece, *shared) for piece in pieces)
        return
    from distributed import KilledWorker, get_client

    client = get_client(os.environ[ADDRESS], SECONDS)  # one for this process
    task = function, shared, identity(), torch.get_num_threads()
    futures = [client.submit(_work, piece, *task, pure=False) for piece in pieces]
    try:
        yield from (future.result() for future in futures)
    except KilledWorker as error:
        raise UsageError(f"workers died over one piece of work, the last at {error.last_worker.address}: the memory "
                         "may be too small for the models; take fewer workers") from None
    finally:
        client.cancel(futures)


def _work(piece, function: Callable, shared: tuple, expected: Mapping[str, str], threads: int):
    """A piece on a worker, with as many threads as the driver has, since sums may depend on their number. UsageError on
    a worker that is not like the driver.
    """
    if differing := [name for name, value in identity().items() if value != expected[name]]:
        raise UsageError(f"a worker has other {', '.join(differing)}; bring it to this commit, models and packages")
    torch.set_num_threads(threads)
    return function(piece, *shared)


@cache
def identity() -> dict[str, str]:
    """What workers must share, so that their results are those of one machine."""
    data = {name: provenance.file_digest(provenance.HOME / "data" / name) for name in ("models", "prompts")}
    return {"commit": provenance.commit()["commit"], "code": provenance.file_digest(provenance.LIB), **data,
            "processor": processor.kind(), **provenance.versions()}


@contextmanager
def used(address: str | None, count: int | None = None, say: Callable[[str], None] = print) -> Iterator[None]:
    """Within the context, work is spread over the cluster at an address, or else over so many processes on this
    machine, also by processes that are started in it. UsageError where there is no cluster.
    """
    if find_spec("distributed") is None:
        raise UsageError("the package distributed, which spreads work, is not installed; to add it: "
                         f"{environment.install_command('cluster')}")
    import dask
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        if not address:
            # Dask would start workers with variables for one thread, which this process and its kernels would keep.
            dask.config.set({"distributed.nanny.pre-spawn-environ": {}})
            cluster = stack.enter_context(LocalCluster(
                n_workers=count, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0",
                silence_logs="CRITICAL"))
            say(f"{count} workers; what they do is shown at {cluster.dashboard_link}")
            address = cluster.scheduler_address
        try:
            with Client(address, timeout=SECONDS, set_as_default=False) as client:
                threads = {*client.nthreads().values()}
        except (OSError, ValueError) as error:
            raise UsageError(f"there is no cluster at {address} ({' '.join(str(error).split())}); start one with `dask "
                             "scheduler` and `dask worker --nthreads 1`, or take --workers N") from None
        if threads != {1}:
            raise UsageError(f"the cluster at {address} must have workers of one thread each: dask worker --nthreads 1")
        os.environ[ADDRESS] = address
        stack.callback(os.environ.pop, ADDRESS, None)
        yield
