"""Tokenised prompts of a file, through a tokenizer's chat template if it has one. Errors name file and line."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Iterable, Sequence

from torch import Tensor

from lib.models import dialogue, held_out
from lib.models.prompt_files import Row, rows

FAMILY, CHAT = (Path(__file__).parents[2] / "data" / "prompts" / name for name in ("family.jsonl", "chat.jsonl"))
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


def load(path: str | Path, tokenizer, limit: int | None = None, *, too_long: str = "refuse",
         first: int | None = None) -> PromptSet:
    """The prompts of a file, in its order: a path, "chat" or "family" for the shipped files, or "" for "chat" where the
    tokenizer has a chat template and "family" elsewhere. `prompt_files` says which rows it may hold, and which turn
    of a dialogue is measured.

    Prompts go through the tokenizer's chat template if it has one, with the system prompt that the template may insert;
    the family's are plain text. The text of a control token in a prompt is tokenised as text.

    limit: tokens that a prompt may have: the models' window less the generated tokens.
    too_long: a prompt beyond the limit is an error ("refuse"), loses its beginning ("shorten") or is left out ("skip").
    first: the number of prompts of each kind; None for all.
    ValueError names file and line.
    """
    if too_long not in TOO_LONG:
        raise ValueError(f"too_long is {too_long!r}; choose one of {', '.join(TOO_LONG)}")
    if first is not None and first < 1:
        raise ValueError(f"first is {first}; give 1 or more prompts of each kind, or None for all")
    path = place(path, dialogue.has_template(tokenizer))
    names, kinds, ids, long = [], [], [], []
    for row in rows(path):
        if first is not None and kinds.count(row.kind) >= first:
            continue
        tokens = _tokens(row, tokenizer, is_plain=path.resolve() == FAMILY.resolve())
        if limit is not None and len(tokens) > limit:
            long.append(row.name)
            tokens = _fitted(tokens, limit, too_long, row.where)
        if tokens is not None:
            names.append(row.name)
            kinds.append(row.kind)
            ids.append(tokens)
    if not names:
        raise ValueError(f"{path}: none of its prompts has {limit} tokens or fewer; shorten them, or generate less")
    return PromptSet(tuple(names), tuple(kinds), tuple(ids), digest_of(names, kinds, ids), tuple(long))


def check(path: str | Path, chat: bool) -> tuple[list[str], list[str]]:
    """Names and kinds of a file's prompts, with the errors of `load` as far as the file alone tells.

    chat: whether the tokenizer that will read them has a chat template, which decides which file "" is.
    """
    found = rows(place(path, chat))
    return [row.name for row in found], [row.kind for row in found]


def place(path: str | Path, chat: bool) -> Path:
    """The file of a path or name as `load` takes it; chat: whether the tokenizer has a chat template."""
    shipped = {"chat": CHAT, "family": FAMILY, "": CHAT if chat else FAMILY}
    return shipped.get(str(path)) or Path(path).expanduser()


def _tokens(row: Row, tokenizer, is_plain: bool) -> Tensor:
    try:
        messages = row.messages or dialogue.of_user(held_out.resolve(row.source))
        text = messages[-1]["content"]
        tokens = dialogue.plain(text, tokenizer) if is_plain else dialogue.tokenise(messages, tokenizer)
    except (LookupError, ValueError) as error:
        kind = LookupError if isinstance(error, LookupError) else ValueError
        raise kind(f"{row.where}: {error}") from None
    if not len(tokens):
        raise ValueError(f"{row.where}: the tokenizer makes no token of {text[:40]!r}; write other text")
    return tokens


def digest_of(names: Sequence[str], kinds: Sequence[str], ids: Sequence[Tensor]) -> str:
    """SHA-256 of prompts as a model reads them."""
    return sha256(json.dumps([list(names), list(kinds), [row.tolist() for row in ids]]).encode()).hexdigest()


def _fitted(tokens: Tensor, limit: int, too_long: str, where: str) -> Tensor | None:
    if limit < 1 or too_long == "refuse":
        raise ValueError(f"{where}: the prompt has {len(tokens)} tokens, {limit} fit beside what is generated; shorten "
                         "it, generate less, or load with too_long='shorten' or 'skip'")
    return tokens[-limit:] if too_long == "shorten" else None
