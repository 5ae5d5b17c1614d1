"""Static trees that a language model or an EAGLE head fills in one native call: their levels behind a round's tails,
made once, and what fills them by features.
"""

from functools import lru_cache
from typing import Sequence

import torch
from torch import Tensor, nn

from lib.drafters import uncommitted
from lib.drafters.fill_plan import plan
from lib.drafters.heads.eagle import EagleHead
from lib.drafters.heads.layers import Behind
from lib.drafters.heads.native_features import NativeFeatures
from lib.kernels.products import weights_refusal
from lib.models.fused import pairs_of
from lib.models.native_blocks import Levels
from lib.trees.tree import ROOT, Tree


@lru_cache(maxsize=1024)
def levels(shape: Tree, waiting: uncommitted.Layout) -> Levels:
    """A shape's levels, its root's first, behind tails of this layout."""
    forwarded = torch.arange(1 + len(plan(shape).place))
    below = [(level, *uncommitted.above(waiting, level)) for level in plan(shape).levels]
    return Levels(shape.size, [
        (torch.tensor([ROOT]), _children(shape, [ROOT]), None, None, None),
        *((torch.tensor(level.nodes), _children(shape, level.nodes), depth, mask, forwarded[level.above])
          for level, depth, mask in below),
    ])


def _children(shape: Tree, nodes: Sequence[int]) -> Tensor:
    """int64[c, 3]: of each child of these nodes its parent's place among them, its rank, itself; siblings by rank."""
    return torch.tensor(sorted((place, int(shape.rank[child]), child)
                               for place, node in enumerate(nodes) for child in shape.children(node)))


def suits(drafter, shape: Tree, choices: int) -> bool:
    """Whether nobody asks a drafter for probabilities, and a shape's children are among so many favourites."""
    plain = drafter.proposal == "top_k" and not drafter.keep_probs
    return plain and shape.budget > 0 and shape.last_rank < choices


def features(head: nn.Module, layer: Behind, target) -> NativeFeatures | None:
    """What fills static trees by an EAGLE head in one call; None where the machine cannot, and for heads with output
    layers of their own or residuals of another kind. layer: what else runs the head's layer, over the same copies.
    """
    output, embedding = target.get_output_embeddings(), head.embed_tokens or target.get_input_embeddings()
    own = getattr(head, "lm_head", None) is not None or getattr(head.config, "norm_before_residual", False)
    plain = type(output) is nn.Linear and type(embedding) is nn.Embedding and type(head.fc) is nn.Linear
    if own or not plain or layer.native is None:
        return None
    if weights_refusal([head.layer.mlp.down_proj.weight, output.weight, embedding.weight, head.fc.weight]):
        return None
    known = {**pairs_of(target), **layer.native.pairs}
    if isinstance(head, EagleHead):
        return NativeFeatures(head.layer, None, output, embedding, head.fc, None, known)
    norms = head.layer.input_layernorm, head.layer.hidden_norm
    return NativeFeatures(head.layer, head.norm, output, embedding, None, norms, known)
