"""`python -m lib training COMMAND [--folder DIR] [--steps N] ...`, where COMMAND is one of `COMMANDS`."""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Callable, Sequence

import torch

from lib.decoding.loop import continuations
from lib.forward.load import load_pair
from lib.lab import atomic_file
from lib.models import checks, dialogue, prompts
from lib.models.registry import SMOLLM2
from lib.training import heads, loop, nano, ngrams, own_text

LONGEST = 256  # tokens of an answer to a chat prompt
ROWS = 16  # chat prompts of one forward pass
COMMANDS = {
    "heads": "train heads of a target",
    "ngrams": "count a target's tables of n-grams",
    "own_text": "let a model write text and list its most frequent tokens; further text where there is some",
    "nano": "distil a small draft model from a chat model on its dialogues",
    "publish": "copy the trained models and heads to data/models",
    "chat_answers": "record the headline target's first answers to chat prompts with a second turn",
}


def main(arguments: Sequence[str]) -> None:
    """Carries out a command; an interrupted training resumes from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m lib training", description="Make shipped models, heads and text.")
    explained = "; ".join(f"{name}: {what}" for name, what in COMMANDS.items())
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=explained)
    parser.add_argument("--folder", type=Path, default=Path("data/runs/training"),
                        help="folder of text, checkpoints and trained models (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="optimiser steps of one schedule, instead of the default")
    parser.add_argument("--learning-rate", type=float, help="the highest of a training, instead of the default")
    parser.add_argument("--hours", type=float, help="the most that a training may take, earlier runs of it included; "
                        "its schedule ends with them, after fewer steps where that is needed")
    parser.add_argument("--device", default="cpu", help="where a model or head is trained (default: %(default)s)")
    parser.add_argument("--target", default=SMOLLM2, help="a shipped model or a folder (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2_000_000,
                        help="of own_text, those included that are committed (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=nano.SIZES["num_hidden_layers"],
                        help="of nano, called nano-LAYERS with other than %(default)s (default: %(default)s)")
    parser.add_argument("--kinds", default="medusa", help="kinds of heads, with commas, which learn from the same pass "
                        f"of the target: {', '.join(heads.LOSSES)} (default: %(default)s)")
    given = parser.parse_args(arguments)
    changed = {name: getattr(given, name) for name in ("steps", "learning_rate", "hours")}
    changed = {name: value for name, value in changed.items() if value is not None}
    for name, value in (changed | {"tokens": given.tokens, "layers": given.layers}).items():
        if not value > 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; give a number above 0")

    try:
        checks.check_device(given.device, torch.float32)
        _carry_out(given, lambda plan: replace(plan, **changed))
    except (ValueError, FileNotFoundError) as error:  # of a target, a kind, a device or a folder that cannot be used
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


def _carry_out(given: argparse.Namespace, planned: Callable[[loop.Plan], loop.Plan]) -> None:
    """Makes what a command asks for; planned: a plan with the changes that it asks for."""
    if given.command == "publish":
        publish(given.folder, Path("data/models"))
    elif given.command == "ngrams":
        ngrams.make(given.target, given.folder)
    elif given.command == "own_text":
        pair = load_pair(given.target, dtype="auto", device=given.device)
        own_text.template(pair.tokenizer)  # refuses tokenizers that cannot begin a text, before anything is written
        path, chunks = own_text.path_of(pair.target_name), own_text.chunks_of(pair.target_name, given.folder)
        before = own_text.load(path) if path.is_file() else None
        made = own_text.make(pair.target, pair.tokenizer, chunks, tokens=given.tokens, before=before)
        if before is None:
            own_text.publish(made, pair.target_name)
    elif given.command == "nano":
        name = nano.NAME if given.layers == nano.SIZES["num_hidden_layers"] else f"{nano.NAME}-{given.layers}"
        nano.make(given.target, given.folder, plan=planned(nano.PLAN), name=name, device=given.device,
                  sizes=nano.SIZES | {"num_hidden_layers": given.layers})
    elif given.command == "chat_answers":
        answer_chat_prompts()
    else:
        heads.make(given.target, given.kinds.split(","), given.folder, plan=planned(heads.PLAN), device=given.device)


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained draft models and heads to `shipped`, without their checkpoints."""
    for made in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        into = shipped / made.parent.relative_to(folder)
        shutil.copytree(made.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))


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
    atomic_file.replace(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
