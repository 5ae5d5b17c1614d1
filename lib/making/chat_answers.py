"""The headline target's own greedy answers to chat prompts with a second turn; `python -m lib making chat_answers`."""

import json
import os
from pathlib import Path

import torch

from lib.decoding.batch import continuations
from lib.models import dialogue
from lib.models.load import load_pair
from lib.models.prompts import CHAT
from lib.models.registry import SMOLLM2

LONGEST = 256  # tokens of an answer
ROWS = 16  # prompts of one forward pass


@torch.inference_mode()
def make(path: Path = CHAT, target: str = SMOLLM2) -> None:
    """Writes the first answer of each row with a second turn into the row, as answers: [text]."""
    pair = load_pair(target, dtype="auto")
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    asked = [row for row in rows if len(row["turns"]) == 2]
    prompts = [dialogue.tokenise(dialogue.of_user(row["turns"][0]), pair.tokenizer) for row in asked]
    written = continuations(pair.target, prompts, max_new_tokens=LONGEST, rows=ROWS, eos_token_id=pair.eos_token_ids)
    for row, answer in zip(asked, written):
        row["answers"] = [pair.tokenizer.decode(answer, skip_special_tokens=True)]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(partial, path)
