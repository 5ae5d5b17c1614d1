"""`python -m lib making MEMBER|all|prepare|losses|distillation|boosting|heads|ngrams|prompts [--folder DIR] [--steps N]`:
trains members of the family or a head of a target (`heads --target base --kind medusa`), counts its n-grams, publishes
what was made with its losses, or compares distilled members with plain ones, and boost-tuned drafters with others.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Sequence

from tokenizers import Tokenizer

from lib.making import boosting, distillation, family, heads, ngrams
from lib.making.corpus import held_out
from lib.models.prompts import FAMILY as FAMILY_PROMPTS
from lib.models.registry import SHIPPED


def main(arguments: Sequence[str]) -> None:
    """Carries out a command; a stopped training goes on from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m lib making", description=__doc__)
    parser.add_argument(
        "member",
        choices=[*family.FAMILY, "all", "prepare", "losses", "distillation", "boosting", "heads", "ngrams", "prompts"],
        help="a member; all of them; the tokens alone; losses: copy what was trained to data/models with its losses; "
        "distillation: what it buys, beside plain training for as many tokens and for as much computing; boosting: "
        "what drafters cover that learn where others fail; a head; a target's tables of n-grams; or the family's held-out prompts",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("data/runs/training"), help="where tokens, checkpoints and models go"
    )
    parser.add_argument("--steps", type=int, help="optimiser steps of one schedule, instead of the member's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target", default="base", help="of what was distilled or boosted, or of a head (which may "
                        "have a shipped model or a folder, too): a trained member")
    parser.add_argument("--kind", default="medusa", choices=list(heads.PLANS), help="of a head")
    given = parser.parse_args(arguments)
    if given.member == "prepare":
        family.prepare(given.folder)
    elif given.member == "losses":
        publish(given.folder, Path("data/models"))
    elif given.member == "distillation":
        table = distillation.compare(given.target, given.folder)
        print(distillation.put(Path("data/models/distillation.csv"), table).to_string())
    elif given.member == "boosting":
        table = boosting.compare(given.target, given.folder)
        print(distillation.put(Path("data/models/boosting.csv"), table).to_string())
    elif given.member == "ngrams":
        ngrams.make(given.target, given.folder)
    elif given.member == "prompts":
        cut_prompts(SHIPPED / "base" / "tokenizer.json", FAMILY_PROMPTS)
    elif given.member == "heads":
        plan = heads.PLANS[given.kind]
        plan = replace(plan, steps=given.steps) if given.steps else plan
        heads.make(given.target, given.kind, given.folder, plan=plan, device=given.device)
    else:
        for name in family.FAMILY if given.member == "all" else [given.member]:
            member = family.FAMILY[name]
            if given.steps:
                member = replace(member, plan=replace(member.plan, steps=given.steps), further=None)
            family.make(name, given.folder, member=member, device=given.device)


def publish(folder: Path, shipped: Path) -> None:
    """Copies the trained members and heads to `shipped`, and writes the members' held-out loss by kind of text."""
    for head in (folder / "heads").glob("*/*/model.safetensors"):
        kept = shipped / head.parent.relative_to(folder)
        shutil.copytree(head.parent, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
    trained = [name for name in family.FAMILY if (folder / name / "model.safetensors").exists()]
    for name in trained:
        shutil.copytree(folder / name, shipped / name, dirs_exist_ok=True)
        (shipped / name / "model.safetensors").chmod(0o644)
    table = family.losses(trained, folder)
    table.to_csv(shipped / "losses.csv", index=False)
    print(table.pivot(index="kind", columns="member", values="nats_a_token")[trained].round(2).to_string())


def cut_prompts(tokenizer: Path, target: Path, per_kind: int = 40) -> None:
    """Writes held-out prompts of every kind of text, one per line."""
    count = Tokenizer.from_file(str(tokenizer)).encode
    lines = [json.dumps(row) for row in held_out.rows(lambda text: len(count(text)), per_kind)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
