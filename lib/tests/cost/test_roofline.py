"""The roofline: free rows by hand, and candidates priced with it."""

import numpy as np
import pytest

from lib.cost.roofline import HARDWARE, Hardware, on
from lib.cost.round_cost import Curve, RoundCost


def test_as_many_rows_are_free_as_are_multiplied_while_the_weights_are_read():
    laptop = Hardware(bandwidth=100.0, rate=1000.0, weight_bytes=4)  # a weight takes 0.04 s to read, 0.002 s a row
    assert laptop.free_rows == 20
    assert laptop.check([0, 10, 19, 39]).tolist() == [1, 1, 1, 2]
    assert laptop.check([0, 4, 9], batch=4).tolist() == [1, 1, 2]
    assert laptop.check([0, 1, 3], batch=40).tolist() == [1, 2, 4], "a plain batch is bound by arithmetic itself"


@pytest.mark.parametrize("name", HARDWARE)
@pytest.mark.parametrize("batch", [1, 4, 16, 400])
def test_the_curve_of_a_round_is_that_of_the_hardware(name, batch):
    measured = RoundCost(0.02, 0.001, Curve(np.array([1.0, 4.0]), np.array([0.004, 0.005])), Curve.through([1], [0.03]))
    price = on(HARDWARE[name], measured, 64, batch)
    nodes = np.arange(1, 65)
    assert price.check(nodes) == pytest.approx(HARDWARE[name].check(nodes, batch))
    assert (price.plain, price.once, price.level(4)) == pytest.approx((1, 0.05, 0.25))


def test_data_sheets_order_the_machines():
    free = [each.free_rows for each in HARDWARE.values()]
    assert free[0] > 250 > 10 > free[2] == 2 * free[3]
