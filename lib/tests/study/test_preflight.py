"""Break-even of chains against the formula that they solve, and the command on a small pair."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import __main__ as command
from lib.study import preflight
from lib.study.predict import expected_tokens


@given(cost=st.floats(0.5, 12), length=st.sampled_from(preflight.LENGTHS), drafting=st.sampled_from(preflight.DRAFTING))
def test_at_the_break_even_a_round_gives_the_tokens_that_it_costs(cost, length, drafting):
    chance, spent = preflight.break_even(cost, length, drafting), cost + length * drafting
    if math.isnan(chance):
        assert spent >= length + 1
    else:
        assert expected_tokens(chance, length) == pytest.approx(max(1.0, spent), rel=1e-6)


def test_a_step_without_gain_is_hopeless():
    assert "cannot pay at batch 16" in preflight.verdict(16, math.inf, math.inf)
    assert "more than 31% of the time" in preflight.verdict(1, 0.312, 0.99)


def test_the_command_prints_costs_and_a_verdict_for_both_batch_sizes(capsys):
    assert command.main(["check", "--set", "pairs=base/tiny-base"]) == 0
    said = capsys.readouterr().out
    assert said.count("speculation can") == len(preflight.BATCHES) and "a plain step takes" in said
    assert command.main(["check", "--set", "pair=base/tiny-base"]) == command.USAGE
