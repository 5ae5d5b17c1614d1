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


def make(target_name: str, folder: Path, *, plan: loop.TrainingPlan = PLAN, sizes: Mapping[str, int] = SIZES,
         name: str = NAME, device: str = "cpu", compiled: bool = True) -> LlamaForCausalLM:
    """Distils a student from a target that has written text (`own_text`), and whose frequent tokens are listed.

    Writes config, weights and curve.csv to folder/TARGET/NAME; an interrupted training resumes. ValueError without such
    text.
    """
    own_text.check_there(short := Path(target_name).name)
    frequent = vocabulary.shipped(short, FREQUENT)
    pair = load_pair(target_name, dtype="auto", device=device)
    target, into = pair.target.requires_grad_(False), folder / short / name
    draw, held_out = own_text.lessons(pair, short, folder, plan)
    torch.manual_seed(plan.seed)  # for the initial weights; each batch is a function of seed and step
    model = student(target, sizes).to(device)
    train(model, target, draw, held_out, frequent, plan, into, compiled=compiled)
    shipped = LlamaForCausalLM(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.to(torch.bfloat16).save_pretrained(into)
    return model


def student(target, sizes: Mapping[str, int]) -> LlamaForCausalLM:
    """A new Llama with the target's vocabulary, window and rotation, and with tied embeddings."""
    settings = target.config.get_text_config()
    model = LlamaForCausalLM(LlamaConfig(
        **sizes, tie_word_embeddings=True, **{name: getattr(settings, name) for name in (
            "vocab_size", "max_position_embeddings", "rope_parameters", "rms_norm_eps", "bos_token_id", "eos_token_id",
            "pad_token_id")}))
    with torch.no_grad():
        start = principal_components(target.get_input_embeddings().weight.float().cpu(), sizes["hidden_size"])
        model.model.embed_tokens.weight.copy_(EMBEDDED * start)
        model.model.norm.weight.fill_(1 / (EMBEDDED * sizes["hidden_size"] ** 0.5))  # logits of size 1
    return model


def principal_components(weight: Tensor, count: int) -> Tensor:
    """The first `count` principal components float[V, count] of rows float[V, H], scaled to a root mean square of 1."""
    centred = weight - weight.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -count:]
    components = centred @ directions
    return components / components.square().mean().sqrt()


def divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || student), in nats per token, from logits [..., V] of both."""
    probs, log_probs = F.softmax(teacher_logits.float(), dim=-1), F.log_softmax(logits.float(), dim=-1)
    return F.kl_div(log_probs, probs, reduction="none").sum(-1).mean()


def train(model: LlamaForCausalLM, target, draw: Draw, held_out: Windows, frequent: Tensor, plan: loop.TrainingPlan,
          into: Path, *, compiled: bool = True, curve_every: int = loop.CURVE_STEPS) -> None:
    """Trains in place, with checkpoints under `into`/checkpoints and the held-out curve in `into`/curve.csv.

    frequent: the tokens int64[K] of every step's loss. compiled: whether the softmax over the vocabulary is fused.
    """
    device, output, heat = next(model.parameters()).device, target.get_output_embeddings().weight, plan.temperature
    others = torch.from_numpy(np.setdiff1d(np.arange(len(output)), frequent.numpy()))
    fused = torch.compile(divergence, dynamic=True) if compiled else divergence

    def learn(windows: Windows, step: int) -> Tensor:
        drawn = others[torch.randperm(len(others), generator=plan.generator(step))[:OTHERS]]
        columns, total = torch.cat([frequent, drawn]).to(device), torch.zeros((), device=device)
        for part in windows.split(ROWS_PER_PASS):
            with loop.autocast(device):
                states, teacher_states = _states(model, target, part)
                both = F.linear(states, model.lm_head.weight[columns]), F.linear(teacher_states, output[columns])
                loss = heat**2 * fused(*(logits / heat for logits in both))  # Hinton et al. 2015, section 2
            share = len(part.tokens) / len(windows.tokens)
            (loss * share).backward()
            total += loss.detach() * share
        return total

    def report(record: dict) -> None:
        print(into.name, *(f"{key}={value:.4g}" for key, value in record.items()), flush=True)
        if record["step"] % curve_every == 0 or not record["hours_left"]:
            point = {"trained": record["tokens"], "tokens_a_second": round(record["tokens_a_second"]),
                     "training_nats": round(record["loss"], 4), **evaluate(model, target, held_out, frequent)}
            loop.extend_curve(into / "curve.csv", record["step"], pd.DataFrame([point]))

    loop.run(model, draw, plan, learn, into / "checkpoints", report=report)


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, target, held_out: Windows, frequent: Tensor) -> dict[str, float]:
    """A student on held-out text: `nats` of divergence over the whole vocabulary; `agreement`, the share of the
    target's favourites that are the student's among the `frequent` tokens, and `whole`, among all; tokens of these
    means.
    """
    device, output = next(model.parameters()).device, target.get_output_embeddings().weight
    sums, tokens, columns = torch.zeros(3, dtype=torch.float64), 0, frequent.to(device)
    for windows in held_out.to(device).split(1):
        with loop.autocast(device):
            states, teacher_states = _states(model, target, windows)
            logits, teacher_logits = F.linear(states, model.lm_head.weight), F.linear(teacher_states, output)
        favourite = teacher_logits.argmax(-1)
        sums += torch.stack([divergence(logits, teacher_logits) * len(logits), (logits.argmax(-1) == favourite).sum(),
                             (columns[logits[:, columns].argmax(-1)] == favourite).sum()]).double().cpu()
        tokens += len(logits)
    nats, whole, agreement = (round(value, 4) for value in (sums / tokens).tolist())
    return {"nats": nats, "agreement": agreement, "whole": whole, "tokens": tokens}


def _states(model: LlamaForCausalLM, target, windows: Windows) -> tuple[Tensor, Tensor]:
    """The student's last hidden states [N, h] and the target's [N, H] at the learned places of some rows."""
    tokens, learned = windows.tokens[:, :-1], windows.learned
    with torch.no_grad():
        teacher_states = target.base_model(tokens, use_cache=False).last_hidden_state
    return model.model(tokens, use_cache=False).last_hidden_state[learned], teacher_states[learned]
