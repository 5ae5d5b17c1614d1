"""A small Llama distilled from a chat model on the model's own dialogues: `python -m lib training nano --target T`.

Its embedding, which is its output layer too, starts from the principal components of the target's. Its loss is the
divergence from the target's distribution (Zhou et al. 2024, DistillSpec) over the target's most frequent tokens, from
which it drafts, and over a share of all others, drawn anew in each step: the distribution that is best given any such
part of the vocabulary is the target's own, so that rare tokens stay rare where the whole vocabulary is read. The target
reads the text once; its last hidden states are kept on disk, since its forward pass would be most of a step.
"""

import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from lib.drafters import vocabulary
from lib.forward.load import load_pair
from lib.training import loop, own_text
from lib.training.heads import extend_curve
from lib.training.own_text import Windows

NAME = "nano"
# With tied embeddings of 49,152 tokens 15.9 MiB in bfloat16, of which the embeddings are 12.
SIZES = dict(hidden_size=128, num_hidden_layers=4, intermediate_size=1088, num_attention_heads=8, num_key_value_heads=4,
             head_dim=32)
PLAN = loop.TrainingPlan(steps=1600, rows=16, length=1024, learning_rate=1e-2, seed=21)
KNOWN = 8192  # the target's most frequent tokens, in the loss of every step
OTHERS = 2048  # further tokens in the loss of a step
EMBEDDED = 0.1  # root mean square of the first embeddings: well above one step of their optimiser
ROWS = 1100  # of the text that are learned on a processor: two cores take most of an hour to read all 2,100
ROWS_PER_PASS = 2
HELD_OUT_SHARE = 0.02
CURVE_EVERY = 100  # steps between two points of the held-out curve
SECONDS = 10  # between two lines of progress


@dataclass(frozen=True)
class Text:
    """Dialogues cut into rows: tokens int64[R, L + 1]; learned bool[R, L], whether the token after each is no part of
    the template; states [R, L, H], the target's last hidden ones, bfloat16 as int16 in a file.
    """

    tokens: Tensor
    learned: Tensor
    states: np.memmap


def make(target_name: str, folder: Path, *, plan: loop.TrainingPlan = PLAN, sizes: Mapping[str, int] = SIZES,
         name: str = NAME, known: int = KNOWN, device: str = "cpu", compiled: bool = True) -> LlamaForCausalLM:
    """Distils a student from a target, a name of `lib.models` whose own text and frequent tokens are committed.

    Writes config, weights and curve.csv to folder/TARGET/NAME; an interrupted training resumes. ValueError without such
    text.
    """
    short = Path(target_name).name  # as its text is named
    own_text.check_there(short)
    tokens = vocabulary.shipped(short, known)
    pair = load_pair(target_name, dtype="auto", device=device)
    target, template = pair.target.requires_grad_(False), own_text.template(pair.tokenizer)
    most = ROWS if torch.device(device).type == "cpu" else None
    training, held_out = (own_text.windows(*part.stream(*template), plan.length).first(most)
                          for part in own_text.to_learn(short, folder, HELD_OUT_SHARE))
    drawn = torch.cat([drawn_rows(plan, step, len(training.tokens)) for step in range(plan.steps)]).unique()
    training, held_out = (read(target, rows, folder / "states" / short, places)
                          for rows, places in ((training, drawn), (held_out, None)))
    torch.manual_seed(plan.seed)  # for the initial weights; each batch is a function of seed and step
    model, into = student(target, sizes).to(device), folder / short / name
    train(model, target, training, held_out, tokens, plan, into, compiled=compiled)
    saved = LlamaForCausalLM(model.config)
    saved.load_state_dict(model.state_dict())
    saved.to(torch.bfloat16).save_pretrained(into)
    return model


def drawn_rows(plan: loop.TrainingPlan, step: int, count: int) -> Tensor:
    """The rows int64[plan.rows], of so many, from which a step learns."""
    return torch.randperm(count, generator=plan.generator(step))[: plan.rows]


@torch.inference_mode()
def read(target, rows: Windows, folder: Path, places: Tensor | None = None) -> Text:
    """The rows, at these places int64[P] (None: all) with the target's states, which are kept in `folder` under the
    rows' hash; a stopped reading resumes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha256(rows.tokens.numpy().tobytes()).hexdigest()[:12]}.npy"
    shape = (*rows.learned.shape, target.config.get_text_config().hidden_size)
    states = np.lib.format.open_memmap(path, "r+" if path.exists() else "w+", np.int16, shape)
    wanted = range(len(states)) if places is None else places.tolist()
    missing = [place for place in wanted if not states[place, -1].any()]  # a new file is zero
    for place in tqdm(missing, desc="rows of text that the target has read", mininterval=SECONDS, file=sys.stdout):
        row = rows.tokens[place, None, :-1].to(target.device)
        read_now = target.base_model(row, use_cache=False).last_hidden_state
        states[place] = read_now[0].bfloat16().cpu().view(torch.int16).numpy()
    return Text(*rows, states)


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


def train(model: LlamaForCausalLM, target, training: Text, held_out: Text, known: Tensor, plan: loop.TrainingPlan,
          into: Path, *, compiled: bool = True, curve_every: int = CURVE_EVERY) -> None:
    """Trains in place, with checkpoints under `into`/checkpoints and the held-out curve in `into`/curve.csv.

    known: the tokens int64[K] of every step's loss. compiled: whether the softmax over the vocabulary is fused.
    """
    device, output, heat = next(model.parameters()).device, target.get_output_embeddings().weight, plan.temperature
    others = torch.from_numpy(np.setdiff1d(np.arange(len(output)), known.numpy()))
    divergence = torch.compile(loop.divergence, dynamic=True) if compiled else loop.divergence

    def learn(places: Tensor, step: int) -> Tensor:
        drawn = others[torch.randperm(len(others), generator=plan.generator(step))[:OTHERS]]
        columns, total = torch.cat([known, drawn]).to(device), torch.zeros((), device=device)
        for part in places.split(ROWS_PER_PASS):
            with loop.autocast(device):
                states, true = _states(model, training, part)
                both = F.linear(states, model.lm_head.weight[columns]), F.linear(true, output[columns])
                value = heat**2 * divergence(*(logits / heat for logits in both))  # Hinton et al. 2015, section 2
            (value * len(part) / len(places)).backward()
            total += value.detach() * len(part) / len(places)
        return total

    def draw(step: int) -> Tensor:
        return drawn_rows(plan, step, len(training.tokens))

    def report(record: dict) -> None:
        print(into.name, *(f"{key}={value:.4g}" for key, value in record.items()), flush=True)
        if record["step"] % curve_every == 0 or not record["hours_left"]:
            point = {"trained": record["tokens"], "tokens_a_second": round(record["tokens_a_second"]),
                     "training_nats": round(record["loss"], 4), **evaluate(model, target, held_out, known)}
            extend_curve(into / "curve.csv", record["step"], pd.DataFrame([point]))

    loop.run(model, draw, plan, learn, into / "checkpoints", report=report)


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, target, text: Text, known: Tensor) -> dict[str, float]:
    """A student on held-out text: `nats` of divergence over the whole vocabulary; `agreement`, the share of the
    target's favourites that are the student's among the `known` tokens, and `whole`, among all; tokens of these means.
    """
    device, output = next(model.parameters()).device, target.get_output_embeddings().weight
    sums, tokens = torch.zeros(3, dtype=torch.float64), 0
    for places in torch.arange(len(text.tokens)).split(1):
        with loop.autocast(device):
            states, true = _states(model, text, places)
            logits, wanted = F.linear(states, model.lm_head.weight), F.linear(true, output)
        favourite, among = wanted.argmax(-1), known.to(device)
        sums += torch.stack([loop.divergence(logits, wanted) * len(logits), (logits.argmax(-1) == favourite).sum(),
                             (among[logits[:, among].argmax(-1)] == favourite).sum()]).double().cpu()
        tokens += len(logits)
    nats, whole, agreement = (round(value, 4) for value in (sums / tokens).tolist())
    return {"nats": nats, "agreement": agreement, "whole": whole, "tokens": tokens}


def _states(model: LlamaForCausalLM, text: Text, places: Tensor) -> tuple[Tensor, Tensor]:
    """The student's last hidden states [N, h] and the target's [N, H] at the learned places of some rows."""
    device, places = next(model.parameters()).device, places.cpu()
    true = torch.from_numpy(text.states[places.numpy()]).view(torch.bfloat16)
    tokens, learned, true = (part.to(device) for part in (text.tokens[places], text.learned[places], true))
    return model.model(tokens[:, :-1], use_cache=False).last_hidden_state[learned], true[learned].float()
