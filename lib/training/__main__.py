"""`python -m lib.training MEMBER|all [--folder DIR] [--steps N]`: trains members of the family, resuming where it stopped."""

import argparse
from dataclasses import replace
from pathlib import Path

from lib.training import family


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(prog="python -m lib.training", description=__doc__)
    parser.add_argument("member", choices=[*family.FAMILY, "all", "prepare"])
    parser.add_argument("--folder", type=Path, default=Path("data/runs/training"))
    parser.add_argument("--steps", type=int, help="optimiser steps, instead of the member's own number")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.member == "prepare":
        family.prepare(given.folder)
        return
    for name in family.FAMILY if given.member == "all" else [given.member]:
        plan = family.FAMILY[name].plan
        model = family.make(name, given.folder, plan=replace(plan, steps=given.steps) if given.steps else plan, device=given.device)
        print(name, "held-out loss by kind:", {kind: round(loss, 3) for kind, loss in family.losses(model, given.folder).items()})


if __name__ == "__main__":
    main()
