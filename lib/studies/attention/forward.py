"""The time of a whole verifying forward pass beside transformers' own.

Weights and keys are random, since times do not depend on them. The caches are filled directly, without a prefill. The
settings are cells of one sequence.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig
from transformers.cache_utils import Cache

from lib.attention.registration import TREE, tree_forward
from lib.lab import timing
from lib.models import sizes
from lib.models.cache import TreeCache
from lib.studies.attention.measure import Cell

TREE_PASS, THEIRS = "forward, tree", "forward, transformers"
DRAFT = 64  # nodes of the tree that the notebook verifies


@torch.inference_mode()
def forwards(cell: Cell, layers: int, *, repeats: int, seconds: float, generator: torch.Generator,
             device: str = "cpu") -> list[dict]:
    """Four rows of the table "attention_forward": the tree's forward pass and transformers', with and without prefix.

    AssertionError where the two disagree, which would make their times worthless.
    """
    model = _model(cell, layers, device)
    calls, restores = {}, {}
    for prefix in (0, cell.prefix):
        filling, outputs = _filling(cell, prefix, layers, generator, device), []
        for name, make in ((TREE_PASS, _tree_call), (THEIRS, _transformers_call)):
            calls[name, prefix], restores[name, prefix] = make(model, cell, filling)
            restores[name, prefix]()
            outputs.append(calls[name, prefix]().logits)
        _assert_close(*outputs, cell.dtype)
    times = timing.interleaved(calls, repeats=repeats, seconds=seconds, generator=generator, device=device,
                               before=lambda key: restores[key]())
    return [_row(cell, layers, *key, time) for key, time in times.items()]


def _model(cell: Cell, layers: int, device: str):
    width = max(64, cell.query_heads * cell.head_dim // 4)
    config = LlamaConfig(vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
                         num_attention_heads=cell.query_heads, num_key_value_heads=cell.kv_heads,
                         head_dim=cell.head_dim, max_position_embeddings=cell.prefix + cell.draft)
    return sizes.build(config, "random", cell.kind, device)


def _filling(cell: Cell, prefix: int, layers: int, generator: torch.Generator, device: str):
    """Keys and values [1, Hkv, prefix, d] of each layer; layers share their numbers, not their memory."""
    shape = 2, 1, cell.kv_heads, prefix, cell.head_dim
    keys, values = torch.randn(shape, generator=generator).to(device, cell.kind)
    return [(keys.clone(), values.clone()) for _ in range(layers)]


def _filled(cache: Cache, filling: list[tuple[Tensor, Tensor]]) -> Cache:
    """The cache with these keys and values, committed where it is a TreeCache."""
    for layer, (key, value) in enumerate(filling):
        cache.update(key, value, layer)
    if isinstance(cache, TreeCache):
        cache.set_lengths(torch.tensor([filling[0][0].shape[2]]))
    return cache


def _inputs(model, cell: Cell):
    """Tokens int64[1, m], depth int64[m] and mask bool[m, m] of the cell's tree."""
    tree = cell.tree
    tokens = torch.arange(tree.size, device=model.device)[None] % 256
    return tokens, *(torch.from_numpy(x.copy()).to(model.device) for x in (tree.depth, tree.mask))


def _tree_call(model, cell: Cell, filling):
    """The forward pass of a tree, and a function that restores its attention and its cache."""
    inputs, prefix, cache = _inputs(model, cell), filling[0][0].shape[2], _filled(TreeCache(), filling)

    def restore() -> None:
        model.set_attn_implementation(TREE)
        cache.crop(prefix)

    return lambda: tree_forward(model, *inputs, cache), restore


def _transformers_call(model, cell: Cell, filling):
    """The same in transformers' way: a mask over prefix and tree, and a cache that concatenates."""
    tokens, depth, mask = _inputs(model, cell)
    prefix, cache = filling[0][0].shape[2], _filled(DynamicCache(), filling)

    def call():
        visible = torch.ones(1, 1, len(mask), prefix + len(mask), dtype=torch.bool, device=model.device)
        visible[..., prefix:] = mask
        return model(input_ids=tokens, position_ids=(prefix + depth)[None], attention_mask=visible,
                     past_key_values=cache)

    def restore() -> None:
        model.set_attn_implementation("sdpa")
        for layer, (key, value) in zip(cache.layers, filling):
            layer.keys, layer.values = key, value

    return call, restore


def _assert_close(ours: Tensor, theirs: Tensor, dtype: str) -> None:
    error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
    allowed = 1e-4 if dtype == "float32" else 5e-2
    assert error <= allowed, f"the forward passes differ by {error:.1e} in {dtype}, more than {allowed:.0e}"


def _row(cell: Cell, layers: int, what: str, prefix: int, time: timing.Timing) -> dict:
    about = {name: getattr(cell, name) for name in ("draft", "dtype", "query_heads", "kv_heads", "head_dim")}
    return {"what": what, "prefix": prefix, "layers": layers, **about, **time.row}
