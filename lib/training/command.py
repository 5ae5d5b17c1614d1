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
    options = parser.parse_args(arguments)
    changed = {name: getattr(options, name) for name in ("steps", "hours", "temperature")}
    changed = {name: value for name, value in changed.items() if value is not None}
    for name, value in (changed | {"tokens": options.tokens, "layers": options.layers}).items():
        if not value > 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; give a number above 0")

    try:
        checks.check_device(options.device, torch.float32)
        if options.command == "publish":
            publish(options.folder, Path("data/models"))
        elif options.command == "ngrams":
            ngrams.make(options.target, options.folder)
        elif options.command == "own_text":
            own_text.extend(load_pair(options.target, dtype="auto", device=options.device), options.folder, options.tokens)
        elif options.command == "nano":
            name = nano.NAME if options.layers == nano.SIZES["num_hidden_layers"] else f"{nano.NAME}-{options.layers}"
            nano.make(options.target, options.folder, plan=replace(nano.PLAN, **changed), name=name, device=options.device,
                      sizes=nano.SIZES | {"num_hidden_layers": options.layers})
        else:
            heads.make(options.target, options.kinds.split(","), options.folder, plan=replace(heads.PLAN, **changed),
                       device=options.device)
    except (ValueError, FileNotFoundError) as error:  # of a target, a kind, a device or a folder that cannot be used
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained draft models and heads to `shipped`, without their checkpoints."""
    for path in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        into = shipped / path.parent.relative_to(folder)
        shutil.copytree(path.parent, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
