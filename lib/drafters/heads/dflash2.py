"""DFlash2 (z-lab and Inco, 2026): a DFlash head whose places mix with their predecessors around attention and
feed-forward layer, and whose candidates are scored after each token before them. As z-lab's `dflash/model.py` has it.
"""

import torch
from torch import Tensor, nn

from lib.drafters.heads.layers import Attend
from lib.drafters.heads.marginals import BlockLayer, DFlashHead


class GroupedConvolution(nn.Module):
    """Two causal depthwise convolutions over the places of a block, one before a sublayer and one after it:
    y_t = sum over taps o of (k_o + d_{t,o}) * x_{t-o}, with a kernel k per channel and a correction d per group of
    channels, linear in the sublayer's input; x is 0 before the block.
    """

    def __init__(self, config):
        super().__init__()
        self.taps, self.size, self.places = config.conv_kernel_size, config.conv_group_size, config.block_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, config.hidden_size))
        self.kernel_projection = nn.Linear(config.hidden_size, 2 * self.taps * config.hidden_size // self.size,
                                           bias=False)

    def forward(self, x: Tensor, sublayer) -> Tensor:
        """x [B, m P, H], of m blocks, convolved, through the sublayer, and convolved again."""
        before, after = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).unbind(-3)
        return self._convolved(sublayer(self._convolved(x, before, 0)), after, 1)

    def _convolved(self, x: Tensor, correction: Tensor, which: int) -> Tensor:
        kernel = self.base_kernel[which] + correction.repeat_interleave(self.size, -1)  # [B, m P, taps, H]
        blocks = x.unflatten(1, (-1, self.places))
        shifted = [nn.functional.pad(blocks, (0, 0, tap, 0))[:, :, : self.places] for tap in range(self.taps)]
        return (torch.stack([block.flatten(1, 2) for block in shifted], dim=-2) * kernel).sum(-2)


class ConvolvedLayer(BlockLayer):
    """A block's layer with convolutions around both of its sublayers."""

    in_cpp = False

    def __init__(self, config):
        super().__init__(config)
        self.attention_conv, self.mlp_conv = GroupedConvolution(config), GroupedConvolution(config)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        x = x + self.attention_conv(self.reads(x), lambda given: self.self_attn(given, positions, attend))
        return x + self.mlp_conv(self.post_attention_layernorm(x), self.mlp)


class Selector(nn.Module):
    """Scores the best tokens b of a place by its logits U after the token a before it: U(b) + <A[a] * P h, B[b]>, with
    the state h of the place.
    """

    def __init__(self, config):
        super().__init__()
        self.top_k = min(config.selector_top_k, config.vocab_size)
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)

    def forward(self, logits: Tensor, states: Tensor, before: Tensor) -> Tensor:
        """The scores [..., V] after the tokens int64[...] before, from logits [..., V] and states [..., H]; minus
        infinity of all but the best.
        """
        best = logits.topk(self.top_k, dim=-1)
        gate = self.predecessor_codebook[before] * self.hidden_projection(states)
        scores = best.values + (self.successor_codebook[best.indices] * gate[..., None, :]).sum(-1)
        whole = scores.new_full((*scores.shape[:-1], logits.shape[-1]), float("-inf"))
        return whole.scatter(-1, best.indices.expand_as(scores), scores)


class DFlash2Head(DFlashHead):
    """config: that of `DFlashHead` with conv_kernel_size, conv_group_size, selector_rank and selector_top_k."""

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList(ConvolvedLayer(config) for _ in range(config.num_hidden_layers))
        self.candidate_selector = Selector(config)
