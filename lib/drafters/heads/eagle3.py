"""EAGLE-3's head: one decoder layer that continues the target's features, token by token (Li et al. 2025).

Entry j of a text is the target's feature at token j together with the embedding of token j + 1; from it the layer makes
the feature at j + 1, and the output layer predicts token j + 2. Where the target's own feature is not known yet, the
head's last one takes its place.
"""

from typing import Sequence

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.drafters.heads.layers import Attend, Head, HeadLayer, Unrolled, embed


class Eagle3Layer(HeadLayer):
    """Its attention reads normed embedding and feature side by side; the feature is its residual."""

    def __init__(self, config):
        super().__init__(config, 2 * config.hidden_size)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Eagle3Head(Head):
    """EAGLE-3 (Li et al. 2025, section 3): features fused from several of the target's layers, no loss on features.

    config.feature_layers: indices into the target's hidden states. Of published heads: config.norm_before_residual: the
    layer's residual is the normed feature. EAGLE-3.1 (arXiv 2605.09992): config.fc_norm norms each hidden state before
    `fc`, and config.norm_before_fc all of them as one; config.norm_output: the next feature is the normed output.
    """

    def __init__(self, config):
        super().__init__(config)
        width, count = getattr(config, "target_hidden_size", None) or config.hidden_size, len(config.feature_layers)
        self.fc_norm = self.input_norm = None
        if getattr(config, "fc_norm", False):
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(width, config.rms_norm_eps) for _ in range(count))
        if getattr(config, "norm_before_fc", False):
            self.input_norm = LlamaRMSNorm(count * width, config.rms_norm_eps)
        self.fc = nn.Linear(count * width, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def layer(self) -> Eagle3Layer:
        """The decoder layer."""
        return self.midlayer

    def read(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The features: low, middle and high layers' hidden states, side by side, through `fc`: [B, T, H]."""
        states = [hidden_states[layer] for layer in self.config.feature_layers]
        if self.fc_norm is not None:
            states = [norm(state) for norm, state in zip(self.fc_norm, states)]
        joined = torch.cat(states, dim=-1)
        return self.fc(joined if self.input_norm is None else self.input_norm(joined))

    def enter(self, features: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's input, from features and embeddings of the next tokens [B, T, H]: its residual; and that of its
        attention: both side by side, normed.
        """
        layer, normed = self.midlayer, self.midlayer.hidden_norm(features)
        residual = normed if getattr(self.config, "norm_before_residual", False) else features
        return residual, torch.cat([layer.input_layernorm(embedded), normed], dim=-1)

    def states(self, features: Tensor) -> Tensor:
        """The input of the output layer: the normed features."""
        return features if self.output_norm is not None else self.norm(features)

    @property
    def output_norm(self) -> LlamaRMSNorm | None:
        """What norms the layer's output before it is the next feature, if anything does."""
        return self.norm if getattr(self.config, "norm_output", False) else None


def continued(head: Eagle3Head, features: Tensor, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    """The next features [B, T, H], of features and next tokens' embeddings [B, T, H] at positions int64[B or 1, T]."""
    x, read = head.enter(features, embedded)
    out = head.layer(x, positions, attend, read)
    return out if head.output_norm is None else head.output_norm(out)


def unroll(head: Eagle3Head, target, features: Tensor, tokens: Tensor, steps: int):
    """The head's outputs along a known text from every entry at once: yields [B, T, H] for each of `steps` steps.

    features [B, T, H]: those of tokens 0 .. T - 1; tokens int64[B, T + steps]: of step d, entry j reads token
    j + 1 + d, which stands in column j + d. Step d at entry j predicts token j + 2 + d.
    """
    attend, length = Unrolled(), features.shape[1]
    positions = torch.arange(length, device=features.device)[None]
    for step in range(steps):
        features = continued(head, features, embed(head, target, tokens[:, step : step + length]), positions + step, attend)
        yield features
