"""What distillation buys: a distilled member against plain ones of its size, trained for as many tokens and for as much
computing, judged by what their target accepts from them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Mapping

import numpy as np
import pandas as pd
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from lib import attention, replay
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
    """Weights of a member, its embedding once: each costs two operations a token forwards, four backwards."""
    with torch.device("meta"):
        return sum(p.numel() for p in LlamaForCausalLM(member.config()).parameters())


def operations(member: family.Member) -> float:
    """Operations of a member's training: 6 P a token (Kaplan et al. 2020, section 2.1), and 2 P of the teacher's for
    each token that it judges or writes.
    """
    plain = 6 * parameters(member) * member.tokens
    if member.teacher is None:
        return plain
    teacher = parameters(family.FAMILY[member.teacher])
    return plain + 2 * teacher * (member.tokens + family.own_tokens(member.plan))


def contenders(distilled: family.Member) -> dict[str, family.Member]:
    """The distilled member, and plain ones of its size that saw as many tokens, and that cost as many operations."""
    plain = replace(distilled, teacher=None)
    steps = round(operations(distilled) / operations(plain) * plain.plan.steps)
    return {
        DISTILLED: distilled,
        EQUAL_TOKENS: plain,
        EQUAL_COMPUTE: replace(plain, plan=replace(plain.plan, steps=steps)),
    }


def compare(
    target: str, folder: Path, prompts_a_kind: int = 8, starts: int = 6, seed: int = 0
) -> pd.DataFrame:
    """Trains what is missing under `folder`, and says for each shape what a target accepts of each contender.

    One row a contender and shape: tokens seen, operations, mean accepted length over real-text starts (greedy) and its
    paired difference from the distilled member, each with its 95 % interval over held-out prompts. ValueError for a
    target that no member was distilled from.
    """
    if target not in TARGETS:
        raise ValueError(f"no member is distilled from {target!r}; choose one of {', '.join(TARGETS)}")
    attention.register()
    name = TARGETS[target]
    members = contenders(family.FAMILY[name])
    folders = {label: name if label == DISTILLED else f"{name} {label}" for label in members}
    for label, member in members.items():
        if not (folder / folders[label] / "model.safetensors").exists():
            family.make(folders[label], folder, member=member)
    rows = accepted(target, {label: folder / where for label, where in folders.items()}, folder, prompts_a_kind, starts)
    setting = ["shape", "contender"]
    rng = np.random.default_rng(seed)
    found = stats.summarise(rows, setting, "accepted", "rounds", rng)
    gap = stats.compare(rows, ["shape"], "contender", DISTILLED, "accepted", "rounds", rng)
    columns = {"value": "more_than_distilled", "low": "more_low", "high": "more_high"}
    found = found.merge(gap.rename(columns=columns)[[*setting, *columns.values()]], on=setting, how="left")
    cost = pd.DataFrame(
        [(label, member.tokens, operations(member)) for label, member in members.items()],
        columns=["contender", "tokens", "operations"],
    )
    return found.merge(cost, on="contender").assign(target=target).round(4)


def put(path: Path, found: pd.DataFrame) -> pd.DataFrame:
    """Writes the rows of a target in the place of those that a file has of it; all its rows."""
    if path.exists():
        before = pd.read_csv(path)
        found = pd.concat([before[~before["target"].isin(found["target"])], found], ignore_index=True)
    found.to_csv(path, index=False)
    return found


def accepted(
    target: str, drafters: Mapping[str, Path], folder: Path, prompts_a_kind: int, starts: int
) -> pd.DataFrame:
    """What the target under `folder` accepts of drafters: contender, shape, prompt, accepted, rounds."""

    def load(path: Path) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="tree").eval()

    tokenizer = AutoTokenizer.from_pretrained(folder / target)
    held_out = prompts.load("", tokenizer, limit=family.WINDOW - HORIZON - 2, too_long="shorten", first=prompts_a_kind)
    asked = recording.real_text_starts(
        recording.Prompts(held_out.names, held_out.kinds, held_out.ids, np.zeros(len(held_out.ids), bool)), starts
    )
    recorded = replay.record(
        load(folder / target),
        {label: load(path) for label, path in drafters.items()},
        asked.ids,
        names=asked.names,
        kinds=asked.kinds,
        max_new_tokens=HORIZON,
        eos_token_id=0,
    )
    return pd.concat(
        [
            _rounds(recorded, shape, label).assign(contender=label, shape=shape, rounds=1)
            for label in drafters
            for shape in SHAPES
        ],
        ignore_index=True,
    )


def _rounds(recorded: replay.Trace, shape: str, drafter: str) -> pd.DataFrame:
    """The round at each row's first transition: prompt, accepted; what the continuation's end cut short is left out."""
    walk = replay.walk(recorded, shapes.parse(shape), drafter)
    walk = walk.select((walk.starts == 0) & ~walk.cut)
    return pd.DataFrame(dict(prompt=np.array(recorded.prompts)[walk.rows], accepted=walk.accepted))
