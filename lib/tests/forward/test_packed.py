"""Packed linear layers against plain ones."""

import pytest
import torch
from torch import nn

from lib.forward.packed import can_pack, joined, pack, panels_of
from lib.kernels import products

DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def packed_bytes(module: nn.Module) -> int:
    """Bytes of the copies that `pack` made."""
    held = [vars(layer)["forward"] for layer in module.modules() if "forward" in vars(layer)]
    return sum(forward.product.copied_bytes for forward in held)


def linear(rows: int, columns: int, bias: bool, dtype, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(columns, rows, bias=bias).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biases", [(False,), (True,), (True, False, True)], ids=str)
@torch.no_grad()
def test_joined_layers_give_their_outputs_behind_one_another(dtype, biases):
    layers = [linear(5 + i, 12, bias, dtype, i) for i, bias in enumerate(biases)]
    run = joined(layers)
    for shape in ((12,), (1, 12), (2, 3, 12), (0, 12)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        wanted = torch.cat([layer(x) for layer in layers], dim=-1)
        torch.testing.assert_close(run(x), wanted, atol=DTYPES[dtype], rtol=DTYPES[dtype])


@torch.no_grad()
def test_other_layers_are_called_in_turn():
    layers = [nn.Sequential(linear(4, 6, True, torch.float32, i), nn.ReLU()) for i in range(2)]
    x = torch.randn(3, 6)
    torch.testing.assert_close(joined(layers)(x), torch.cat([layer(x) for layer in layers], dim=-1))
    assert joined(layers[:1]) is layers[0]


@torch.no_grad()
def test_a_packed_module_says_the_same_and_owns_its_copies():
    module = nn.Sequential(linear(8, 6, True, torch.float32, 0), nn.SiLU(), linear(4, 8, False, torch.float32, 1))
    x = torch.randn(2, 5, 6)
    before = module(x)
    torch.testing.assert_close(pack(module)(x), before, atol=1e-6, rtol=1e-5)
    native = products.weights_refusal([module[0].weight]) is None
    copied = can_pack(module[0].weight) and not native  # these weights are no numbers of 16 bits
    assert packed_bytes(module) == ((8 * 6 + 4 * 8) * 4 if copied else 0)
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
