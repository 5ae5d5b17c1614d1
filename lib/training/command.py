"""`python -m lib training COMMAND [--folder DIR] [--steps N] ...`, where COMMAND is one of `COMMANDS`."""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Sequence

import torch

from lib.forward.load import load_pair
from lib.models import checks
from lib.models.registry import SMOLLM2
from lib.training import heads, nano, ngrams, own_text

COMMANDS = {
    "heads": "train heads of a target",
    "ngrams": "count a target's tables of n-grams",
    "own_text": "let a model write text and list its most frequent tokens; further text where there is some",
    "nano": "distil a small draft model from a chat model on its dialogues",
    "publish": "copy the trained models and heads to data/models",
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
    parser.add_argument("--temperature", type=float, help="of both distributions, where a head or nano learns the "
                        "target's (default: 1)")
    parser.add_argument("--device", default="cpu", help="where a model or head is trained (default: %(default)s)")
    parser.add_argument("--target", default=SMOLLM2, help="a shipped model or a folder (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2_000_000,
                        help="of own_text, those included that are committed (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=nano.SIZES["num_hidden_layers"],
                        help="of nano, called nano-LAYERS with other than %(default)s (default: %(default)s)")
    parser.add_argument("--kinds", default="medusa", help="kinds of heads, with commas, which learn from the same pass "
                        f"of the target: {', '.join(heads.LOSSES)} (default: %(default)s)")
    given = parser.parse_args(arguments)
    changed = {name: getattr(given, name) for name in ("steps", "learning_rate", "hours", "temperature")}
    changed = {name: value for name, value in changed.items() if value is not None}
    for name, value in (changed | {"tokens": given.tokens, "layers": given.layers}).items():
        if not value > 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; give a number above 0")

    try:
        checks.check_device(given.device, torch.float32)
        if given.command == "publish":
            publish(given.folder, Path("data/models"))
        elif given.command == "ngrams":
            ngrams.make(given.target, given.folder)
        elif given.command == "own_text":
            own_text.extend(load_pair(given.target, dtype="auto", device=given.device), given.folder, given.tokens)
        elif given.command == "nano":
            name = nano.NAME if given.layers == nano.SIZES["num_hidden_layers"] else f"{nano.NAME}-{given.layers}"
            nano.make(given.target, given.folder, plan=replace(nano.PLAN, **changed), name=name, device=given.device,
                      sizes=nano.SIZES | {"num_hidden_layers": given.layers})
        else:
            heads.make(given.target, given.kinds.split(","), given.folder, plan=replace(heads.PLAN, **changed),
                       device=given.device)
    except (ValueError, FileNotFoundError) as error:  # of a target, a kind, a device or a folder that cannot be used
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained draft models and heads to `shipped`, without their checkpoints."""
    for path in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        into = shipped / path.parent.relative_to(folder)
        shutil.copytree(path.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
