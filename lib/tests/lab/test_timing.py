"""The clock is fair, bounded, and says what it left out."""

import contextlib
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

    def taking(self, name, *seconds):
        durations = itertools.cycle(seconds)

        def call():
            self.calls.append(name)
            self.now += next(durations)

        return call

    def time(self, repeats, seconds, **durations):
        calls = {name: self.taking(name, *each) for name, each in durations.items()}
        generator = torch.Generator().manual_seed(0)
        return timing.interleaved(calls, repeats=repeats, seconds=seconds, generator=generator)


def test_alternatives_are_interleaved_in_changing_order(monkeypatch):
    """After the warm-up each round holds every alternative once, and not always in the same order."""
    simulation = Simulation(monkeypatch)
    times = simulation.time(8, 4.0, a=[0.16, 0.1], b=[0.1], c=[0.01])
    rounds = [tuple(simulation.calls[3 + 3 * i : 6 + 3 * i]) for i in range(8)]
    assert simulation.calls[:3] == ["a", "b", "c"]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds) and len(set(rounds)) > 1
    assert times["b"].repeats == times["c"].repeats == 8 and times["b"].median == pytest.approx(0.1)


def test_the_quartiles_are_those_of_the_repeats(monkeypatch):
    """The warm-up is left out of them."""
    times = Simulation(monkeypatch).time(5, 100.0, only=[7.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (times["only"].lower, times["only"].median, times["only"].upper) == pytest.approx((2.0, 3.0, 4.0))


def test_a_slow_alternative_repeats_less_or_is_skipped_with_the_reason(monkeypatch):
    """The cell's time is shared; the slow one's few calls are spread over all rounds, and the fast one has them all."""
    simulation = Simulation(monkeypatch)
    times = simulation.time(40, 0.3, fast=[0.001], slow=[0.02], stuck=[0.1])
    assert times["fast"].repeats == 40 and times["slow"].repeats == 13
    assert times["stuck"].repeats == 0
    assert "3 calls of 0.1 s and those of the faster ones do not fit into 0.3 s" in times["stuck"].skipped
    at = [i for i, name in enumerate(simulation.calls[3:]) if name == "slow"]
    assert at[0] < 10 and at[-1] > 45 and simulation.calls.count("stuck") == 1


def test_what_comes_after_a_call_that_used_up_the_time_is_not_even_tried(monkeypatch):
    simulation = Simulation(monkeypatch)
    times = simulation.time(5, 1.0, fast=[0.01], endless=[2.0], never=[0.01])
    assert times["fast"].repeats == 5 and simulation.calls.count("endless") == 1 and "never" not in simulation.calls
    assert "3 calls of 2 s" in times["endless"].skipped and "not tried" in times["never"].skipped


def test_an_alternative_whose_first_call_fails_is_skipped_with_the_reason(monkeypatch):
    simulation = Simulation(monkeypatch)

    def broken():
        raise MemoryError("no room\nand a long trace")

    generator = torch.Generator().manual_seed(0)
    calls = {"broken": broken, "fine": simulation.taking("fine", 0.01)}
    times = timing.interleaved(calls, repeats=3, seconds=1.0, generator=generator)
    assert times["broken"].skipped == "failed: MemoryError: no room" and times["fine"].repeats == 3


def test_a_gpu_s_own_clock_starts_when_the_host_has_gone_ahead(monkeypatch):
    """It sleeps until the call is queued, so that launching is not timed; milliseconds become seconds."""
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("mark")

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, other):
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("sleep"), raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    assert timing.device_seconds(lambda: done.append("call"), "cuda") == 2.5e-3
    assert done == ["sleep", "mark", "call", "mark", "wait"]


def test_the_machine_is_described_without_naming_it():
    facts = processor.machine()
    assert facts["threads"] == torch.get_num_threads() and facts["cores"] >= 1 and facts["torch"] == torch.__version__
    assert platform.node() not in map(str, facts.values())
