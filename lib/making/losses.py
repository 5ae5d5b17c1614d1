"""The losses of heads: the states of a head and of its target for the same tokens, by depth, and their backward passes.

Each head learns the distribution of the frozen target, not the token of the text, since the target decides acceptance.
Each depth has 0.8 of the weight of the depth before, as for Medusa's heads (Cai et al. 2024, section 2.2.1) and
EAGLE-3's steps. Head and target share the target's output layer.

The logits of a depth, [rows, length, V], are far larger than the hidden states. If each depth's backward pass runs
before the next depth's logits are made, the logits of one depth at a time are in memory; the gradients are summed in
the hidden states, and the trunk has one backward pass (Gloeckle et al. 2024, "Better & Faster Large Language Models via
Multi-token Prediction", figure 2).
"""

from dataclasses import dataclass
from typing import Callable, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.drafters import heads
from lib.drafters.heads.eagle import continued, embed, unroll
from lib.drafters.heads.layers import Unrolled
from lib.lab.counters import CountedBytes

DECAY = 0.8  # weight of a depth relative to the one before
STEPS = 4  # depths of EAGLE-3's training-time test
NOISE = 0.1  # half the width of the uniform noise on EAGLE-1's features (Li et al. 2024, section 3.2)
STRIDE = 8  # tokens between the starts of a window's blocks

DepthLoss = Callable[[Tensor, int], Tensor]  # (states [..., H] of a depth, the depth from 0) -> its loss


def cross_entropy(output, state: Tensor, target_state: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per token, of the head's distribution and the target's, both from states [..., H]."""
    with torch.no_grad():
        probs = output(target_state).softmax(-1, dtype=torch.float32)
    return -(probs * output(state).log_softmax(-1, dtype=torch.float32)).sum(-1).mean()


@dataclass(frozen=True)
class HeadLoss:
    """The states of the head and of the target by depth, [B, T', H] each, before their shared output layer.

    The loss of a depth is `classification` times the cross-entropy against the target's distribution, plus
    `regression` times the smooth L1 distance between the states, both means over tokens.
    """

    states: list[Tensor]
    target_states: list[Tensor]
    classification: float = 1.0
    regression: float = 0.0

    def by_depth(self, output, entropy: Callable = cross_entropy) -> DepthLoss:
        """The loss of a depth, for `backward_apart`; output: the output layer; entropy: `cross_entropy` or compiled."""

        def loss_of(state: Tensor, depth: int) -> Tensor:
            loss = self.classification * entropy(output, state, self.target_states[depth])
            if self.regression:
                loss = loss + self.regression * F.smooth_l1_loss(state.float(), self.target_states[depth].float())
            return DECAY**depth * loss

        return loss_of


@torch.no_grad()
def hidden_states(target, tokens: Tensor) -> tuple[Tensor, ...]:
    """The target's hidden states [B, T, H] per layer, of tokens int64[B, T]."""
    return target(tokens, output_hidden_states=True, use_cache=False, logits_to_keep=1).hidden_states


def medusa(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """Medusa: from each hidden state of tokens int64[B, T + 1]; depth d predicts the token d + 2 places later."""
    last = hidden_states(target, tokens[:, :-1])[-1]
    states = head.states(last).unbind(-2)
    lengths = [last.shape[1] - 1 - depth for depth in range(len(states))]
    return HeadLoss([state[:, :length] for state, length in zip(states, lengths)],
                  [last[:, depth + 1 :] for depth in range(len(states))])


def eagle(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """EAGLE-1: one step, from features with uniform noise to the next features (Li et al. 2024, section 3.2)."""
    features = hidden_states(target, tokens[:, :-1])[-1]
    noise = torch.rand(features.shape, generator=generator).to(features)
    entries = (features + NOISE * (2 * noise - 1))[:, :-1]
    place = torch.arange(entries.shape[1], device=tokens.device)[None]
    made = continued(head, entries, embed(head, target, tokens[:, 1:-1]), place, Unrolled())
    return HeadLoss([head.states(made)], [features[:, 1:]], classification=0.1, regression=1.0)


def unrolled(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """EAGLE-3's training-time test: the head continues its own features for a few steps (Li et al. 2025, section 3.2).

    Step d predicts the token d + 2 places after that of the feature.
    """
    hidden = hidden_states(target, tokens[:, :-1])
    length = tokens.shape[1] - 1 - STEPS
    made = unroll(head, target, head.read(hidden)[:, :length], tokens[:, 1:], STEPS)
    return HeadLoss([head.states(features) for features in made],
                  [hidden[-1][:, step + 1 : step + 1 + length] for step in range(STEPS)])


def block(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """Block heads: blocks that start every few tokens of a window, from a position that the generator draws."""
    hidden = hidden_states(target, tokens[:, :-1])
    first = 1 + int(torch.randint(STRIDE, (), generator=generator))
    before = torch.arange(first, hidden[-1].shape[1] - head.depth + 1, STRIDE, device=tokens.device)
    if not len(before):
        raise ValueError(f"windows of {tokens.shape[1] - 1} tokens are too short for a block of {head.depth} that "
                         f"starts within the first {STRIDE}; give a larger `length` in the plan")
    roots = target.get_input_embeddings()(tokens[:, before])
    states = head.states_along(head.read(hidden), roots, before)
    return HeadLoss(list(states.unbind(2)), [hidden[-1][:, before + depth] for depth in range(head.depth)])


LOSSES = {"medusa": medusa, "eagle": eagle, "eagle3": unrolled, "block": block}
HELD_OUT_LOSSES = {**LOSSES, "eagle": unrolled}  # on held-out text: by depth, as the head drafts


def backward_together(states: Sequence[Tensor], loss_of: DepthLoss) -> Tensor:
    """The plain form: one backward pass of the summed losses of all depths. Returns the sum."""
    total = sum(loss_of(state, depth) for depth, state in enumerate(states))
    total.backward()
    return total.detach()


def backward_apart(states: Sequence[Tensor], loss_of: DepthLoss) -> Tensor:
    """The same gradients; the logits of a depth are freed before those of the next are made. Returns the sum."""
    leaves, total = [], states[0].new_zeros((), dtype=torch.float32)
    for depth, state in enumerate(states):
        leaf = state.detach().requires_grad_()
        loss = loss_of(leaf, depth)
        loss.backward()
        total += loss.detach()
        leaves.append(leaf)
    torch.autograd.backward(list(states), [leaf.grad for leaf in leaves])
    return total


WAYS = {"together": backward_together, "apart": backward_apart}


def peaks(target, kinds: Sequence[str], *, rows: int, length: int, seed: int = 0) -> pd.DataFrame:
    """Peak bytes of the losses of one step and their backward passes, without weights and states: one row per kind of
    head and way.

    A new head of each kind is trained on random windows of rows x length tokens of the target.
    """
    measured = []
    for kind in kinds:
        for way, backward in WAYS.items():
            generator = torch.Generator().manual_seed(seed)
            config = heads.settings(kind, target.config)
            head = heads.KINDS[kind](config).to(target.device, target.dtype)
            tokens = torch.randint(config.vocab_size, (rows, length + 1), generator=generator).to(target.device)
            loss = LOSSES[kind](head, target, tokens, generator)
            with CountedBytes() as counted:
                backward(loss.states, loss.by_depth(target.get_output_embeddings()))
            measured.append(dict(kind=kind, way=way, depths=len(loss.states), rows=rows, length=length,
                              logit_bytes=loss.states[0].shape[:-1].numel() * config.vocab_size * target.dtype.itemsize,
                              peak_bytes=counted.peak))
    return pd.DataFrame(measured)
