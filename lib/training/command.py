"""`python -m lib training COMMAND [--folder DIR] [--steps N] ...`, where COMMAND is one of `COMMANDS`."""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Sequence

from lib.forward.load import load_pair
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
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND",
                        help="; ".join(f"{name}: {purpose}" for name, purpose in COMMANDS.items()))
    for name, kind, default, explanation in (
            ("folder", Path, Path("data/runs/training"), "of text, checkpoints and trained models"),
            ("target", str, SMOLLM2, "a shipped model or a folder"),
            ("device", str, "cpu", "where a model or head is trained"),
            ("kinds", str, "medusa", "of heads, with commas, which learn from the same pass of the target: "
             + ", ".join(heads.LOSSES)),
            ("steps", int, None, "optimiser steps of one schedule, instead of the plan's"),
            ("hours", float, None, "the most that a training takes, earlier runs included; its schedule ends with them"),
            ("temperature", float, None, "of both distributions, where a head or nano learns the target's; 1 if not set"),
            ("tokens", int, 2_000_000, "of own_text, those included that are committed"),
            ("layers", int, nano.SIZES["num_hidden_layers"], "of nano, called nano-LAYERS with other than the default")):
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{explanation} (default: %(default)s)")
    options = parser.parse_args(arguments)
    values = {name: value for name, value in vars(options).items() if type(value) in (int, float)}
    for name, value in values.items():
        if not value > 0:
            parser.error(f"--{name} is {value}; give a number above 0")
    changed = {name: values[name] for name in ("steps", "hours", "temperature") if name in values}

    try:
        if options.command == "publish":
            publish(options.folder, Path("data/models"))
        elif options.command == "ngrams":
            ngrams.make(options.target, options.folder)
        elif options.command == "own_text":
            own_text.write(load_pair(options.target, device=options.device), options.folder, options.tokens)
        elif options.command == "nano":
            nano.make(options.target, options.folder, replace(nano.PLAN, **changed), options.layers, options.device)
        else:
            heads.make(options.target, options.kinds.split(","), options.folder, replace(heads.PLAN, **changed),
                       options.device)
    except (ValueError, FileNotFoundError) as error:  # of a target, a kind, a device or a folder that cannot be used
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained draft models and heads to `shipped`."""
    for path in (*(folder / "heads").glob("*/*/model.safetensors"), *folder.glob(f"*/{nano.NAME}/model.safetensors")):
        shutil.copytree(path.parent, shipped / path.parent.relative_to(folder), dirs_exist_ok=True)
