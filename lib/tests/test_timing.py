"""The baselines compute what the reference does; the clock is fair, bounded, and says what it left out."""

import platform
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import timing
from lib.attention import tree_attention
from lib.baselines import PREPARE, Problem, reads_and_operations


def problem(parents, prefix, batch=2, kv_heads=2, group=3, dim=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], 1):
        mask[node] |= mask[parent]
    keys = batch, kv_heads, prefix + len(parents), dim
    shapes = (batch, kv_heads * group, len(parents), dim), keys, keys
    return Problem(*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes), mask, prefix)


@pytest.mark.parametrize("name", PREPARE)
@settings(deadline=None, max_examples=15)
@given(data=st.data(), nodes=st.integers(1, 12), prefix=st.integers(0, 20), group=st.sampled_from([1, 3]))
def test_every_alternative_computes_tree_attention(name, data, nodes, prefix, group):
    """Also when called again: nothing is left over from the first call."""
    parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, nodes)]
    p = problem(parents, prefix, group=group)
    truth = tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend="reference")
    run = PREPARE[name](p)
    for _ in range(2):
        torch.testing.assert_close(run(), truth, rtol=0, atol=2e-6)
    bytes_moved, operations, extra = reads_and_operations(name, p)
    assert bytes_moved >= 0 and operations > 0 and extra >= 0


def sleeper(seconds, log, name):
    def call():
        log.append(name)
        time.sleep(seconds)

    return call


def timed(alternatives, **settings):
    generator = torch.Generator().manual_seed(0)
    return timing.interleaved(alternatives, **{"repeats": 8, "seconds": 4.0, "generator": generator, **settings})


def test_alternatives_are_interleaved_in_changing_order():
    """After the warm-up each round holds every alternative once, and not always in the same order."""
    log, names = [], ["a", "b", "c"]
    times = timed({name: sleeper(0.0005, log, name) for name in names})
    rounds = [tuple(log[3 + 3 * i : 6 + 3 * i]) for i in range(8)]
    assert log[:3] == names and all(sorted(each) == names for each in rounds) and len(set(rounds)) > 1
    for time_ in times.values():
        assert time_.repeats == 8 and 0.0005 <= time_.lower <= time_.median <= time_.upper and not time_.skipped


def test_a_slow_alternative_repeats_less_or_is_skipped_with_the_reason():
    """Each has an equal share of the cell's time; the slow one's few calls are spread over all rounds."""
    log = []
    calls = {"fast": sleeper(0.0, log, "fast"), "slow": sleeper(0.02, log, "slow"), "stuck": sleeper(0.2, log, "stuck")}
    times = timed(calls, repeats=40, seconds=0.3)
    assert times["fast"].repeats == 40 and 3 <= times["slow"].repeats < 5
    assert times["stuck"].repeats == 0 and "3 repeats do not fit into 0.1 s" in times["stuck"].skipped
    at = [i for i, name in enumerate(log[3:]) if name == "slow"]
    assert at[0] < 20 < at[-1] and log.count("stuck") == 1


def test_the_machine_is_described_without_naming_it():
    facts = timing.machine()
    assert facts["threads"] == torch.get_num_threads() and facts["cores"] >= 1 and facts["torch"] == torch.__version__
    assert platform.node() not in map(str, facts.values())


def test_probes_find_plausible_peaks():
    """Reading cannot be slower than 100 MB/s, nor a matrix product than 100 MFLOP/s."""
    assert 1e8 < timing.bandwidth(megabytes=(4,), seconds=0.01) < 1e13
    assert 1e8 < timing.throughput(torch.float32, sizes=(64, 128), seconds=0.01) < 1e15
