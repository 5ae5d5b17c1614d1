"""A static tree filled by an EAGLE head in one call of static shapes, as a CUDA graph holds it."""

from typing import Sequence

import torch
from torch import Tensor, nn

from lib.attention.backends.triton_backend import kernel_refusal
from lib.attention.static import StaticTree, static_attention
from lib.drafters.heads.eagle import FeatureHead, continued
from lib.forward.graphs import StaticBlocks, StaticLayer, power_of_two
from lib.forward.native import Levels, rotation_refusal
from lib.models.cache import TreeCache


def static_fill(head: FeatureHead, output: nn.Module, embedding: nn.Module) -> "StaticFill | None":
    """For a head on a GPU with an output layer and an embedding, where the CUDA kernel serves its attention."""
    attention = head.layer.self_attn
    if type(output) is not nn.Linear or output.weight.device.type != "cuda" or rotation_refusal(attention.rotary):
        return None
    if kernel_refusal("cuda", output.weight.dtype, attention.head_dim):
        return None
    return StaticFill(head, output, embedding)


class StaticFill(StaticBlocks):
    """A head's layer with an output layer and an embedding, which fills static trees (see `HeadFill`)."""

    def __init__(self, head: FeatureHead, output: nn.Linear, embedding: nn.Module):
        super().__init__([head.layer], head.layer.self_attn.rotary, None, lambda x: output(head.states(x)), embedding)
        self.head = head
        self.known: Tensor | None = None  # [B, 1, H], the head's states at the roots

    @torch.inference_mode()
    def fill_after(self, states: Tensor, roots: Sequence[int], cache: TreeCache, levels: Levels, choices: int,
                   names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree on the host, as `HeadFill.fill_after` gives them, in one call."""
        if self.known is None or len(self.known) < len(states):
            self.known = states.new_zeros(power_of_two(len(states)), 1, states.shape[-1])
            self.graphs.forget()
        self.known[: len(states), 0] = states
        filled = self._fill(0, torch.zeros(len(states), 0, dtype=torch.long), [], cache, levels, choices, names)
        filled[:, 0] = torch.tensor(roots)
        return filled

    def _first(self, given: dict[str, Tensor], wide: dict[str, Tensor], root_alone: bool):
        return self.known[: len(given["lengths"])], []

    def _states(self, tokens: Tensor, positions: Tensor, stored: Sequence[StaticLayer], tree: StaticTree,
                above: Tensor) -> list[Tensor]:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = stored[0].update(key, value)
            return static_attention(query, keys, values, tree, query.shape[-1] ** -0.5).transpose(1, 2)

        return [continued(self.head, above, self.embedding(tokens), positions, attend)]
