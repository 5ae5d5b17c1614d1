"""`python -m lib.training MEMBER|all|losses [--folder DIR] [--steps N]`: trains members of the family, or publishes
their losses.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from lib.training import family


def main() -> None:
    """Reads the command line and trains; a stopped training goes on from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m lib.training", description=__doc__)
    parser.add_argument(
        "member",
        choices=[*family.FAMILY, "all", "prepare", "losses"],
        help="a member; all of them; the tokens alone; or: copy trained members to data/models with their losses",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("data/runs/training"), help="where tokens, checkpoints and models go"
    )
    parser.add_argument("--steps", type=int, help="optimiser steps, instead of the member's own number")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.member == "prepare":
        family.prepare(given.folder)
    elif given.member == "losses":
        publish(given.folder, Path("data/models"))
    else:
        for name in family.FAMILY if given.member == "all" else [given.member]:
            plan = family.FAMILY[name].plan
            family.make(
                name, given.folder, plan=replace(plan, steps=given.steps) if given.steps else plan, device=given.device
            )


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained members to `shipped`, and writes their held-out loss by kind of text beside them."""
    trained = [name for name in family.FAMILY if (folder / name / "model.safetensors").exists()]
    for name in trained:
        shutil.copytree(folder / name, shipped / name, dirs_exist_ok=True)
        (shipped / name / "model.safetensors").chmod(0o644)
    table = family.losses(trained, folder)
    table.to_csv(shipped / "losses.csv", index=False)
    print(table.pivot(index="kind", columns="member", values="nats_a_token")[trained].round(2).to_string())


if __name__ == "__main__":
    main()
