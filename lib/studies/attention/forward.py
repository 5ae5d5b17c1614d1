"""The time of a whole verifying forward pass beside transformers' own, and the cache's part of a layer's attention.

Weights and keys are random, since times do not depend on them. The caches are filled directly, without a prefill.
"""

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from lib.attention.operator import tree_attention
from lib.attention.registration import TREE, register, tree_forward
from lib.lab import timing
from lib.models.cache import TreeCache
from lib.trees import shapes
from lib.trees.tree import Tree

NAMES = ("forward, tree", "forward, transformers")
DRAFT = 64  # nodes of the tree that the notebook verifies


@dataclass(frozen=True)
class Setting:
    """A model's layers and heads, the prefix in tokens, and the draft of a binary tree in nodes, root included."""

    prefix: int
    draft: int
    dtype: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int

    @property
    def tree(self) -> Tree:
        """The tree of the draft length, its root included."""
        return shapes.at_budget("kary:2", self.draft - 1) if self.draft > 1 else Tree([-1])

    @property
    def kind(self) -> torch.dtype:
        """The dtype by its name."""
        return getattr(torch, self.dtype)


@torch.inference_mode()
def forwards(setting: Setting, *, repeats: int, seconds: float, generator: torch.Generator,
             device: str = "cpu") -> list[dict]:
    """Four rows of the table "attention_forward": the tree's forward pass and transformers', with and without prefix.

    AssertionError where the two disagree, which would make their times worthless.
    """
    models = dict(zip(NAMES, _models(setting, device)))
    calls, restores, outputs = {}, {}, {}
    for prefix in (0, setting.prefix):
        filling = _filling(setting, prefix, generator, device)
        for name, make in zip(NAMES, (_tree_call, _transformers_call)):
            call, restore = make(models[name], setting, filling)
            calls[f"{name}|{prefix}"], restores[f"{name}|{prefix}"] = call, restore
            outputs[name] = call().logits
            restore()
        _assert_close(outputs[NAMES[0]], outputs[NAMES[1]], setting.dtype)
    times = timing.interleaved(calls, repeats=repeats, seconds=seconds, generator=generator, device=device,
                               before=lambda name: restores[name]())
    return [_row(setting, name.split("|")[0], int(name.split("|")[1]), time) for name, time in times.items()]


@torch.inference_mode()
def cache_costs(setting: Setting, *, repeats: int, seconds: float, generator: torch.Generator,
                device: str = "cpu") -> list[dict]:
    """Four rows of the same table, for one layer: attention, append and keep of the tree's cache, and concatenate.

    The last is how transformers' DynamicCache appends.
    """
    (key, value), = _filling(setting, setting.prefix, generator, device, layers=1)
    new = [torch.randn(1, setting.kv_heads, setting.draft, setting.head_dim, dtype=setting.kind, device=device)] * 2
    cache, theirs = _tree_cache([(key, value)]), _dynamic_cache([(key, value)])
    path = torch.tensor(max(setting.tree.paths(), key=len))[None]
    count = torch.tensor([path.shape[1]])
    query = torch.randn(1, setting.query_heads, setting.draft, setting.head_dim, dtype=setting.kind, device=device)
    mask = torch.from_numpy(setting.tree.mask.copy()).to(device)
    keys, values = (torch.cat(pair, 2) for pair in zip((key, value), new))

    def before(name: str) -> None:
        cache.crop(setting.prefix)
        theirs.layers[0].keys, theirs.layers[0].values = key, value
        if name == "keep":
            cache.update(*new, 0)

    calls: dict[str, Callable[[], object]] = {
        "attention": lambda: tree_attention(query, keys, values, mask, setting.prefix),
        "append": lambda: cache.update(*new, 0),
        "keep": lambda: cache.keep(path, count),
        "concatenate": lambda: theirs.update(*new, 0),
    }
    times = timing.interleaved(calls, repeats=repeats, seconds=seconds, generator=generator, device=device,
                               before=before)
    return [_row(setting, name, setting.prefix, time) for name, time in times.items()]


def _models(setting: Setting, device: str) -> list[LlamaForCausalLM]:
    """One set of weights under the project's attention and under transformers'."""
    register()
    width = max(64, setting.query_heads * setting.head_dim // 4)
    made = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for attention in (TREE, "sdpa"):
            config = LlamaConfig(vocab_size=256, hidden_size=width, intermediate_size=2 * width,
                                 num_hidden_layers=setting.layers, num_attention_heads=setting.query_heads,
                                 num_key_value_heads=setting.kv_heads, head_dim=setting.head_dim,
                                 max_position_embeddings=setting.prefix + setting.draft, attn_implementation=attention,
                                 dtype=setting.kind)
            made.append(LlamaForCausalLM(config).eval().to(device, setting.kind))
    made[1].load_state_dict(made[0].state_dict(), assign=True)
    return made


def _filling(setting: Setting, prefix: int, generator: torch.Generator, device: str, layers: int | None = None):
    """Keys and values [1, Hkv, prefix, d] of each layer; layers share their numbers, not their memory."""
    shape = 2, 1, setting.kv_heads, prefix, setting.head_dim
    keys, values = torch.randn(shape, generator=generator).to(device, setting.kind)
    return [(keys.clone(), values.clone()) for _ in range(layers or setting.layers)]


def _tree_cache(filling: list[tuple[Tensor, Tensor]]) -> TreeCache:
    cache = TreeCache()
    for layer, (key, value) in enumerate(filling):
        cache.update(key, value, layer)
    cache.set_lengths(torch.tensor([filling[0][0].shape[2]]))
    return cache


def _dynamic_cache(filling: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (key, value) in enumerate(filling):
        cache.update(key, value, layer)
    return cache


def _tree_call(model, setting: Setting, filling):
    """The forward pass of a tree, and a function that restores its cache."""
    tree, prefix, cache = setting.tree, filling[0][0].shape[2], _tree_cache(filling)
    tokens = torch.arange(tree.size, device=model.device)[None] % 256
    depth, mask = (torch.from_numpy(x.copy()).to(model.device) for x in (tree.depth, tree.mask))
    return lambda: tree_forward(model, tokens, depth, mask, cache), lambda: cache.crop(prefix)


def _transformers_call(model, setting: Setting, filling):
    """The same in transformers' way: a mask over prefix and tree, and a cache that concatenates."""
    tree, prefix, cache = setting.tree, filling[0][0].shape[2], _dynamic_cache(filling)
    tokens = torch.arange(tree.size, device=model.device)[None] % 256
    depth, mask = (torch.from_numpy(x.copy()).to(model.device) for x in (tree.depth, tree.mask))

    def call():
        visible = torch.ones(1, 1, tree.size, prefix + tree.size, dtype=torch.bool, device=model.device)
        visible[..., prefix:] = mask
        positions = (prefix + depth)[None]
        return model(input_ids=tokens, position_ids=positions, attention_mask=visible, past_key_values=cache)

    def restore():
        for layer, (key, value) in zip(cache.layers, filling):
            layer.keys, layer.values = key, value

    return call, restore


def _assert_close(ours: Tensor, theirs: Tensor, dtype: str) -> None:
    error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
    allowed = 1e-4 if dtype == "float32" else 5e-2
    assert error <= allowed, f"the forward passes differ by {error:.1e} in {dtype}, more than {allowed:.0e}"


def _row(setting: Setting, what: str, prefix: int, time: timing.Timing) -> dict:
    times = {"median_ms": 1e3 * time.median, "lower_ms": 1e3 * time.lower, "upper_ms": 1e3 * time.upper}
    about = {name: getattr(setting, name) for name in ("layers", "query_heads", "kv_heads", "head_dim")}
    draft = {"prefix": prefix, "draft": setting.draft, "dtype": setting.dtype}
    return {"what": what, **draft, **about, **times, "repeats": time.repeats}
