"""Prompts: JSON Lines in Spec-Bench's form. Errors name the line; a tokenizer's chat template is used if it has one."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.models import held_out

FAMILY = Path(__file__).parents[2] / "data" / "prompts" / "family.jsonl"
TOO_LONG = ("refuse", "shorten", "skip")


@dataclass(frozen=True)
class PromptSet:
    """Tokenised prompts: names, kinds of text, ids int64[T] each, and a digest of all three.

    too_long: the names of prompts that did not fit and were shortened or left out.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[Tensor, ...]
    digest: str
    too_long: tuple[str, ...] = ()

    def select(self, rows: Iterable[int]) -> "PromptSet":
        """The prompts of these rows, in this order."""
        rows = list(rows)
        names, kinds, ids = (tuple(values[row] for row in rows) for values in (self.names, self.kinds, self.ids))
        return PromptSet(names, kinds, ids, digest_of(names, kinds, ids), self.too_long)


def load(path: str | Path, tokenizer, limit: int | None = None, *, too_long: str = "refuse", chat: bool | None = None,
         first: int | None = None) -> PromptSet:
    """The prompts of a file ("" for the shipped family's held-out ones), in its order.

    Each line is an object with question_id, category and turns. Only the first turn is used, since later ones depend on
    the answers. A line of the shipped file has, in place of turns, a `source` that finds its text in a package.

    limit: tokens that a prompt may have: the models' window less the generated tokens.
    too_long: a prompt beyond the limit is an error ("refuse"), loses its beginning ("shorten") or is left out ("skip").
    chat: whether turns go through the tokenizer's chat template; by default where it has one, except for the family's
        prompts, which are plain text.
    first: the number of prompts of each kind; None for all.
    ValueError names file and line.
    """
    if too_long not in TOO_LONG:
        raise ValueError(f"too_long is {too_long!r}; choose one of {', '.join(TOO_LONG)}")
    if first is not None and first < 1:
        raise ValueError(f"first is {first}; give 1 or more prompts of each kind, or None for all")
    path = _place(path)
    names, kinds, ids, long = [], [], [], []
    for number, row in _numbered(path):
        if first is not None and kinds.count(row["category"]) >= first:
            continue
        text = text_of(row, path, number)
        tokens = tokenise(text, tokenizer, chat if chat is not None else "source" not in row and path != FAMILY)
        if not len(tokens):
            raise ValueError(f"{path}, line {number}: the tokenizer makes no token of {text[:40]!r}; write other text")
        if limit is not None and len(tokens) > limit:
            long.append(str(row["question_id"]))
            tokens = _fitted(tokens, limit, too_long, f"{path}, line {number}")
        if tokens is not None:
            names.append(str(row["question_id"]))
            kinds.append(row["category"])
            ids.append(tokens)
    if not names:
        raise ValueError(f"{path}: none of its prompts has {limit} tokens or fewer; shorten them, or generate less")
    return PromptSet(tuple(names), tuple(kinds), tuple(ids), digest_of(names, kinds, ids), tuple(long))


def check(path: str | Path) -> tuple[list[str], list[str]]:
    """Names and kinds of a file's prompts, without a tokenizer and without the packages that a `source` names.

    Errors as those of `load`, as far as this tells.
    """
    path = _place(path)
    rows = _numbered(path)
    for number, row in rows:
        if "source" not in row:
            text_of(row, path, number)
    return [str(row["question_id"]) for _, row in rows], [row["category"] for _, row in rows]


def text_of(row: dict, path: Path, number: int) -> str:
    """The text of a row. ValueError where it is empty, LookupError where its source is not installed."""
    try:
        text = held_out.resolve(row["source"]) if "source" in row else row["turns"][0]
    except LookupError as error:
        raise LookupError(f"{path}, line {number}: {error}") from None
    if not text.strip():
        raise ValueError(f"{path}, line {number}: the prompt is empty; write one, or remove the line")
    return text


def tokenise(text: str, tokenizer, chat: bool) -> Tensor:
    """int64[T]: the text itself, or with `chat` and a template the text as a user's turn that the model answers."""
    if chat and getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    else:
        ids = tokenizer(text)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def digest_of(names: Sequence[str], kinds: Sequence[str], ids: Sequence[Tensor]) -> str:
    """SHA-256 of prompts as a model reads them."""
    return sha256(json.dumps([list(names), list(kinds), [row.tolist() for row in ids]]).encode()).hexdigest()


def _place(path: str | Path) -> Path:
    return Path(path).expanduser() if path else FAMILY


def _fitted(tokens: Tensor, limit: int, too_long: str, where: str) -> Tensor | None:
    if limit < 1 or too_long == "refuse":
        raise ValueError(f"{where}: the prompt has {len(tokens)} tokens, {limit} fit beside what is generated; shorten "
                         "it, generate less, or load with too_long='shorten' or 'skip'")
    return tokens[-limit:] if too_long == "shorten" else None


def _numbered(path: Path) -> list[tuple[int, dict]]:
    """Line numbers, from 1, and the objects on them; blank lines are skipped."""
    if not path.is_file():
        raise FileNotFoundError(f"no prompts at {path.resolve()}; give a file of JSON Lines with question_id, category "
                                "and turns")
    rows, seen = [], {}
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        row = _parse(line, f"{path}, line {number}")
        name = str(row["question_id"])
        if name in seen:
            raise ValueError(f"{path}, line {number}: question_id {name!r} is in line {seen[name]} already; "
                             "give each prompt its own")
        seen[name] = number
        rows.append((number, row))
    if not rows:
        raise ValueError(f"{path} holds no prompt; give at least one line")
    return rows


def _parse(line: bytes, where: str) -> dict:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is no UTF-8 (byte {error.start}); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is no JSON ({error.msg} at column {error.colno}); write one object per "
                         "line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; write an object with question_id, category and turns")
    if "turns" in row:
        row.pop("source", None)  # a field of the user's own
    wanted = ("question_id", "category", "source" if "source" in row else "turns")
    missing = [name for name in wanted if name not in row]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}; it has {', '.join(row) or 'nothing'}")
    if not isinstance(row["question_id"], (str, int)) or not isinstance(row["category"], str):
        raise ValueError(f"{where}: question_id is {row['question_id']!r}, category {row['category']!r}; give a number "
                         "or text, and a text")
    turns = row.get("turns", ["text"])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: turns is {turns!r}; give a list of texts, of which the first is used")
    if unpaired := [letter for letter in turns[0] if "\ud800" <= letter <= "\udfff"]:
        raise ValueError(f"{where}: turns holds {unpaired[0]!r}, half of a character; write whole characters")
    if "source" in row and not (isinstance(row["source"], dict) and held_out.PARTS <= row["source"].keys()):
        raise ValueError(f"{where}: source is {row['source']!r}; give {', '.join(sorted(held_out.PARTS))}, or turns")
    return row
