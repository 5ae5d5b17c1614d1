"""What boost-tuning buys (Miao et al. 2024, SpecInfer, section 3): drafters that each learnt where earlier ones fail,
beside as many that all learnt everything; `python -m lib making boosting --target T`.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from lib.decoding.plain import continuations
from lib.lab import stats
from lib.making import data, family, loop
from lib.making.boost import boost, covered
from lib.making.corpus import mixture
from lib.making.heads import frozen_target

FROM = "tiny"  # the member that all drafters begin as
BOOSTED, ALIKE = "each where the others fail", "all on everything"
PROMPT, SAID = 32, 4  # tokens of a sample's prompt, and of the target's own greedy continuation
SAMPLES, HELD_OUT = 4096, 4096
PLAN = loop.Plan(steps=200, rows=32, length=PROMPT + SAID - 1, learning_rate=3e-3, seed=7)


def samples(target, streams: Mapping[str, np.ndarray], count: int, seed: int) -> Tensor:
    """int64[count, PROMPT + SAID]: windows of the streams, kinds in the mixture's shares, as the target goes on."""
    prompts = data.windows(streams, mixture.SHARES, count, PROMPT, seed, step=0)
    said = continuations(target, list(prompts), max_new_tokens=SAID, rows=64)
    return torch.cat([prompts, torch.tensor(said)], dim=1)


def said_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of what the target said, behind its prompt, in nats: logits [B, T, V], tokens int64[B, T + 1]."""
    return loop.plain_loss(logits[:, -SAID:], tokens[:, -SAID - 1 :])


def train(first: nn.Module, learnt: Tensor, folder: Path, *, members: int = 2, plan: loop.Plan = PLAN,
          compiled: bool = True) -> dict[str, list[nn.Module]]:
    """Copies of a drafter trained either way, from the same samples and for as many steps each.

    The first ones of both ways are one and the same model: nobody failed before it.
    """
    def tuned(models: Sequence[nn.Module], own: loop.Plan, name: str) -> None:
        boost(models, learnt, PROMPT, own, folder / name, loss=said_loss, compiled=compiled)

    boosted = [copy.deepcopy(first) for _ in range(members)]
    tuned(boosted, plan, "boosted")
    alike = [boosted[0], *(copy.deepcopy(first) for _ in range(members - 1))]
    for number, model in enumerate(alike[1:], start=1):
        tuned([model], replace(plan, seed=plan.seed + number), f"alike-{number}")
    return {BOOSTED: boosted, ALIKE: alike}


def coverage(groups: Mapping[str, Sequence[nn.Module]], held_out: Tensor, seed: int = 0) -> pd.DataFrame:
    """The share of samples int64[N, T] of which a group's first drafters say all that the target said.

    One row a group and number of drafters: the share, and what it is more than with the first alone and than the other
    group's, paired, each with its 95 % interval over samples.
    """
    rows = []
    for group, models in groups.items():
        known = torch.zeros(len(held_out), dtype=torch.bool)
        for drafters, model in enumerate(models, start=1):
            known = known | covered(model, held_out, PROMPT)
            rows.append(pd.DataFrame(dict(group=group, drafters=drafters, prompt=range(len(known)), rounds=1,
                                          covered=known.numpy().astype(float))))
    found, rng = pd.concat(rows, ignore_index=True), np.random.default_rng(seed)
    shares = stats.summarise(found, ["group", "drafters"], "covered", "rounds", rng)
    for column, by, between, base in (("more_than_one", ["group"], "drafters", 1),
                                      ("more_than_alike", ["drafters"], "group", ALIKE)):
        gap = stats.compare(found, by, between, base, "covered", "rounds", rng)
        names = {"value": column, "low": f"{column}_low", "high": f"{column}_high"}
        shares = shares.merge(gap.rename(columns=names)[["group", "drafters", *names.values()]],
                              on=["group", "drafters"], how="left")
    return shares


def compare(target_name: str, folder: Path) -> pd.DataFrame:
    """Trains drafters for a target both ways under `folder`, saves the boosted ones, and says what they cover.

    ValueError where `folder` lacks the model that all begin as.
    """
    where = folder / FROM
    if not (where / "model.safetensors").exists():
        raise ValueError(f"{where} holds no model to begin with; train it first: python -m lib making {FROM}")
    tokenizer, streams = family.prepare(folder), data.load_streams(folder)
    target = frozen_target(target_name, folder, "cpu")
    learnt = samples(target, streams.train, SAMPLES, PLAN.seed)
    judged = samples(target, streams.held_out, HELD_OUT, PLAN.seed)
    into = folder / "boosted" / Path(target_name).name
    groups = train(LlamaForCausalLM.from_pretrained(where, dtype=torch.float32), learnt, into)
    for number, model in enumerate(groups[BOOSTED]):
        family.save(model, tokenizer, into / f"member-{number}")
    return coverage(groups, judged).assign(target=target_name).round(4)
