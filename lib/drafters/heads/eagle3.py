"""EAGLE-3's head: one decoder layer that continues the target's features, token by token (Li et al. 2025).

Entry j of a text is the target's feature at token j, or after its end the head's last one, with the embedding of token
j + 1; from it the layer makes the feature at j + 1, and the output layer predicts token j + 2.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.drafters.heads.layers import Head, HeadLayer, Unrolled, embed


class Eagle3Head(Head):
    """EAGLE-3 (Li et al. 2025, section 3): features fused from the target's hidden states (config.feature_layers).

    Attention reads normed embedding and feature side by side; the feature is its residual, in some published heads the
    normed one (config.norm_before_residual). `norm` comes before the output layer.
    """

    def __init__(self, config):
        super().__init__(config)
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * hidden, hidden, bias=False)
        self.midlayer = HeadLayer(config, 2 * hidden)
        self.midlayer.hidden_norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.normed_residual = bool(getattr(config, "norm_before_residual", False))

    def read(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The features: low, middle and high layers' hidden states, side by side, through `fc`: [B, T, H]."""
        return self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], dim=-1))

    def enter(self, features: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's input and that of its attention, from features and embeddings of the next tokens [B, T, H]."""
        normed = self.midlayer.hidden_norm(features)
        return (normed if self.normed_residual else features,
                torch.cat([self.midlayer.input_layernorm(embedded), normed], dim=-1))

    def along(self, target, hidden: Sequence[Tensor], tokens: Tensor, before: Tensor, depth: int) -> Iterator[Tensor]:
        """As for `Head`; the head is unrolled from every entry up to the last root at once, each on its features."""
        attend, features = Unrolled(), self.read(hidden)[:, : before[-1]]
        entries = torch.arange(features.shape[1], device=features.device)
        for step in range(depth):
            x, read = self.enter(features, embed(self, target, tokens[:, entries + 1 + step]))
            features = self.midlayer(x, entries[None] + step, attend, read)
            yield self.norm(features[:, before - 1])
