"""How a head or draft model learns the distribution of a frozen target, which decides acceptance."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from safetensors import torch as safetensors
from torch import Tensor, nn
from torch.nn import functional as F

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.layers import Head
from lib.drafters.heads.marginals import BlockHead
from lib.lab import atomic_file
from lib.training.own_text import Windows

DECAY = 0.8  # weight of a depth relative to the one before, as for Medusa's heads (Cai et al. 2024, section 2.2.1)
UNROLLED = 4  # depths of EAGLE-3's training-time test
STRIDE = 8  # tokens between the starts of a window's blocks
WARMUP_STEPS = 60
PASS_TOKENS = 4096  # of one backward pass
CURVE_STEPS, CHECKPOINT_SECONDS = 100, 300  # between two points of a held-out curve; between two checkpoints


@dataclass(frozen=True)
class TrainingPlan:
    """Steps of rows x length tokens. The learning rate falls to zero over the last ones, a share `decay` of all.
    windows: of the text that are learned; None: all. stride: tokens between the starts of a window's blocks. muon:
    whether Muon serves matrices (see `optimisers_of`).
    """

    steps: int
    rows: int
    length: int
    learning_rate: float
    seed: int
    decay: float
    temperature: float = 1.0
    windows: int | None = None
    stride: int = STRIDE
    muon: bool = True

    def __post_init__(self):
        if not (self.steps > 0 and self.temperature > 0):
            raise ValueError(f"steps are {self.steps}, temperature is {self.temperature}; give numbers above 0")

    def rate(self, step: int) -> float:
        """The learning rate of a step from 1 on. A run that was stopped before its decay can resume with more steps."""
        decay = (self.steps - step + 1) / max(1, round(self.decay * self.steps))
        return self.learning_rate * min(1.0, step / WARMUP_STEPS, decay)


@contextmanager
def products_in_bfloat16() -> Iterator[None]:
    """Products of float32 numbers are computed in bfloat16 inside, where a processor or GPU has units for them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@products_in_bfloat16()
def train(model: nn.Module, target, drafted: Tensor | slice, windows: Windows, held_out: Windows, plan: TrainingPlan,
          into: Path) -> None:
    """Trains a model in place to draft these tokens int64[K], from its checkpoint beside the folder `into` if there is
    one; into/curve.csv has its figures by step (see `evaluate`).
    """
    target.requires_grad_(False)
    entropy = torch.compile(cross_entropy, dynamic=True)  # fused, which halves a step of several depths on a CPU
    optimisers, checkpoint = optimisers_of(model, plan.muon), into.with_name(f"{into.name}.checkpoint.safetensors")
    first, saved = _resume(checkpoint, model, optimisers), time.perf_counter()
    windows = [part[: plan.windows] for part in windows]
    order = torch.randperm(len(windows[0]), generator=torch.Generator().manual_seed(plan.seed))
    into.mkdir(parents=True, exist_ok=True)

    def learn(tokens: Tensor, learned: Tensor, step: int) -> Tensor:
        hidden, states, positions = depths_of(model, target, tokens, step, plan.stride)
        teacher = logits_of(target, target, hidden[-1], tokens, drafted)

        def loss_of(state: Tensor, depth: int) -> Tensor:
            at = positions + depth
            logits = logits_of(model, target, state, tokens[:, at], drafted)
            values = entropy(logits, teacher[:, at], plan.temperature) * learned[:, at]
            return len(tokens) / plan.rows * DECAY**depth * values.sum() / learned[:, at].sum().clamp_min(1)

        return backward_apart(states, loss_of)

    for step in range(first + 1, plan.steps + 1):
        rows = order[torch.arange((step - 1) * plan.rows, step * plan.rows) % len(order)]
        loss = sum(learn(*(window[part].to(target.device) for window in windows), step)
                   for part in rows.split(max(1, PASS_TOKENS // plan.length)))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, factor in zip(optimisers, (0.5, 1)):
            optimiser.param_groups[0]["lr"] = factor * plan.rate(step)
            optimiser.step()
            optimiser.zero_grad()
        if step == plan.steps or step % CURVE_STEPS == 0:
            print(f"{into.name} step={step} of {plan.steps} loss={loss:.4g}", flush=True)
            points = [curve[curve["step"] < step] for curve in map(pd.read_csv, into.glob("curve.csv"))]
            points.append(evaluate(model, target, drafted, held_out).assign(step=step))
            pd.concat(points).to_csv(into / "curve.csv", index=False)
        if step == plan.steps or time.perf_counter() - saved >= CHECKPOINT_SECONDS:
            _save(checkpoint, step, model, optimisers)
            saved = time.perf_counter()


def depths_of(model, target, tokens: Tensor, step: int = 0,
              stride: int = STRIDE) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
    """Of a text int64[B, T + 1]: the target's hidden states [B, T, H] by layer; the states [B, T', H] of a head or a
    draft model by depth; and the positions int64[T'] after which the first depth predicts the token, those of each
    further depth one later.
    """
    hidden = target.base_model(tokens[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
    if not isinstance(model, Head):
        states = model.base_model(tokens[:, :-1], use_cache=False).last_hidden_state
        return hidden, [states], torch.arange(tokens.shape[1] - 1)
    depth = UNROLLED if isinstance(model, Eagle3Head) else model.depth
    step, stride = (step, stride) if isinstance(model, BlockHead) else (0, 1)  # where blocks start varies by step
    positions = torch.arange(1 + step % stride, tokens.shape[1] - depth, stride, device=tokens.device)
    return hidden, [*model.along(target, hidden, tokens, positions, depth)], positions


def logits_of(model, target, states: Tensor, before: Tensor, drafted: Tensor | slice) -> Tensor:
    """Logits [B, T', K] of tokens by a model's output layer, for a head by the target's, from states [B, T', H] after
    the tokens int64[B, T'] before.
    """
    layer = (target if isinstance(model, Head) else model).get_output_embeddings()
    logits = F.linear(states, layer.weight[drafted], None if layer.bias is None else layer.bias[drafted])
    return model.biased(logits, before) if isinstance(model, Head) else logits


def cross_entropy(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """In nats [B, T], from logits [B, T, K] of a model and the target at a temperature, times its square, so that
    gradients stay as large (Hinton et al. 2015, section 2).
    """
    return -(temperature**2) * ((teacher / temperature).softmax(-1) * (logits / temperature).log_softmax(-1)).sum(-1)


def backward_apart(states: Sequence[Tensor], loss_of: Callable[[Tensor, int], Tensor]) -> Tensor:
    """The backward pass of the losses of all depths, one depth after another (Gloeckle et al. 2024, "Better & Faster
    Large Language Models via Multi-token Prediction", figure 2). Returns their sum.

    The logits of a depth, far larger than the states, are freed before those of the next are made; gradients are summed
    in the states, and the trunk has one backward pass.
    """
    leaves, total = [state.detach().requires_grad_() for state in states], 0
    for depth, leaf in enumerate(leaves):
        loss = loss_of(leaf, depth)
        loss.backward()
        total += loss.detach()
    torch.autograd.backward(list(states), [leaf.grad for leaf in leaves])
    return total


@torch.no_grad()
def evaluate(model, target, drafted: Tensor | slice, held_out: Windows) -> pd.DataFrame:
    """A model on held-out windows by depth: `nats` of cross-entropy, agreement (the share of the target's favourites
    that are the model's), and the tokens of these means.
    """
    sums, vocabulary = 0, torch.arange(target.config.get_text_config().vocab_size, device=target.device)
    for tokens, learned in zip(*(part.to(target.device).split(1) for part in held_out)):  # logits of all are large
        hidden, states, positions = depths_of(model, target, tokens)
        teacher, points = logits_of(target, target, hidden[-1], tokens, slice(None)), []
        for depth, state in enumerate(states):
            at = positions + depth
            logits = logits_of(model, target, state, tokens[:, at], drafted)
            agreed = vocabulary[drafted][logits.argmax(-1)] == teacher[:, at].argmax(-1)
            values = cross_entropy(logits, teacher[:, at][..., drafted]), agreed, torch.ones_like(agreed)
            points.append([(value * learned[:, at]).sum().item() for value in values])
        sums += torch.tensor(points, dtype=torch.float64)
    nats, agreed, count = sums.T
    return pd.DataFrame({"kind": "dialogues", "depth": range(1, len(sums) + 1), "nats": nats / count,
                         "agreement": agreed / count, "tokens": count.int()}).round(4)


def optimisers_of(model: nn.Module, muon: bool = True) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or with `muon` Muon (Jordan et al. 2024) for hidden matrices, with AdamW's root mean
    square of updates.
    """
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "head" not in name
        (matrices if muon and hidden else others).append(parameter)
    optimisers = [torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]
    if muon:
        optimisers.append(torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    return optimisers


def _save(path: Path, step: int, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Tensors "model.value.PARAMETER", and "INDEX.STATE.PARAMETER" of the optimisers' states."""
    tensors = {"step": torch.tensor(step)}
    for name, parameter in model.named_parameters():
        tensors[f"model.value.{name}"] = parameter.detach()
        for index, optimiser in enumerate(optimisers):
            tensors |= {f"{index}.{key}.{name}": value for key, value in optimiser.state.get(parameter, {}).items()}
    atomic_file.replace(path, safetensors.save(tensors))


def _resume(path: Path, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> int:
    """Loads a checkpoint where there is one. Returns its step, else 0."""
    if not path.exists():
        return 0
    parameters, tensors = dict(model.named_parameters()), safetensors.load_file(path)
    step = int(tensors.pop("step"))
    for key, value in tensors.items():
        index, state, name = key.split(".", 2)
        if index == "model":
            parameters[name].data.copy_(value)
        else:
            optimisers[int(index)].state[parameters[name]][state] = value.to(parameters[name].device)
    return step
