"""The example of a log, data/logs/example.jsonl: answers that the shipped `base` sampled, as a server would log them:
`python -m lib training example_log`.

Of every second answer the token ids are logged, as vLLM does where they are asked for; of the others the text alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from lib.decoding.loop import continuations
from lib.models import prompts
from lib.models.held_out import REAL_KINDS
from lib.models.load import load_pair

OF_KIND, TOKENS, TEMPERATURE, SEED = 4, 64, 0.7, 5
CREATED = 1_764_000_000  # the time that its lines tell: the same in every making


def make(path: Path) -> None:
    """Writes the file: prompts of generated kinds alone, since no text of packages is stored."""
    pair = load_pair("base", dtype="float32")
    asked = prompts.load("family", pair.tokenizer, first=OF_KIND, limit=pair.window - TOKENS)
    asked = asked.select([row for row, kind in enumerate(asked.kinds) if kind not in REAL_KINDS])
    written = continuations(pair.target, list(asked.ids), max_new_tokens=TOKENS, rows=8, temperature=TEMPERATURE,
                            eos_token_id=pair.eos_token_ids, generator=torch.Generator().manual_seed(SEED))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines(pair, asked, written)) + "\n", encoding="utf-8")


def lines(pair, asked: prompts.PromptSet, written: list[list[int]]) -> Iterator[str]:
    """A line for each answer."""
    for place, (name, kind, prompt, ids) in enumerate(zip(asked.names, asked.kinds, asked.ids, written)):
        ended = ids[-1] in pair.eos_token_ids
        choice = {"text": pair.tokenizer.decode(ids[:-1] if ended else ids, clean_up_tokenization_spaces=False),
                  "finish_reason": "stop" if ended else "length", "stop_reason": None}
        choice |= {"token_ids": ids} if place % 2 == 0 else {}
        yield json.dumps({
            "id": name, "category": kind,
            "request": {"model": "base", "prompt": pair.tokenizer.decode(prompt, clean_up_tokenization_spaces=False),
                        "temperature": TEMPERATURE, "max_tokens": TOKENS},
            "response": {"created": CREATED, "prompt_token_ids": prompt.tolist(), "choices": [choice]}},
            ensure_ascii=False)
