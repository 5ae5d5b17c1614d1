"""What a pair needs in memory: weights, caches and a round's logits, beside the target alone and per sequence.

Computed from the models' sizes; the caches' share is what `TreeCache` holds at that length, which the tests check.
Beside it the peak that a decoding really had.
"""

from dataclasses import dataclass
from typing import Mapping, Sequence

import pandas as pd
from torch import Tensor

from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.decoding.plain import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.counted_bytes import CountedBytes
from lib.models.cache import capacity_for
from lib.studies.drafters.footprint import weights
from lib.trees.tree import Tree


@dataclass(frozen=True)
class Needs:
    """Bytes: weights of both models, caches and logits of all sequences."""

    target_weights: int
    drafter_weights: int
    target_cache: int
    drafter_cache: int
    logits: int
    alone: int

    @property
    def together(self) -> int:
        """The pair while it speculates."""
        return self.target_weights + self.drafter_weights + self.target_cache + self.drafter_cache + self.logits

    @property
    def extra(self) -> float:
        """What speculation needs beyond the target alone, as a share of it."""
        return self.together / self.alone - 1

    @property
    def caches(self) -> int:
        """Bytes of keys and values of both models."""
        return self.target_cache + self.drafter_cache


def token_bytes(model) -> int:
    """Keys and values of one token in all layers."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize


def needs(target, drafter, tree: Tree, *, batch: int, tokens: int) -> Needs:
    """Both models at `tokens` committed tokens a sequence; the drafter's tree adds the nodes that have children."""
    internal = tree.size - len(tree.leaves)
    vocabulary = target.config.get_text_config().vocab_size * target.dtype.itemsize
    cache, plain = (batch * capacity_for(tokens + nodes) * token_bytes(target) for nodes in (tree.size, 1))
    return Needs(
        target_weights=weights(target),
        drafter_weights=weights(drafter),
        target_cache=cache,
        drafter_cache=batch * capacity_for(tokens + internal) * token_bytes(drafter),
        logits=batch * tree.size * vocabulary,
        alone=weights(target) + plain + batch * vocabulary,
    )


def peak(pair, drafter, shape: Tree, prompts: Sequence[Tensor], new_tokens: int) -> int:
    """Bytes of tensors alive at most while prompts int64[T] are continued as one batch, beside the weights."""
    ids, mask = next(in_batches(prompts, len(prompts)))
    with CountedBytes() as counted:
        generate(pair.target, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new_tokens)
    return counted.peak


def row(pair, label: str, tree: Tree, *, batch: int, tokens: int) -> dict[str, object]:
    """A row of the table "memory", but for its measured peaks."""
    found = needs(pair.target, pair.draft_model, tree, batch=batch, tokens=tokens)
    dtype = str(pair.target.dtype).removeprefix("torch.")
    setting = dict(pair=pair.name, dtype=dtype, batch=batch, shape=label, tokens=tokens)
    return setting | vars(found) | {"extra": found.extra}


def table(pair, trees: Mapping[int, tuple[str, Tree]], prompts: Sequence[Tensor], new_tokens: int) -> pd.DataFrame:
    """The table "memory", a row a batch: `trees` are by batch, with their labels; prompts are repeated to fill it."""
    rows = []
    for batch, (label, tree) in trees.items():
        group = [prompts[place % len(prompts)] for place in range(batch)]
        peaks = {"peak": peak(pair, LanguageModelDrafter(pair.draft_model), tree, group, new_tokens),
                 "peak_alone": peak(pair, NoDrafter(), Tree([-1]), group, new_tokens)}
        rows.append(row(pair, label, tree, batch=batch, tokens=max(map(len, prompts)) + new_tokens) | peaks)
    return pd.DataFrame(rows)
