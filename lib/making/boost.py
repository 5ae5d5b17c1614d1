"""Boost-tuning (Miao et al. 2024, SpecInfer, section 3): each next drafter learns where earlier ones fail."""

from dataclasses import replace
from pathlib import Path
from typing import Callable, Sequence

import torch
from torch import Tensor, nn

from lib.making import loop


def boost(models: Sequence[nn.Module], samples: Tensor, prompt: int, plan: loop.Plan, folder: Path, *,
          loss: loop.Loss = loop.plain_loss, compiled: bool = True,
          report: Callable[[dict], None] = print) -> list[Tensor]:
    """Trains the models in place, one after another, and returns for each which samples it covers, bool[N].

    samples int64[N, plan.length + 1]: prompts of so many tokens, each with the target's own greedy continuation. The
    first model sees all of them, each next one those that no model before it covers; where all are covered the rest is
    left as it is. Checkpoints lie under `folder`, a folder a model, so that a run that was stopped goes on. ValueError
    where samples and plan do not fit.
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
    """bool[N]: samples int64[N, T] whose tokens behind the prompt are all the model's own favourites.

    That is where its greedy continuation of the prompt is the sample's.
    """
    device = next(model.parameters()).device
    right = [(model(part[:, :-1].to(device), use_cache=False).logits.argmax(-1).cpu() == part[:, 1:])[:, prompt - 1 :]
             for part in samples.split(rows)]
    return torch.cat(right).all(-1)


def _drawing(samples: Tensor, plan: loop.Plan) -> Callable[[int], Tensor]:
    """The samples of a step: rows drawn with replacement, a function of seed and step."""
    def draw(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        return samples[torch.randint(len(samples), (plan.rows,), generator=generator)]

    return draw
