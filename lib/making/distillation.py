"""The gain of distillation: a distilled member against plain ones of its size that were trained for as many tokens and
for as many operations, by the acceptance of their target.
"""

from dataclasses import replace
from pathlib import Path
from typing import Mapping

import numpy as np
import pandas as pd
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from lib import replay
from lib.lab import stats
from lib.making import family
from lib.models import prompts
from lib.studies.acceptance import recording
from lib.trees import shapes

DISTILLED, EQUAL_TOKENS, EQUAL_COMPUTE = "distilled", "plain, as many tokens", "plain, as much computing"
SHAPES = ("chain:4", "kary:2@14", "expansion:2,2,1")
HORIZON = 16  # tokens that a real-text start looks ahead
TARGETS = {member.teacher: name for name, member in family.FAMILY.items() if member.teacher}


def parameters(member: family.Member) -> int:
    """The weights of a member, its embedding once: each costs two operations per token in a forward pass and four in a
    backward pass.
    """
    with torch.device("meta"):
        return sum(p.numel() for p in LlamaForCausalLM(member.config()).parameters())


def operations(member: family.Member) -> float:
    """The operations of a member's training: 6 P per token (Kaplan et al. 2020, section 2.1), and 2 P of the teacher
    for each token that it scores or writes.
    """
    plain = 6 * parameters(member) * member.tokens
    if member.teacher is None:
        return plain
    teacher = parameters(family.FAMILY[member.teacher])
    return plain + 2 * teacher * (member.tokens + family.own_tokens(member.plan))


def contenders(distilled: family.Member) -> dict[str, family.Member]:
    """The distilled member, and plain ones of its size, trained for as many tokens and for as many operations."""
    plain = replace(distilled, teacher=None)
    steps = round(operations(distilled) / operations(plain) * plain.plan.steps)
    return {DISTILLED: distilled, EQUAL_TOKENS: plain,
            EQUAL_COMPUTE: replace(plain, plan=replace(plain.plan, steps=steps))}


def compare(target: str, folder: Path, prompts_per_kind: int = 8, starts: int = 6, seed: int = 0) -> pd.DataFrame:
    """Trains missing contenders under `folder`, and measures the accepted length of each with each shape.

    One row per contender and shape: tokens of its training, operations, mean accepted length over real-text starts
    (greedy) and its paired difference from the distilled member, each with its 95 % interval over held-out prompts.
    ValueError for a target from which no member is distilled.
    """
    if target not in TARGETS:
        raise ValueError(f"no member is distilled from {target!r}; choose one of {', '.join(TARGETS)}")
    name = TARGETS[target]
    members = contenders(family.FAMILY[name])
    folders = {label: name if label == DISTILLED else f"{name} {label}" for label in members}
    for label, member in members.items():
        if not (folder / folders[label] / "model.safetensors").exists():
            family.make(folders[label], folder, member=member)
    rows = accepted(target, folders, folder, prompts_per_kind, starts)
    setting = ["shape", "contender"]
    rng = np.random.default_rng(seed)
    lengths = stats.summarise(rows, setting, "accepted", "rounds", rng)
    gap = stats.compare(rows, ["shape"], "contender", DISTILLED, "accepted", "rounds", rng)
    columns = {"value": "more_than_distilled", "low": "more_low", "high": "more_high"}
    lengths = lengths.merge(gap.rename(columns=columns)[[*setting, *columns.values()]], on=setting, how="left")
    cost = pd.DataFrame([(label, member.tokens, operations(member)) for label, member in members.items()],
                        columns=["contender", "tokens", "operations"])
    return lengths.merge(cost, on="contender").assign(target=target).round(4)


def write_rows(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Writes the rows of a target to a file, in place of its former rows; returns all rows of the file."""
    if path.exists():
        before = pd.read_csv(path)
        rows = pd.concat([before[~before["target"].isin(rows["target"])], rows], ignore_index=True)
    rows.to_csv(path, index=False)
    return rows


def accepted(target: str, drafters: Mapping[str, str], folder: Path, prompts_per_kind: int,
             starts: int) -> pd.DataFrame:
    """The tokens that a target under `folder` accepts of drafters there: contender, shape, prompt, accepted, rounds."""
    tokenizer = AutoTokenizer.from_pretrained(folder / target)
    held_out = prompts.load("", tokenizer, limit=family.WINDOW - HORIZON - 2, too_long="shorten",
                            first=prompts_per_kind)
    start_prompts = recording.real_text_starts(
        recording.Prompts(held_out.names, held_out.kinds, held_out.ids, np.zeros(len(held_out.ids), bool)), starts
    )
    models = {label: family.frozen_target(name, folder, "cpu") for label, name in drafters.items()}
    recorded = replay.record(family.frozen_target(target, folder, "cpu"), models, start_prompts.ids,
                             names=start_prompts.names, kinds=start_prompts.kinds, max_new_tokens=1, beyond=HORIZON,
                             eos_token_id=0)
    frames = [_rounds(recorded, shape, label).assign(contender=label, shape=shape, rounds=1)
              for label in drafters for shape in SHAPES]
    return pd.concat(frames, ignore_index=True)


def _rounds(recorded: replay.Trace, shape: str, drafter: str) -> pd.DataFrame:
    """The rounds at each row's first transition: prompt, accepted."""
    walk = replay.walk(recorded, shapes.parse(shape), drafter)
    walk = walk.select(walk.starts == 0)
    return pd.DataFrame(dict(prompt=np.array(recorded.prompts)[walk.rows], accepted=walk.accepted))
