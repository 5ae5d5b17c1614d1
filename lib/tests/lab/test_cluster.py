"""Work on three processes: the same results as here, whoever dies, and only by workers that are alike."""

import os
from contextlib import nullcontext

import pytest
import torch
from click import UsageError

from lib.drafters.registry import make
from lib.forward import load_pair
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.models.prompts import PromptSet
from lib.replay import recording
from lib.study import live, rules
from lib.tests.lab import pieces
from lib.verify.rules import SIMPLEST

pytestmark = pytest.mark.optional
PROMPTS = PromptSet(tuple("abcdef"), ("k",) * 6, tuple(torch.arange(3, 9 + row) for row in range(6)), (1,) * 6)


@pytest.fixture(scope="module")
def address():
    from distributed import get_client

    with cluster.used(None, 3):
        started = os.environ.pop(cluster.ADDRESS)
        yield started
        get_client(started).close()  # that of this process, which goes on


@pytest.fixture
def spread(address):
    with cluster.used(address):
        yield
    assert cluster.ADDRESS not in os.environ


def test_pieces_come_in_their_order_and_run_elsewhere_with_as_many_threads(spread):
    numbers, processes, threads = zip(*cluster.spread(pieces.where, range(12), "shared"))
    assert numbers == tuple(range(12)) and len(set(processes)) == 3 and os.getpid() not in processes
    assert set(threads) == {torch.get_num_threads()}
    with pytest.raises(ValueError, match="piece 2 cannot be done"):
        list(cluster.spread(pieces.fails, range(5)))


def test_a_killed_worker_costs_its_pieces_alone_and_a_piece_that_kills_every_worker_is_given_up(spread, tmp_path):
    marker = tmp_path / "killed"
    assert list(cluster.spread(pieces.dies_once, range(10), str(marker))) == list(range(10)) and marker.exists()
    with pytest.raises(UsageError, match="workers died over one piece of work.*take fewer workers"):
        list(cluster.spread(pieces.always_dies, [0]))


def test_workers_that_are_not_alike_are_refused(monkeypatch, spread):
    differing = cluster.identity() | {"commit": "x", "torch": "2"}
    monkeypatch.setattr(cluster, "identity", lambda: differing)
    with pytest.raises(UsageError, match="a worker has other commit, torch; bring it to"):
        list(cluster.spread(pieces.where, [1], "shared"))


def test_where_no_cluster_is_nothing_runs(monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS", 1)
    for where in ("tcp://127.0.0.1:9", "nonsense:://"):
        with pytest.raises(UsageError, match=f"no cluster at {where} .*take --workers N"):
            with cluster.used(where):
                pytest.fail("it ran")


def drafters_of(pairs, *names) -> dict:
    return {name: make(name, pairs[0]) for name in names}


def test_tables_are_those_of_one_process(address, tmp_path):
    """Byte for byte: traces, live rounds and enumeration, though rows run anywhere and a worker is killed on the way."""
    pair = load_pair("small/tiny", dtype="float32")
    enumerated = [((language, 1.0, 0.8, shape), [("naive", "iid")]) for language in range(2)
                  for shape in ("chain:2", "star:2")]
    decoded = [("model", rule, "kary:2@2", 1.0) for rule in SIMPLEST.values()]
    made = []
    for folder, context in (("alone", nullcontext()), ("spread", cluster.used(address))):
        store = Store(tmp_path / folder, "04", "mark")
        with context:
            list(cluster.spread(pieces.dies_once, range(3 + len(made)), str(tmp_path / "killed")))
            trace = recording.record(
                pair.target, recording.Competitors(drafters_of, [pair], "model", "lookup"), PROMPTS.ids, seed=3, rows=2,
                names=PROMPTS.names, kinds=PROMPTS.kinds, max_new_tokens=10, temperature=1.0)
            live.decode(store, [pair], PROMPTS, decoded, {}, 6, 0)
            rules.fill(store.open("rules_exact"), enumerated, rules.exact_rows, 3, 0)
        made.append([trace.tokens.tolist(), trace.ranks["model"].tolist(),
                     *(store.open(name).path.read_bytes() for name in ("live", "rules_exact"))])
    assert made[0] == made[1] and len(made[0][2].splitlines()) > 6 and len(made[0][3].splitlines()) == 5
