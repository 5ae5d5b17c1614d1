"""The clock is fair, bounded, and says what it left out."""

import itertools
import platform

import pytest
import torch

from lib.lab import processor, timing


class Simulation:
    """A clock that advances only by what the alternatives say they take, and the order in which they were called."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def taking(self, name, seconds):
        durations = itertools.cycle(seconds)

        def call():
            self.calls.append(name)
            self.now += next(durations)
        return call

    def time(self, repeats, limit, **durations):
        calls = {name: self.taking(name, seconds) for name, seconds in durations.items()}
        return timing.interleaved(calls, repeats=repeats, seconds=limit, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def simulation(monkeypatch):
    return Simulation(monkeypatch)


def test_alternatives_are_interleaved_in_changing_order_and_their_first_calls_are_left_out(simulation):
    times = simulation.time(5, 100.0, a=[7.0, 1.0, 2.0, 3.0, 4.0, 5.0], b=[0.1], c=[0.01])
    rounds = [tuple(simulation.calls[start : start + 3]) for start in range(3, 18, 3)]
    assert simulation.calls[:3] == ["a", "b", "c"]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds) and len(set(rounds)) > 1
    assert (times["a"].lower, times["a"].median, times["a"].upper, times["a"].repeats) == pytest.approx((2, 3, 4, 5))


def test_a_slow_alternative_repeats_less_in_all_rounds_or_is_skipped_with_the_reason(simulation):
    times = simulation.time(40, 0.3, fast=[0.001], slow=[0.02], stuck=[0.1])
    assert times["fast"].repeats == 40 and times["slow"].repeats == 13 and times["stuck"].repeats == 0
    assert "3 calls of 0.1 s and those of the faster ones do not fit into 0.3 s" in times["stuck"].skipped
    positions = [index for index, name in enumerate(simulation.calls[3:]) if name == "slow"]
    assert positions[0] < 10 and positions[-1] > 45 and simulation.calls.count("stuck") == 1


def test_the_machine_is_described_without_naming_it():
    facts = processor.machine()
    assert facts["threads"] == torch.get_num_threads() and facts["processor"] in processor.title(facts)
    assert platform.node() not in map(str, facts.values())
