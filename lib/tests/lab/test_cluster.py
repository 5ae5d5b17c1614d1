"""Work on three processes: the same results as here, whoever dies, and only by workers that are alike."""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lib.forward import load_pair
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.measure import acceptance as study
from lib.models.prompts import PromptSet
from lib.replay import recording
from lib.study import rules
from lib.tests.lab import pieces

pytestmark = pytest.mark.optional
ASKED = PromptSet(tuple("abcdef"), ("k",) * 6, tuple(torch.arange(3, 9 + place) for place in range(6)))


@pytest.fixture(scope="module")
def address():
    said = []
    with cluster.workers(3, said.append) as found:
        assert re.fullmatch(r"3 workers; what they do is shown at http://127\.0\.0\.1:\d+/status", said[0])
        assert found.startswith("tcp://127.0.0.1:")
        yield found


@pytest.fixture
def spread(address):
    with cluster.used(address):
        yield
    assert not cluster.active()


def test_pieces_come_in_their_order_and_run_elsewhere(spread):
    assert list(cluster.spread(pieces.squared, range(20), 1)) == [n * n + 1 for n in range(20)]
    numbers, processes = zip(*cluster.spread(pieces.place, range(12)))
    assert numbers == tuple(range(12)) and len(set(processes)) == 3 and os.getpid() not in processes
    assert set(cluster.spread(pieces.threads, range(3))) == {torch.get_num_threads()}


def test_no_more_pieces_are_taken_than_workers_have_room_for(spread):
    taken = []
    results = cluster.spread(pieces.squared, (taken.append(n) or n for n in range(100)))
    assert [next(results) for _ in range(2)] == [0, 1]
    assert len(taken) <= 2 + 3 * cluster.AHEAD
    results.close()


def test_a_killed_worker_costs_its_pieces_alone(spread, tmp_path):
    marker = tmp_path / "killed"
    assert list(cluster.spread(pieces.dies_once, range(10), str(marker))) == list(range(10)) and marker.exists()


def test_an_error_of_a_piece_is_raised_here(spread):
    with pytest.raises(ValueError, match="piece 2 cannot be done"):
        list(cluster.spread(pieces.fails, range(5)))


def test_a_piece_that_kills_every_worker_is_given_up(spread):
    with pytest.raises(cluster.ClusterError, match="workers died over one piece of work.*take fewer workers"):
        list(cluster.spread(pieces.always_dies, [0]))


def test_workers_that_are_not_alike_are_refused_by_name(address):
    from distributed import Client

    own = cluster.identity()
    with Client(address, set_as_default=False) as client:
        cluster.check(client, own)
        wanted = own | {"commit": "abc", "models": "x", "versions": own["versions"] | {"torch": "1.0"}}
        told = r"worker tcp://127.*has commit \w+, not abc and has other models and has torch \S+, not 1.0.*; worker"
        with pytest.raises(cluster.ClusterError, match=told):
            cluster.check(client, wanted)
    with pytest.raises(cluster.ClusterError, match="a worker joined that has commit .* not abc"):
        cluster._work(1, pieces.squared, (), own | {"commit": "abc"}, 1)


def test_where_no_cluster_is_nothing_runs(monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS", 1)
    with pytest.raises(cluster.ClusterError, match="no cluster at tcp://127.0.0.1:9 .*take --workers N"):
        with cluster.used("tcp://127.0.0.1:9"):
            pytest.fail("it ran")
    with pytest.raises(cluster.ClusterError, match="no cluster at nonsense"):
        with cluster.used("nonsense:://"):
            pytest.fail("it ran")


def test_generators_depend_on_their_place_alone():
    draws = [torch.rand(4, generator=cluster.seeded(*place)) for place in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert torch.equal(draws[0], draws[3]) and len({tuple(draw.tolist()) for draw in draws}) == 3


# -------------------------------------------------------------------------------------------------- tables of studies


def tables(pair, folder: Path) -> dict[str, pd.DataFrame]:
    """What the studies spread: recorded traces, trees that grow, sampled children, subsets of prompts, enumeration."""
    competitors = recording.Competitors([pair])
    traces = recording.record_all(
        competitors, ASKED, ["a", "b"], temperatures=[0.0, 1.0], tokens=10, seed=3, folder=folder, deepest=4)
    first = study.Studied(traces[0], competitors)
    sampling = dict(new_tokens=6, seed=0)
    found = {"growth": study.compare_grown(first, pair.drafter_name, ["dyspec", "eagle2:2,2"], [3]),
             "choices": study.choices([first], 4, np.random.default_rng(0)),
             "live": study.sampled_live(pair, ASKED, ["kary:2@2"], [1.0], **sampling),
             "expected": study.expected(pair, ASKED, ["kary:2@2"], [1.0], **sampling)}
    for place, recorded in enumerate(traces):
        found[f"tokens {place}"] = pd.DataFrame(recorded.trace.tokens)
        found[f"ranks {place}"] = pd.DataFrame(recorded.trace.ranks[pair.drafter_name])
    store = Store(folder, "04", "mark")
    keys = [(language, 1.0, 0.8, shape, "naive", "iid") for language in range(2) for shape in ("chain:2", "star:2")]
    rules.fill(store.open("rules_exact"), keys, rules.exact_rows, 3, 0)
    rules.fill(store.open("rules_proof"), [("chain:2", "random", "naive", "iid")], rules.proof_rows, 2)
    found |= {name: store.open(name).frame() for name in ("rules_exact", "rules_proof")}
    return found


def test_tables_are_those_of_one_process(address, tmp_path):
    """Byte for byte, though rows of a batch run anywhere and one worker is killed on the way."""
    pair = load_pair("small/tiny", dtype="float32")
    alone = tables(pair, tmp_path / "alone")
    with cluster.used(address):
        assert list(cluster.spread(pieces.dies_once, range(4), str(tmp_path / "killed"))) == list(range(4))
        together = tables(pair, tmp_path / "together")
    assert alone.keys() == together.keys()
    for name, rows in alone.items():
        assert len(rows) and rows.to_csv() == together[name].to_csv(), name
