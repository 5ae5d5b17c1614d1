"""Work spread over processes and machines, on Dask (`distributed`, optional): a function of pieces, in their order.

Results do not depend on where a piece ran: a piece draws from a generator of its own (`seeded`), and workers with other
code, models, versions or another kind of processor are refused. So tables, and the fingerprints of their rows, are the
same with any number of workers and with none. Timed work is never spread: it runs in the notebook's own process, while
the workers wait.

A worker that dies costs the pieces that it held, which others then do. Dask sends pickled objects between its own
processes, so a cluster must be one that is trusted; files of a user's are never unpickled.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch

from lib.lab import processor, provenance

ADDRESS = "DRAFT_TREES_CLUSTER"  # in the environment: the scheduler's, while a run has workers
AHEAD = 2  # pieces that each worker is given at a time
DEATHS = 3  # of workers that held a piece, after which it is given up
SECONDS = 30  # to find a scheduler


class ClusterError(Exception):
    """The cluster cannot do the work; says which worker, what about it, and the remedy."""


def seeded(*place: object) -> torch.Generator:
    """A generator for one piece of work, a function of these plain values."""
    digest = hashlib.sha256(repr(place).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def active() -> bool:
    """Whether this run has workers."""
    return bool(os.environ.get(ADDRESS))


def spread(function: Callable, pieces: Iterable, *shared) -> Iterator:
    """function(piece, *shared) for each piece, in their order: one after another here, or on the run's workers.

    function: of a module of lib; on workers it gets copies. An error of a piece is raised here. ClusterError where
    workers may not do the work, or died of it.
    """
    if not active():
        yield from (function(piece, *shared) for piece in pieces)
        return
    from distributed import KilledWorker

    client, waiting, pieces = _client(os.environ[ADDRESS]), deque(), iter(pieces)
    sent = function, shared, identity(), torch.get_num_threads()
    try:
        while True:
            room = AHEAD * max(1, len(client.nthreads())) - len(waiting)
            waiting.extend(client.submit(_work, piece, *sent, pure=False) for _, piece in zip(range(room), pieces))
            if not waiting:
                return
            yield waiting.popleft().result()
    except KilledWorker as error:
        raise ClusterError(f"{DEATHS} workers died over one piece of work, the last at {error.last_worker.address}: "
                           "the memory may be too small for the models; take fewer workers") from None
    finally:
        client.cancel(list(waiting))


def _work(piece, function: Callable, shared: tuple, wanted: Mapping[str, object], threads: int):
    """A piece on a worker, which computes with as many threads as the driver, since sums may depend on their number."""
    if differs := _differences(wanted, identity()):
        raise ClusterError(f"a worker joined that {differs}")
    torch.set_num_threads(threads)
    return function(piece, *shared)


@cache
def identity() -> dict[str, object]:
    """What workers must share, so that their results are those of one machine."""
    data = {name: provenance.file_digest(provenance.HOME / "data" / name) for name in ("models", "prompts")}
    return {"commit": provenance.commit()["commit"], "code": provenance.file_digest(provenance.LIB), **data,
            "versions": provenance.versions(), "processor": processor.kind()}


def _differences(wanted: Mapping[str, object], actual: Mapping[str, object]) -> str:
    """In words what of an identity is not as wanted; empty where all is."""
    clauses = []
    for name, value in wanted.items():
        if name == "versions":
            packages = actual[name]
            clauses += [f"has {package} {packages.get(package)}, not {version}" for package, version in value.items()
                        if packages.get(package) != version]
        elif actual[name] != value:
            shown = name in ("commit", "processor")
            clauses.append(f"has {name} {actual[name]}, not {value}" if shown else f"has other {name}")
    return " and ".join(clauses)


def _dask():
    """The module distributed, with this project's settings. ClusterError where it is not installed."""
    try:
        import dask
        import distributed
    except ImportError:
        raise ClusterError("the package distributed, which spreads work, is not installed; install the one that "
                           "requirements.txt names after `cluster:`") from None
    # By default workers are started with one thread, by variables that this process, and its kernels, would keep.
    dask.config.set({"distributed.scheduler.allowed-failures": DEATHS, "distributed.nanny.pre-spawn-environ": {},
                     "distributed.comm.timeouts.connect": SECONDS})
    return distributed


@cache
def _client(address: str):
    """This process's connection to workers that may work for it. ClusterError where there is no scheduler, no worker,
    or one that is refused.
    """
    distributed = _dask()
    try:
        client = distributed.Client(address, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"there is no cluster at {address} ({' '.join(str(error).split())}); start one with `dask "
                           "scheduler` and `dask worker`, or take --workers N") from None
    try:
        check(client, identity())
    except ClusterError:
        client.close()
        raise
    return client


def check(client, wanted: Mapping[str, object]) -> None:
    """ClusterError that names the workers which may not work for this run, whose `identity` is not the wanted one."""
    threads = client.nthreads()
    if not threads:
        raise ClusterError(f"the cluster at {client.scheduler.address} has no workers; start some: dask worker "
                           f"{client.scheduler.address} --nthreads 1")
    if several := [name for name, count in threads.items() if count != 1]:
        raise ClusterError(f"worker {several[0]} runs {threads[several[0]]} pieces at a time; start it with "
                           "--nthreads 1")
    try:
        identities = client.run(identity)
    except Exception as error:  # whatever a worker without this project raises
        raise ClusterError(f"a worker has no such project ({' '.join(str(error).split())}); start workers in the "
                           "project's environment and folder") from None
    refused = [f"worker {name} {clauses}" for name, actual in identities.items()
               if (clauses := _differences(wanted, actual))]
    if refused:
        raise ClusterError(f"{'; '.join(refused)}: bring it to the same commit, models and packages")


@contextmanager
def workers(count: int, say: Callable[[str], None]) -> Iterator[str]:
    """The address of a cluster of so many processes on this machine, on the loopback, which ends with the context."""
    with _dask().LocalCluster(n_workers=count, threads_per_worker=1, host="127.0.0.1",
                              dashboard_address="127.0.0.1:0", silence_logs="CRITICAL") as cluster:
        say(f"{count} workers; what they do is shown at {cluster.dashboard_link}")
        yield cluster.scheduler_address


@contextmanager
def used(address: str) -> Iterator[None]:
    """The run's work is spread over this cluster within the context, in processes that are started in it too.

    ClusterError before anything runs, where the cluster is not there or not allowed.
    """
    _client(address).close()
    _client.cache_clear()
    os.environ[ADDRESS] = address
    try:
        yield
    finally:
        del os.environ[ADDRESS]

