"""`python -m lib making COMMAND [--folder DIR] [--steps N] ...`: makes the shipped models, heads and text again.

COMMAND is a member of the family, or one of `COMMANDS`.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Sequence

from tokenizers import Tokenizer

from lib.making import chat_answers, family, heads, nano, ngrams, own_text
from lib.making.corpus import mixture
from lib.models.load import load_pair
from lib.models.prompts import FAMILY as FAMILY_PROMPTS
from lib.models.registry import SHIPPED, SMOLLM2

COMMANDS = {
    "all": "train all members",
    "prepare": "make the tokenizer and the token streams",
    "losses": "copy the trained models and heads to data/models, and write the members' held-out losses",
    "heads": "train a head of a target",
    "ngrams": "count a target's tables of n-grams",
    "own_text": "let a chat model write dialogues into data/text, and list its most frequent tokens",
    "nano": "distil a small draft model from a chat model on its dialogues",
    "prompts": "cut the family's held-out prompts",
    "chat_answers": "record the headline target's first answers to chat prompts with a second turn",
}


def main(arguments: Sequence[str]) -> None:
    """Carries out a command; an interrupted training resumes from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m lib making", description="Make shipped models, heads and text.")
    explained = "; ".join(f"{name}: {what}" for name, what in COMMANDS.items())
    parser.add_argument("command", choices=[*family.FAMILY, *COMMANDS], metavar="COMMAND",
                        help=f"{', '.join(family.FAMILY)}: train this member; {explained}")
    parser.add_argument("--folder", type=Path, default=Path("data/runs/training"),
                        help="folder of tokens, checkpoints and trained models (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="optimiser steps of one schedule, instead of the default")
    parser.add_argument("--device", default="cpu", help="where a member or head is trained (default: %(default)s)")
    parser.add_argument("--target", help="the target of heads or ngrams: a trained member, a shipped model or a folder "
                        f"(default: base); of own_text and nano: a chat model (default: {SMOLLM2})")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of own_text (default: %(default)s)")
    parser.add_argument("--kind", default="medusa", choices=list(heads.PLANS),
                        help="the kind of head (default: %(default)s)")
    given = parser.parse_args(arguments)
    given.target = given.target or (SMOLLM2 if given.command in ("own_text", "nano") else "base")
    if given.command == "prepare":
        family.prepare(given.folder)
    elif given.command == "losses":
        publish(given.folder, Path("data/models"))
    elif given.command == "ngrams":
        ngrams.make(given.target, given.folder)
    elif given.command == "own_text":
        pair = load_pair(given.target, dtype="auto", device=given.device)
        own_text.publish(own_text.make(pair.target, pair.tokenizer, given.folder / "own_text" / pair.target_name,
                                       tokens=given.tokens), pair.target_name)
    elif given.command == "nano":
        plan = replace(nano.PLAN, steps=given.steps) if given.steps else nano.PLAN
        nano.make(given.target, given.folder, plan=plan, device=given.device)
    elif given.command == "prompts":
        cut_prompts(SHIPPED / "base" / "tokenizer.json", FAMILY_PROMPTS)
    elif given.command == "chat_answers":
        chat_answers.make()
    elif given.command == "heads":
        plan = heads.PLANS[given.kind]
        plan = replace(plan, steps=given.steps) if given.steps else plan
        heads.make(given.target, given.kind, given.folder, plan=plan, device=given.device)
    else:
        for name in family.FAMILY if given.command == "all" else [given.command]:
            member = family.FAMILY[name]
            if given.steps:
                member = replace(member, plan=replace(member.plan, steps=given.steps), further=None)
            family.make(name, given.folder, member=member, device=given.device)


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained models and heads to `shipped`, and writes the members' held-out loss by kind of text."""
    for made in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        into = shipped / made.parent.relative_to(folder)
        shutil.copytree(made.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
    trained = [name for name in family.FAMILY if (folder / name / "model.safetensors").exists()]
    if not trained:
        return
    for name in trained:
        shutil.copytree(folder / name, shipped / name, dirs_exist_ok=True)
        (shipped / name / "model.safetensors").chmod(0o644)
    table = family.losses(trained, folder)
    table.to_csv(shipped / "losses.csv", index=False)
    print(table.pivot(index="kind", columns="member", values="nats_a_token")[trained].round(2).to_string())


def cut_prompts(tokenizer: Path, target: Path, per_kind: int = 40) -> None:
    """Writes held-out prompts of each kind of text, one per line."""
    count = Tokenizer.from_file(str(tokenizer)).encode
    lines = [json.dumps(row) for row in mixture.prompts(lambda text: len(count(text)), per_kind)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
