"""A small Llama distilled from a chat model on the model's own dialogues: `python -m lib training nano --target T`.

Its embedding, which is its output layer too, starts from the principal components of the target's. Its loss is the
divergence from the target's distribution (Zhou et al. 2024, DistillSpec) over the target's most frequent tokens, from
which it drafts, and over a share of all others, drawn anew in each step: the distribution that is best given any such
part of the vocabulary is the target's, so that rare tokens stay rare where the whole vocabulary is read.
"""

from pathlib import Path
from typing import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from lib.drafters import vocabulary
from lib.forward.load import load_pair
from lib.training import loop, own_text
from lib.training.own_text import Draw, Windows

NAME = "nano"
# With tied embeddings of 49,152 tokens 15.9 MiB in bfloat16, of which the embeddings are 12.
SIZES = dict(hidden_size=128, num_hidden_layers=4, intermediate_size=1088, num_attention_heads=8, num_key_value_heads=4,
             head_dim=32)
PLAN = loop.TrainingPlan(steps=1600, rows=16, length=1024, learning_rate=1e-2, seed=21)
FREQUENT = 8192  # the target's most frequent tokens, in the loss of every step
OTHERS = 2048  # further tokens in the loss of a step
EMBEDDED = 0.1  # root mean square of the first embeddings: well above one step of their optimiser
ROWS_PER_PASS = 2


def make(target_name: str, folder: Path, plan: loop.TrainingPlan = PLAN, layers: int = SIZES["num_hidden_layers"],
         device: str = "cpu") -> LlamaForCausalLM:
    """Distils a student from a target that has written text (`own_text`), and whose frequent tokens are listed.

    Writes config, weights and curve.csv to folder/TARGET/NAME, or NAME-LAYERS; an interrupted training resumes.
    ValueError without such text.
    """
    short, name = Path(target_name).name, NAME if layers == SIZES["num_hidden_layers"] else f"{NAME}-{layers}"
    pair = load_pair(target_name, dtype="auto", device=device)
    draw, held_out = own_text.lessons(pair, short, folder, plan)
    frequent = vocabulary.shipped(short, FREQUENT)
    torch.manual_seed(plan.seed)  # for the initial weights; each batch is a function of seed and step
    model = student(pair.target.requires_grad_(False), SIZES | {"num_hidden_layers": layers}).to(device)
    train({name: model}, pair.target, draw, held_out, frequent, plan, folder / short)
    model.to(torch.bfloat16).save_pretrained(folder / short / name)
    return model


def student(target, sizes: Mapping[str, int]) -> LlamaForCausalLM:
    """A new Llama with the target's vocabulary, window and rotation, and with tied embeddings."""
    settings, width = target.config.get_text_config(), sizes["hidden_size"]
    model = LlamaForCausalLM(LlamaConfig(
        **sizes, tie_word_embeddings=True, **{name: getattr(settings, name) for name in (
            "vocab_size", "max_position_embeddings", "rope_parameters", "rms_norm_eps", "bos_token_id", "eos_token_id",
            "pad_token_id")}))
    with torch.no_grad():
        weight = target.get_input_embeddings().weight.float().cpu()
        components, scales, _ = torch.linalg.svd(weight - weight.mean(0), full_matrices=False)
        start = components[:, :width] * scales[:width]
        model.model.embed_tokens.weight.copy_(EMBEDDED * start / start.square().mean().sqrt())
        model.model.norm.weight.fill_(1 / (EMBEDDED * width**0.5))  # logits of size 1
    return model


def divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || student), in nats per token, from logits [..., V] of both."""
    probs, log_probs = F.softmax(teacher_logits.float(), dim=-1), F.log_softmax(logits.float(), dim=-1)
    return F.kl_div(log_probs, probs, reduction="none").sum(-1).mean()


def train(trained: Mapping[str, LlamaForCausalLM], target, draw: Draw, held_out: Windows, frequent: Tensor,
          plan: loop.TrainingPlan, into: Path) -> None:
    """Trains a student, by name, in place; the held-out curve is in `into`/NAME/curve.csv, checkpoints beside it.

    frequent: the tokens int64[K] of every step's loss.
    """
    [(name, model)] = trained.items()
    device, output, heat = next(model.parameters()).device, target.get_output_embeddings().weight, plan.temperature
    others = torch.from_numpy(np.setdiff1d(np.arange(len(output)), frequent.numpy()))
    fused = torch.compile(divergence, dynamic=True)

    def learn(windows: Windows, step: int) -> Tensor:
        drawn = others[torch.randperm(len(others), generator=plan.generator(step))[:OTHERS]]
        columns, total = torch.cat([frequent, drawn]).to(device), torch.zeros((), device=device)
        for part in windows.split(ROWS_PER_PASS):
            with loop.autocast(device):
                loss = heat**2 * fused(*(logits / heat for logits in _logits(model, target, part, columns)))  # as heads
            share = len(part.tokens) / len(windows.tokens)
            (loss * share).backward()
            total += loss.detach() * share
        return total

    def points() -> dict[str, pd.DataFrame]:
        return {name: pd.DataFrame([evaluate(model, target, held_out)])}

    loop.run(trained, draw, plan, learn, points, into)


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, target, held_out: Windows) -> dict[str, float]:
    """A student on held-out text: `nats` of divergence, and `agreement`, the share of the target's favourites that are
    the student's; tokens of these means.
    """
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    for windows in held_out.to(target.device).split(1):
        with loop.autocast(target.device):
            logits, teacher_logits = _logits(model, target, windows, slice(None))
        agreed = (logits.argmax(-1) == teacher_logits.argmax(-1)).sum()
        sums += torch.stack([divergence(logits, teacher_logits) * len(logits), agreed]).double().cpu()
        tokens += len(logits)
    nats, agreement = (round(value, 4) for value in (sums / tokens).tolist())
    return {"nats": nats, "agreement": agreement, "tokens": tokens}


def _logits(model: LlamaForCausalLM, target, windows: Windows, columns: Tensor | slice) -> tuple[Tensor, Tensor]:
    """The student's logits [N, K] of some tokens and the target's, at the learned places of some rows."""
    tokens, learned = windows.tokens[:, :-1], windows.learned
    with torch.no_grad():
        teacher = target.base_model(tokens, use_cache=False).last_hidden_state[learned]
        teacher_logits = F.linear(teacher, target.get_output_embeddings().weight[columns])
    states = model.model(tokens, use_cache=False).last_hidden_state[learned]
    return F.linear(states, model.lm_head.weight[columns]), teacher_logits
