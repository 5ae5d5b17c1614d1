"""Packed linear layers against plain ones."""

import pytest
import torch
from torch import nn

from lib.forward.packed import pack, panels_of
from lib.kernels import products

def packed_bytes(module: nn.Module) -> int:
    """Bytes of the copies that `pack` made."""
    held = [panels_of(layer) for layer in module.modules()]
    return sum(panels.nbytes for panels in held if panels is not None)


def linear(rows: int, columns: int, bias: bool, dtype, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(columns, rows, bias=bias).to(dtype)


@torch.no_grad()
def test_a_packed_module_says_the_same_and_owns_its_copies():
    module = nn.Sequential(linear(8, 6, True, torch.float32, 0), nn.SiLU(), linear(4, 8, False, torch.float32, 1))
    x = torch.randn(2, 5, 6)
    before = module(x)
    torch.testing.assert_close(pack(module)(x), before, atol=1e-6, rtol=1e-5)
    assert packed_bytes(module) == 0  # these weights are no numbers of 16 bits
    assert packed_bytes(pack(linear(3, 3, True, torch.float64, 0))) == 0


@pytest.mark.skipif(products.weights_refusal([torch.zeros(1, 1)]) is not None, reason="panels need the kernels")
@torch.no_grad()
def test_weights_of_16_bits_are_held_in_panels_until_they_change():
    layer = linear(70, 40, True, torch.float32, 0)
    layer.weight.copy_(layer.weight.bfloat16())
    x = torch.randn(3, 40)
    before = layer(x)
    torch.testing.assert_close(pack(layer)(x), before, atol=1e-6, rtol=1e-5)
    assert panels_of(layer) is not None and packed_bytes(layer) == panels_of(layer).nbytes
    layer.weight.mul_(2)
    assert panels_of(layer) is None
    torch.testing.assert_close(layer(x), 2 * before - layer.bias, atol=1e-6, rtol=1e-5)
