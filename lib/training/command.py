"""Makes draft models, heads, n-gram tables and the text that they learn from; an interrupted command resumes.

own_text   lets a chat model write dialogues
heads      trains heads of a target, or a small draft model, on its dialogues
ngrams     counts a target's tables of n-grams in its dialogues
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lib import forward
from lib.models import load
from lib.models.registry import SMOLLM2
from lib.training import heads, own_text


def main(arguments: Sequence[str]) -> None:
    """Carries out `python -m lib training COMMAND ...`; SystemExit with one line for values that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m lib training", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["own_text", "heads", "ngrams"])
    for name, kind, default, explanation in (
            ("target", str, SMOLLM2, "a chat model: a shipped one or a folder"),
            ("folder", Path, Path("data/runs/training"), "of trained models, heads and tables"),
            ("device", str, "cpu", "where models run"),
            ("kinds", str, "medusa", "with commas: medusa, eagle3, dflash, dspark, and nano, a draft model"),
            ("steps", int, None, "optimiser steps, instead of the plan's"),
            ("temperature", float, 1.0, "of the distributions of target and model"),
            ("tokens", int, 2_000_000, "of own_text, earlier ones included")):
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{explanation} (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if options.command == "own_text":
            return own_text.write(forward.load_pair(options.target, "auto", options.device), options.tokens)
        pair = load.load_pair(options.target, "float32", options.device)  # training reads whole weights
        if options.command == "ngrams":
            own_text.count_ngrams(pair, options.folder)
        else:
            heads.make(pair, options.kinds.split(","), options.folder, options.steps, options.temperature)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
