"""What each kind of head learns from a window of text: its states by depth, and the target's own for the same tokens.

Every head learns the distribution of the frozen target, not the text's token: it is the target that will accept or
reject. Deeper depths count 0.8 of the one before, as Medusa's heads (Cai et al. 2024, section 2.2.1) and EAGLE-3's
steps do. The target's output layer is also the head's.
"""

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.drafters.heads.eagle import continued, embed, unroll
from lib.drafters.heads.layers import Unrolled

DECAY = 0.8  # weight of a depth relative to the one before
STEPS = 4  # depths of EAGLE-3's training-time test
NOISE = 0.1  # half the width of the uniform noise on EAGLE-1's features (Li et al. 2024, section 3.2)
STRIDE = 8  # tokens between the starts of a window's blocks


def cross_entropy(output, state: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy in nats a token of what the output layer makes of the head's states [..., H], and the target's."""
    with torch.no_grad():
        probs = output(wanted).softmax(-1, dtype=torch.float32)
    return -(probs * output(state).log_softmax(-1, dtype=torch.float32)).sum(-1).mean()


@dataclass(frozen=True)
class Lesson:
    """states and wanted: by depth, [B, T', H] of head and target, which their output layer turns into logits.

    The loss of a depth is `classification` times the cross-entropy against the target's distribution, and `regression`
    times the smooth L1 distance between the states themselves, both means over tokens.
    """

    states: list[Tensor]
    wanted: list[Tensor]
    classification: float = 1.0
    regression: float = 0.0

    def loss(self, output, entropy: Callable = cross_entropy) -> Callable[[Tensor, int], Tensor]:
        """(states of a depth, depth) -> the loss, as `lib.making.apart` takes it; entropy: `cross_entropy`, as it is
        or compiled.
        """
        def of(state: Tensor, depth: int) -> Tensor:
            wanted = self.wanted[depth]
            loss = self.classification * entropy(output, state, wanted)
            if self.regression:
                loss = loss + self.regression * F.smooth_l1_loss(state.float(), wanted.float())
            return DECAY**depth * loss

        return of


@torch.no_grad()
def listen(target, tokens: Tensor) -> tuple[Tensor, ...]:
    """The target's hidden states [B, T, H] a layer, of tokens int64[B, T]."""
    return target(tokens, output_hidden_states=True, use_cache=False, logits_to_keep=1).hidden_states


def medusa(head, target, tokens: Tensor, generator: torch.Generator) -> Lesson:
    """From every hidden state of tokens int64[B, T + 1]: depth d speaks of the token d + 2 behind it."""
    last = listen(target, tokens[:, :-1])[-1]
    states = head.states(last).unbind(-2)
    lengths = [last.shape[1] - 1 - depth for depth in range(len(states))]
    return Lesson([state[:, :length] for state, length in zip(states, lengths)],
                  [last[:, depth + 1 :] for depth in range(len(states))])


def eagle(head, target, tokens: Tensor, generator: torch.Generator) -> Lesson:
    """EAGLE-1: one step, from features with uniform noise to the next ones (Li et al. 2024, section 3.2)."""
    features = listen(target, tokens[:, :-1])[-1]
    noise = torch.rand(features.shape, generator=generator).to(features)
    entries = (features + NOISE * (2 * noise - 1))[:, :-1]
    place = torch.arange(entries.shape[1], device=tokens.device)[None]
    made = continued(head, entries, embed(head, target, tokens[:, 1:-1]), place, Unrolled())
    return Lesson([head.states(made)], [features[:, 1:]], classification=0.1, regression=1.0)


def unrolled(head, target, tokens: Tensor, generator: torch.Generator) -> Lesson:
    """EAGLE-3's training-time test: the head continues its own features for a few steps (Li et al. 2025, section 3.2).

    Step d of an entry speaks of the token d + 2 behind its feature's.
    """
    hidden = listen(target, tokens[:, :-1])
    length = tokens.shape[1] - 1 - STEPS
    made = unroll(head, target, head.read(hidden)[:, :length], tokens[:, 1:], STEPS)
    return Lesson([head.states(features) for features in made],
                  [hidden[-1][:, step + 1 : step + 1 + length] for step in range(STEPS)])


def block(head, target, tokens: Tensor, generator: torch.Generator) -> Lesson:
    """Blocks that start every few tokens of a window, from a place that the generator chooses."""
    hidden = listen(target, tokens[:, :-1])
    first = 1 + int(torch.randint(STRIDE, (), generator=generator))
    before = torch.arange(first, hidden[-1].shape[1] - head.depth + 1, STRIDE, device=tokens.device)
    if not len(before):
        raise ValueError(f"windows of {tokens.shape[1] - 1} tokens have no room for a block of {head.depth} that "
                         f"starts within the first {STRIDE}; take a longer `length` in the plan")
    roots = target.get_input_embeddings()(tokens[:, before])
    states = head.states_along(head.read(hidden), roots, before)
    return Lesson(list(states.unbind(2)), [hidden[-1][:, before + depth] for depth in range(head.depth)])


LESSONS = {"medusa": medusa, "eagle": eagle, "eagle3": unrolled, "block": block}
READINGS = {**LESSONS, "eagle": unrolled}  # how a head is read on held-out text: by depth, as it drafts
