"""Prompts: JSON Lines in Spec-Bench's form, read with an error that names the line, and tokenised as a chat where that is usual."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from lib.corpus import held_out

FAMILY = Path(__file__).parent.parent / "data" / "prompts" / "family.jsonl"
FIELDS = ("question_id", "category")


@dataclass(frozen=True)
class PromptSet:
    """Tokenised prompts: names, kinds of text, ids int64[T] each; and a hash of their text."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[Tensor, ...]
    digest: str


def load(path: str | Path, tokenizer, limit: int | None = None) -> PromptSet:
    """The prompts of a file ("" for the shipped family's held-out ones), in its order.

    Each line is an object with question_id, category and turns (of which the first is asked), or in place of turns a
    `source` that finds the text in an installed package. Where the tokenizer has a chat template, turns go through it.
    limit: tokens that a prompt may have. ValueError names file and line.
    """
    path = Path(path) if path else FAMILY
    rows = read(path)
    texts = [text_of(row, path, number) for number, row in enumerate(rows, 1)]
    ids = [_tokens(text, tokenizer, raw="source" in row or path == FAMILY) for text, row in zip(texts, rows)]
    for number, tokens in enumerate(ids, 1):
        if limit and len(tokens) > limit:
            raise ValueError(f"{path}, line {number}: the prompt has {len(tokens)} tokens, {limit} fit beside what is generated; "
                             "shorten it, or lower new_tokens")
    digest = sha256("\x1e".join(texts).encode()).hexdigest()
    return PromptSet(tuple(str(row["question_id"]) for row in rows), tuple(row["category"] for row in rows), tuple(ids), digest)


def read(path: Path) -> list[dict]:
    """The file's objects, checked. ValueError names file, line and what is wrong; FileNotFoundError a missing file."""
    if not path.exists():
        raise FileNotFoundError(f"no prompts at {path}; give a file of JSON Lines with question_id, category and turns")
    rows, names = [], {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = _parse(line, path, number)
        if (name := str(row["question_id"])) in names:
            raise ValueError(f"{path}, line {number}: question_id {name!r} stands in line {names[name]} already; give each its own")
        names[name] = number
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no prompt; give at least one line")
    return rows


def text_of(row: dict, path: Path, number: int) -> str:
    """The text that a row asks. ValueError where it is empty, LookupError where its source is not installed."""
    text = held_out.resolve(row["source"]) if "source" in row else row["turns"][0]
    if not text.strip():
        raise ValueError(f"{path}, line {number}: the prompt is empty; write something, or take the line out")
    return text


def _parse(line: str, path: Path, number: int) -> dict:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number} is no JSON ({error.msg} at column {error.colno}); write one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number} is a {type(row).__name__}; write an object with question_id, category and turns")
    missing = [name for name in FIELDS if name not in row] + (["turns"] if "turns" not in row and "source" not in row else [])
    if missing:
        raise ValueError(f"{path}, line {number} lacks {', '.join(missing)}; it has {', '.join(row) or 'nothing'}")
    turns = row.get("turns", ["text"])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{path}, line {number}: turns is {turns!r}; give a list of texts, the first is asked")
    return row


def _tokens(text: str, tokenizer, raw: bool) -> Tensor:
    if getattr(tokenizer, "chat_template", None) and not raw:
        chat = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    else:
        ids = tokenizer(text)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)
