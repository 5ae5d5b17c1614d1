"""Boost-tuning (Miao et al. 2024, SpecInfer, section 3): each drafter is trained where the earlier ones fail.

`python -m lib making boosting --target T` compares such drafters with as many that are all trained on everything.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from lib.decoding.batch import continuations
from lib.lab import stats
from lib.making import data, family, loop
from lib.making.corpus import mixture

FIRST = "tiny"  # the member from which all drafters start
BOOSTED, ALIKE = "each where the others fail", "all on everything"
PROMPT, CONTINUED = 32, 4  # tokens of a sample's prompt, and of the target's own greedy continuation
SAMPLES, HELD_OUT = 4096, 4096
PLAN = loop.Plan(steps=200, rows=32, length=PROMPT + CONTINUED - 1, learning_rate=3e-3, seed=7)


def boost(models: Sequence[nn.Module], samples: Tensor, prompt: int, plan: loop.Plan, folder: Path, *,
          loss: loop.Loss = loop.plain_loss, compiled: bool = True,
          report: Callable[[dict], None] = print) -> list[Tensor]:
    """Trains the models in place, one after another, and returns the samples that each covers, bool[N].

    samples: int64[N, plan.length + 1], prompts of `prompt` tokens, each with the target's own greedy continuation. The
    first model is trained on all of them, each next one on those that no earlier model covers; if all are covered, the
    remaining models do not change. Each model has its checkpoints in a folder under `folder`, from which an interrupted
    run resumes. ValueError if samples and plan do not fit.
    """
    if samples.shape[1] != plan.length + 1 or not 0 < prompt <= plan.length:
        raise ValueError(f"samples are {tuple(samples.shape)} with prompts of {prompt} tokens; give plan.length + 1 = "
                         f"{plan.length + 1} tokens each, the prompt 1 to {plan.length} of them")
    left, covers = torch.ones(len(samples), dtype=torch.bool), []
    for number, model in enumerate(models):
        if not left.any():
            break
        own = replace(plan, seed=plan.seed + number)
        loop.train(model, _drawing(samples[left], own), own, loss, folder / f"member-{number}", compiled=compiled,
                   report=report)
        covers.append(covered(model, samples, prompt))
        left &= ~covers[-1]
    return covers


@torch.no_grad()
def covered(model: nn.Module, samples: Tensor, prompt: int, rows: int = 64) -> Tensor:
    """bool[N]: the samples int64[N, T] whose tokens after the prompt are the model's own greedy continuation."""
    device = next(model.parameters()).device
    correct = [(model(part[:, :-1].to(device), use_cache=False).logits.argmax(-1).cpu() == part[:, 1:])[:, prompt - 1 :]
               for part in samples.split(rows)]
    return torch.cat(correct).all(-1)


def _drawing(samples: Tensor, plan: loop.Plan) -> Callable[[int], Tensor]:
    """The samples of a step: rows drawn with replacement, a function of seed and step."""
    return lambda step: samples[torch.randint(len(samples), (plan.rows,), generator=plan.generator(step))]


def samples(target, streams: Mapping[str, np.ndarray], count: int, seed: int) -> Tensor:
    """int64[count, PROMPT + CONTINUED]: windows of the streams, in the mixture's shares, that the target continues."""
    prompts = data.windows(streams, mixture.SHARES, count, PROMPT, seed, step=0)
    written = continuations(target, list(prompts), max_new_tokens=CONTINUED, rows=64)
    return torch.cat([prompts, torch.tensor(written)], dim=1)


def continuation_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of the target's continuation alone, in nats: logits [B, T, V], tokens int64[B, T + 1]."""
    return loop.plain_loss(logits[:, -CONTINUED:], tokens[:, -CONTINUED - 1 :])


def train(first: nn.Module, training: Tensor, folder: Path, *, members: int = 2, plan: loop.Plan = PLAN,
          compiled: bool = True) -> dict[str, list[nn.Module]]:
    """Copies of a drafter trained in both ways, from the same samples and for the same number of steps each.

    The first drafter of both ways is the same model, since no drafter precedes it.
    """
    def tuned(models: Sequence[nn.Module], own: loop.Plan, name: str) -> None:
        boost(models, training, PROMPT, own, folder / name, loss=continuation_loss, compiled=compiled)

    boosted = [copy.deepcopy(first) for _ in range(members)]
    tuned(boosted, plan, "boosted")
    alike = [boosted[0], *(copy.deepcopy(first) for _ in range(members - 1))]
    for number, model in enumerate(alike[1:], start=1):
        tuned([model], replace(plan, seed=plan.seed + number), f"alike-{number}")
    return {BOOSTED: boosted, ALIKE: alike}


def coverage(groups: Mapping[str, Sequence[nn.Module]], held_out: Tensor, seed: int = 0) -> pd.DataFrame:
    """The share of samples int64[N, T] that at least one of a group's first drafters covers.

    One row per group and number of drafters: the share, its gain over the first drafter alone, and its paired
    difference from the other group, each with its 95 % interval over samples.
    """
    rows = []
    for group, models in groups.items():
        by_any = torch.zeros(len(held_out), dtype=torch.bool)
        for drafters, model in enumerate(models, start=1):
            by_any = by_any | covered(model, held_out, PROMPT)
            rows.append(pd.DataFrame(dict(group=group, drafters=drafters, prompt=range(len(by_any)), rounds=1,
                                          covered=by_any.numpy().astype(float))))
    samples_by_group, rng = pd.concat(rows, ignore_index=True), np.random.default_rng(seed)
    shares = stats.summarise(samples_by_group, ["group", "drafters"], "covered", "rounds", rng)
    for column, by, between, base in (("more_than_one", ["group"], "drafters", 1),
                                      ("more_than_alike", ["drafters"], "group", ALIKE)):
        gap = stats.compare(samples_by_group, by, between, base, "covered", "rounds", rng)
        names = {"value": column, "low": f"{column}_low", "high": f"{column}_high"}
        shares = shares.merge(gap.rename(columns=names)[["group", "drafters", *names.values()]],
                              on=["group", "drafters"], how="left")
    return shares


def compare(target_name: str, folder: Path) -> pd.DataFrame:
    """Trains drafters for a target in both ways under `folder`, saves the boosted ones, and returns their `coverage`.

    ValueError if `folder` lacks the model from which all start.
    """
    start = folder / FIRST
    if not (start / "model.safetensors").exists():
        raise ValueError(f"{start} has no model to start from; train it first: python -m lib making {FIRST}")
    tokenizer, streams = family.prepare(folder), data.load_streams(folder)
    target = family.frozen_target(target_name, folder, "cpu")
    training = samples(target, streams.train, SAMPLES, PLAN.seed)
    judged = samples(target, streams.held_out, HELD_OUT, PLAN.seed)
    into = folder / "boosted" / Path(target_name).name
    groups = train(LlamaForCausalLM.from_pretrained(start, dtype=torch.float32), training, into)
    for number, model in enumerate(groups[BOOSTED]):
        family.save(model, into / f"member-{number}", tokenizer)
    return coverage(groups, judged).assign(target=target_name).round(4)
