"""Heads of a frozen target: their losses, and their training (`python -m lib training heads --target T --kinds K,...`).

A head learns the distribution of its target, not the token of the text, since the target decides acceptance. Each depth
has 0.8 of the weight of the depth before, as for Medusa's heads (Cai et al. 2024, section 2.2.1) and EAGLE-3's steps.
Heads share the target's output layer, and all heads of a training learn from the same forward pass of the target, whose
hidden states are not kept. A head learns the same beside others as alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig

from lib.drafters import heads, vocabulary
from lib.drafters.heads.eagle3 import unroll
from lib.drafters.heads.layers import Head
from lib.forward.load import load_pair
from lib.training import loop, own_text
from lib.training.own_text import Draw, Windows

PLAN = loop.TrainingPlan(1000, 8, 512, 3e-3, seed=11, decay=0.9)
DECAY = 0.8  # weight of a depth relative to the one before
UNROLLED = 4  # depths of EAGLE-3's training-time test
STRIDE = 8  # tokens between the starts of a window's blocks

# Settings of a new head besides sizes.
OPTIONS = {"medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1}, "eagle3": {},
           "dflash": {"num_hidden_layers": 2, "block_size": 7, "shifted": False, "qk_norm": True},
           "dspark": {"block_size": 6, "shifted": True, "qk_norm": False, "markov_rank": 64, "learned_places": True}}
MASK = 16  # the mask token of a new head: one of SmolLM2's special tokens, which texts do not have

Depths = tuple[list[Tensor], list[slice | Tensor]]
DepthLoss = Callable[[Tensor, int], Tensor]  # (states [..., H] of a depth, the depth from 0) -> its loss
Output = Callable[[Tensor], Tensor]  # states [..., H] -> logits [..., K] of the tokens that heads draft


@dataclass(frozen=True)
class Lesson:
    """Outputs of the target for windows of B rows.

    tokens: int64[B, T + 1]. hidden: the hidden states [B, T, H] by layer, -1 for the last. probs: float32[B, T, K], the
    probabilities of the tokens that heads draft as next token after each of T; they sum to less than 1 where heads do
    not draft all tokens. favourite: int64[B, T], the most likely of all tokens. learned: bool[B, T].
    """

    tokens: Tensor
    hidden: Mapping[int, Tensor]
    probs: Tensor
    favourite: Tensor
    learned: Tensor


@torch.no_grad()
def lesson(target, windows: Windows, drafted: Tensor | None, temperature: float = 1.0) -> Lesson:
    """The target's outputs for windows, with its probabilities at a temperature; drafted: the tokens int64[K] that
    heads draft, None for all.
    """
    read = target.base_model(windows.tokens[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
    output, probs, favourite = target.get_output_embeddings(), [], []
    for states in read[-1]:  # a row at a time: the logits of all tokens are large
        logits = output(states).float() / temperature
        favourite.append(logits.argmax(-1))
        some = logits if drafted is None else logits[:, drafted]
        probs.append((some - logits.logsumexp(-1, keepdim=True)).exp())
    hidden = dict(enumerate(read)) | {-1: read[-1]}
    return Lesson(windows.tokens, hidden, torch.stack(probs), torch.stack(favourite), windows.learned)


def logits_of(head: Head, output: Output, lesson: Lesson, state: Tensor, places: slice | Tensor) -> Tensor:
    """[B, T', K] of the states [B, T', H] of a depth: of the tokens after these places of the text."""
    logits, bias = output(state), head.bias(lesson.tokens[:, :-1][:, places])
    return logits if bias is None else logits + bias


def cross_entropy(logits: Tensor, probs: Tensor, learned: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean cross-entropy, in nats per learned token, of logits [B, T, K] against probs float32[B, T, K] at a
    temperature, times its square, so that gradients stay as large (Hinton et al. 2015, section 2).
    """
    entropy = -(probs * (logits / temperature).log_softmax(-1, dtype=torch.float32)).sum(-1)
    return temperature**2 * mean(entropy, learned)


def mean(values: Tensor, learned: Tensor) -> Tensor:
    """Of the learned ones."""
    return (values * learned).sum() / learned.sum().clamp_min(1)


# The kinds: each gives the states of a head by depth, [B, T', H] each, and the places of the text after which the tokens
# come that they predict. generator: the randomness of the step.


def medusa(head, target, text: Lesson, generator: torch.Generator) -> Depths:
    """Medusa: from each hidden state; depth d predicts the token d + 2 places later."""
    states = head.states(text.hidden[-1]).unbind(-2)
    return ([state[:, : state.shape[1] - 1 - depth] for depth, state in enumerate(states)],
            [slice(depth + 1, None) for depth in range(len(states))])


def unrolled(head, target, text: Lesson, generator: torch.Generator) -> Depths:
    """EAGLE-3's training-time test: the head continues its own features for a few steps (Li et al. 2025, section 3.2).

    Step d predicts the token d + 2 places after that of the feature.
    """
    length = text.tokens.shape[1] - 1 - UNROLLED
    steps = unroll(head, target, head.read(text.hidden)[:, :length], text.tokens[:, 1:], UNROLLED)
    return [head.norm(features) for features in steps], [slice(step, step + length) for step in range(1, UNROLLED + 1)]


def block(head, target, text: Lesson, generator: torch.Generator) -> Depths:
    """Block heads: blocks that start every few tokens of a window, from a position that the generator draws."""
    length = text.tokens.shape[1] - 1
    first = 1 + int(torch.randint(STRIDE, (), generator=generator))
    before = torch.arange(first, length - head.depth + 1, STRIDE, device=text.tokens.device)
    states = head.states_along(target, head.read(text.hidden), text.tokens[:, before], before)
    return list(states.unbind(2)), [before + depth for depth in range(head.depth)]


LOSSES = {"medusa": medusa, "eagle3": unrolled, "dflash": block, "dspark": block}


def backward_apart(states: Sequence[Tensor], loss_of: DepthLoss) -> Tensor:
    """The backward pass of the summed losses of all depths, one depth after another. Returns the sum.

    The logits of a depth, [rows, length, K], are far larger than the hidden states, and are freed before those of the
    next are made; gradients are summed in the hidden states, and the trunk has one backward pass (Gloeckle et al. 2024,
    "Better & Faster Large Language Models via Multi-token Prediction", figure 2).
    """
    leaves, total = [], states[0].new_zeros((), dtype=torch.float32)
    for depth, state in enumerate(states):
        leaf = state.detach().requires_grad_()
        loss = loss_of(leaf, depth)
        loss.backward()
        total += loss.detach()
        leaves.append(leaf)
    torch.autograd.backward(list(states), [leaf.grad for leaf in leaves])
    return total


def make(target_name: str, kinds: Sequence[str], folder: Path, plan: loop.TrainingPlan = PLAN,
         device: str = "cpu") -> None:
    """Trains heads for a target, as `lib.models` names models; heads, in bfloat16, and curves go to
    folder/heads/TARGET/KIND.

    They learn from text that the target wrote (see `own_text`), and draft its most frequent tokens. A stopped training
    of the same kinds resumes. ValueError for an unknown kind, and without such text.
    """
    if unknown := [kind for kind in kinds if kind not in LOSSES]:
        raise ValueError(f"the head's kind is {unknown[0]!r}; choose one of {', '.join(LOSSES)}")
    name, into = Path(target_name).name, folder / "heads" / Path(target_name).name
    pair = load_pair(target_name, dtype="float32", device=device)
    pair.target.requires_grad_(False)
    draw, held_out = own_text.lessons(pair, name, folder, plan)
    drafted = vocabulary.shipped(name, vocabulary.REDUCED).sort().values
    trained = {kind: new(kind, pair.target, drafted, plan.seed).to(device) for kind in kinds}
    train(trained, pair.target, draw, plan, into, held_out)
    for kind, head in trained.items():
        heads.save(head, into / kind)


def settings(kind: str, target_config, draft_vocab_size: int | None = None) -> LlamaConfig:
    """The configuration of a new head for a target: narrower than one of its layers, so that a head costs less.

    Two thirds of the target's query heads over one key head, and a feed-forward layer of the hidden size.
    draft_vocab_size: how many of the target's tokens it drafts; None for all.
    """
    config = target_config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size, vocab_size=config.vocab_size, head_dim=width,
        num_attention_heads=max(1, config.num_attention_heads * 2 // 3), num_key_value_heads=1,
        intermediate_size=config.hidden_size, max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6), kind=kind, mask_token_id=min(MASK, config.vocab_size - 1),
        feature_layers=feature_layers(config.num_hidden_layers), draft_vocab_size=draft_vocab_size,
        **{"num_hidden_layers": 1, **OPTIONS[kind]})


def feature_layers(layers: int) -> list[int]:
    """The hidden states that a new head of a target with so many layers reads, ascending: the inputs of layers 2, L/2
    and L - 3, as EAGLE-3's code and serving engines have it; of the last three layers where the target has few.

    The last hidden state is none of them: transformers gives it after the final norm, engines before it.
    """
    return [2, layers // 2, layers - 3] if layers > 6 else list(range(layers))[-3:]


def new(kind: str, target, drafted: Tensor | None, seed: int) -> Head:
    """A new head of a kind, a function of the seed, that drafts these tokens int64[K] of the target, or all."""
    torch.manual_seed(seed)
    head = heads.KINDS[kind](settings(kind, target.config, None if drafted is None else len(drafted)))
    if drafted is not None:
        head.tokens.copy_(drafted)
    return head


def train(trained: Mapping[str, Head], target, draw: Draw, plan: loop.TrainingPlan, into: Path,
          held_out: Windows) -> None:
    """Trains heads, by kind, in place; held-out curves are in `into`/KIND/curve.csv, checkpoints beside them."""
    entropy = torch.compile(cross_entropy, dynamic=True)  # fused, which halves a step of several depths on a CPU
    drafted = next(iter(trained.values())).tokens
    device, output = target.device, output_of(target, drafted)

    def backward(kind: str, text: Lesson, step: int) -> Tensor:
        head = trained[kind]
        with loop.autocast(device):
            states, places = LOSSES[kind](head, target, text, plan.generator(step))

        @loop.autocast(device)
        def loss_of(state: Tensor, depth: int) -> Tensor:
            logits, at = logits_of(head, output, text, state, places[depth]), places[depth]
            return DECAY**depth * entropy(logits, text.probs[:, at], text.learned[:, at], plan.temperature)

        return backward_apart(states, loss_of)

    def learn(windows: Windows, step: int) -> Tensor:
        with loop.autocast(device):
            text = lesson(target, windows, drafted, plan.temperature)
        return sum(backward(kind, text, step) for kind in trained)

    loop.run(trained, draw, plan, learn, lambda: evaluate(trained, target, held_out), into)


def output_of(target, drafted: Tensor | None) -> Output:
    """The target's output layer, or its rows for some tokens int64[K]."""
    layer = target.get_output_embeddings()
    if drafted is None:
        return layer
    rows, bias = layer.weight.detach()[drafted], None if layer.bias is None else layer.bias.detach()[drafted]
    return lambda states: F.linear(states, rows, bias)


@torch.no_grad()
def evaluate(trained: Mapping[str, Head], target, held_out: Windows) -> dict[str, pd.DataFrame]:
    """Heads on held-out windows: by head the depth, nats, agreement (of favourites), tokens."""
    drafted, curves = next(iter(trained.values())).tokens, {}
    output = output_of(target, drafted)
    with loop.autocast(target.device):
        text = lesson(target, held_out.to(target.device), drafted)
        for kind, head in trained.items():
            rows = []
            for depth, (state, at) in enumerate(zip(*LOSSES[kind](head, target, text, torch.Generator().manual_seed(0)))):
                logits, learned = logits_of(head, output, text, state, at), text.learned[:, at]
                favourite = logits.argmax(-1) if drafted is None else drafted[logits.argmax(-1)]
                agreement = mean((favourite == text.favourite[:, at]).float(), learned).item()
                rows.append({"kind": "dialogues", "depth": depth + 1,
                             "nats": round(cross_entropy(logits, text.probs[:, at], learned).item(), 4),
                             "agreement": round(agreement, 4), "tokens": int(learned.sum())})
            curves[kind] = pd.DataFrame(rows)
    return curves
