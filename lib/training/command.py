"""`python -m lib training COMMAND [--folder DIR] [--steps N] ...`: makes the shipped models, heads and text again.

COMMAND is a member of the family, or one of `COMMANDS`.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Callable, Iterable, Sequence

import torch
from tokenizers import Tokenizer

from lib.decoding.loop import continuations
from lib.lab import atomic_file
from lib.training import data, example_log, family, heads, loop, nano, ngrams, own_text
from lib.training.corpus import mixture
from lib.models import checks, dialogue, prompts
from lib.models.load import load_pair
from lib.models.registry import SHIPPED, SMOLLM2

LONGEST = 256  # tokens of an answer to a chat prompt
ROWS = 16  # chat prompts of one forward pass
COMMANDS = {
    "all": "train all members",
    "prepare": "make the tokenizer and the token streams",
    "losses": "copy the trained models and heads to data/models, and write the members' held-out losses",
    "heads": "train heads of a target",
    "ngrams": "count a target's tables of n-grams",
    "own_text": "let a chat model write dialogues and list its most frequent tokens; further ones where there are some",
    "nano": "distil a small draft model from a chat model on its dialogues",
    "prompts": "cut the family's held-out prompts",
    "chat_answers": "record the headline target's first answers to chat prompts with a second turn",
    "example_log": "let base answer prompts, as a server would log them",
}


def main(arguments: Sequence[str]) -> None:
    """Carries out a command; an interrupted training resumes from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m lib training", description="Make shipped models, heads and text.")
    explained = "; ".join(f"{name}: {what}" for name, what in COMMANDS.items())
    parser.add_argument("command", choices=[*family.FAMILY, *COMMANDS], metavar="COMMAND",
                        help=f"{', '.join(family.FAMILY)}: train this member; {explained}")
    parser.add_argument("--folder", type=Path, default=Path("data/runs/training"),
                        help="folder of tokens, checkpoints and trained models (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="optimiser steps of one schedule, instead of the default")
    parser.add_argument("--learning-rate", type=float, help="the highest of a training, instead of the default")
    parser.add_argument("--hours", type=float, help="the most that a training may take, earlier runs of it included; "
                        "its schedule ends with them, after fewer steps where that is needed")
    parser.add_argument("--device", default="cpu", help="where a member or head is trained (default: %(default)s)")
    parser.add_argument("--target", help="the target of heads or ngrams: a trained member, a shipped model or a folder "
                        f"(default: base); of own_text and nano: a chat model (default: {SMOLLM2})")
    parser.add_argument("--tokens", type=int, default=2_000_000,
                        help="of own_text, those included that are committed (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=nano.SIZES["num_hidden_layers"],
                        help="of nano, called nano-LAYERS with other than %(default)s (default: %(default)s)")
    parser.add_argument("--kinds", default="medusa", help="kinds of heads, with commas, which learn from the same pass "
                        f"of the target: {', '.join(heads.LOSSES)} (default: %(default)s)")
    given = parser.parse_args(arguments)
    changed = {name: value for name in ("steps", "learning_rate", "hours") if (value := getattr(given, name)) is not None}
    for name, value in (changed | {"tokens": given.tokens, "layers": given.layers}).items():
        if not value > 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; give a number above 0")
    given.target = given.target or (SMOLLM2 if given.command in ("own_text", "nano") else "base")

    try:
        checks.check_device(given.device, torch.float32)
        _carry_out(given, lambda plan: replace(plan, **changed))
    except (ValueError, FileNotFoundError) as error:  # of a target, a kind, a device or a folder that cannot be used
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


def _carry_out(given: argparse.Namespace, planned: Callable[[loop.Plan], loop.Plan]) -> None:
    """Makes what a command asks for; planned: a plan with the changes that it asks for."""
    if given.command == "prepare":
        data.prepare(given.folder)
    elif given.command == "losses":
        publish(given.folder, Path("data/models"))
    elif given.command == "ngrams":
        ngrams.make(given.target, given.folder)
    elif given.command == "own_text":
        pair = load_pair(given.target, dtype="auto", device=given.device)
        own_text.template(pair.tokenizer)  # refuses models that are not for chats, before anything is written
        path, chunks = own_text.path_of(pair.target_name), own_text.chunks_of(pair.target_name, given.folder)
        before = own_text.load(path) if path.is_file() else None
        made = own_text.make(pair.target, pair.tokenizer, chunks, tokens=given.tokens, before=before)
        if before is None:
            own_text.publish(made, pair.target_name)
    elif given.command == "nano":
        name = nano.NAME if given.layers == nano.SIZES["num_hidden_layers"] else f"{nano.NAME}-{given.layers}"
        nano.make(given.target, given.folder, plan=planned(nano.PLAN), name=name, device=given.device,
                  sizes=nano.SIZES | {"num_hidden_layers": given.layers})
    elif given.command == "prompts":
        cut_prompts(SHIPPED / "base" / "tokenizer.json", prompts.FAMILY)
    elif given.command == "chat_answers":
        answer_chat_prompts()
    elif given.command == "example_log":
        example_log.make(Path("data/logs/example.jsonl"))
    elif given.command == "heads":
        heads.make(given.target, given.kinds.split(","), given.folder, plan=planned(heads.plan_of(given.target)),
                   device=given.device)
    else:
        for name in family.FAMILY if given.command == "all" else [given.command]:
            member = family.FAMILY[name]
            member = replace(member, plan=planned(member.plan), further=None if given.steps else member.further)
            family.make(name, given.folder, member=member, device=given.device)


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained models and heads to `shipped`, and writes the members' held-out loss by kind of text."""
    for made in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        into = shipped / made.parent.relative_to(folder)
        shutil.copytree(made.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
    trained = [name for name in family.FAMILY if (folder / name / "model.safetensors").exists()]
    if not trained:
        print(f"no member of the family is trained under {folder}, so that losses.csv stays as it is")
        return
    for name in trained:
        shutil.copytree(folder / name, shipped / name, dirs_exist_ok=True)
        (shipped / name / "model.safetensors").chmod(0o644)
    table = family.losses(trained, folder)
    table.to_csv(shipped / "losses.csv", index=False)
    print(table.pivot(index="kind", columns="member", values="nats_a_token")[trained].round(2).to_string())


def cut_prompts(tokenizer: Path, path: Path, per_kind: int = 40) -> None:
    """Writes held-out prompts of each kind of text."""
    count = Tokenizer.from_file(str(tokenizer)).encode
    _write(path, mixture.prompts(lambda text: len(count(text)), per_kind))


@torch.inference_mode()
def answer_chat_prompts(path: Path = prompts.CHAT, target: str = SMOLLM2) -> None:
    """Writes the target's greedy answer to the first turn into each row with a second turn, as answers: [text]."""
    pair = load_pair(target, dtype="auto")
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    answered = [row for row in rows if len(row["turns"]) == 2]
    first = [dialogue.tokenise(dialogue.of_user(row["turns"][0]), pair.tokenizer) for row in answered]
    written = continuations(pair.target, first, max_new_tokens=LONGEST, rows=ROWS, eos_token_id=pair.eos_token_ids)
    for row, answer in zip(answered, written):
        row["answers"] = [pair.tokenizer.decode(answer, skip_special_tokens=True)]
    _write(path, rows)


def _write(path: Path, rows: Iterable[dict]) -> None:
    """Writes rows, one per line."""
    atomic_file.replace(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
