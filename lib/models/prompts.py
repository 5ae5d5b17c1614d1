"""Prompts of a file, tokenised through a tokenizer's chat template if it has one. Errors name file and line.

A file has JSON Lines as benchmarks publish them and as people write them. A row is read by the first of these fields
that it has:
    turns: of Spec-Bench and MT-bench, with question_id and category. If `answers` holds an answer to each turn but the
        last, the prompt is the dialogue up to the last turn; otherwise, as for published files, the first turn alone.
    messages: of OpenAI, with role and content. Earlier answers and the system message are kept.
    conversation: of LMSYS-Chat and WildChat, messages of which each of the user's is a prompt of its own, which
        re-reads all before it. The prompts are "NAME turn 1", "NAME turn 2" and so on, and are one unit wherever
        prompts are split or resampled.
    prompt: of HumanEval, with task_id.
`tools`, and the other fields that `dialogue.options_of` knows, are given to the chat template. Without a name (one of
NAMES) a row has its line's number, without a category "code" if it has a task_id, else "chat". In a folder each text
file is a prompt: its path is the name, its suffix the category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lib.lab import json_lines
from lib.lab.units import TURN, unit
from lib.models import dialogue

if TYPE_CHECKING:
    from torch import Tensor

FAMILY, CHAT = (Path(__file__).parents[2] / "data" / "prompts" / name for name in ("family.jsonl", "chat.jsonl"))
OBJECTS = "objects with role (system, user or assistant) and content (a text), without calls of tools"
FORMS = {"turns": "a list of texts that are not empty", "messages": f"{OBJECTS}, the last of the user and not empty",
         "conversation": f"{OBJECTS}, those of the user not empty", "prompt": "a text that is not empty"}
NAMES = ("question_id", "task_id", "conversation_id", "conversation_hash")  # fields that name a row
ROLES = ("system", "user", "assistant")
SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html", ".c", ".cpp", ".h", ".java", ".js", ".ts", ".go",
            ".rs", ".sh", ".yaml", ".toml", ".tex", ".log"}  # of the text files of a folder
HALVED = 78  # prompts of a user's file, as many as the default job replays, that are all used: half of them choose
MOST_CHARACTERS = 4000  # of a file that is a prompt, about 1,000 tokens


@dataclass(frozen=True)
class PromptRow:
    """One prompt: messages, of which the last is the user's. where: its file and line; options: for the template."""

    where: str
    name: str
    kind: str
    messages: Sequence[dialogue.Message]
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet:
    """Tokenised prompts: names, kinds of text, ids int64[T], and the number of the user's turn each."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[Tensor, ...]
    turns: tuple[int, ...] = ()

    def select(self, rows: Sequence[int]) -> PromptSet:
        """The prompts of these rows, in this order."""
        return PromptSet(*(tuple(column[row] for row in rows if column) for column in vars(self).values()))


def check_enough(names: Sequence[str], kinds: Sequence[str], choose: int, judge: int) -> None:
    """ValueError where a kind has fewer than `choose` + `judge` prompts, conversations counting as one."""
    counts = {kind: 1 + number for kind, number in zip(kinds, numbers_in_kind(names, kinds))}
    short = [kind for kind, count in counts.items() if count < choose + judge]
    if short:
        raise ValueError(f"kinds {', '.join(short)} have fewer than {choose} + {judge} prompts; lower choose_prompts "
                         "or judge_prompts, or give more prompts")


def numbers_in_kind(names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The number of each prompt among those of its kind, from 0 on; the turns of a conversation share one."""
    units: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    return [units[kind].setdefault(unit(name), len(units[kind])) for name, kind in zip(names, kinds)]


def load(path: str | Path, tokenizer, limit: int | None = None, *, first: int | None = None) -> PromptSet:
    """The prompts of a file, or of a folder's text files, in their order; path as for `file_of`.

    Prompts go through the tokenizer's chat template if it has one; the family's are plain text. limit: tokens that a
    prompt may have: the models' window less the generated tokens. first: the number of prompts of each kind,
    conversations counting as one; None for all. ValueError names file and line.
    """
    path = file_of(path, dialogue.has_template(tokenizer))
    prompts, ids, is_plain = rows(path), [], path.samefile(FAMILY)
    numbers = numbers_in_kind([row.name for row in prompts], [row.kind for row in prompts])
    prompts = [row for row, number in zip(prompts, numbers) if first is None or number < first]
    for row in prompts:
        try:
            ids.append(dialogue.plain(row.messages[-1]["content"], tokenizer) if is_plain else
                       dialogue.tokenise(row.messages, tokenizer, options=row.options))
        except ValueError as error:
            raise ValueError(f"{row.where}: {error}") from None
        if limit is not None and len(ids[-1]) > limit:
            raise ValueError(f"{row.where}: the prompt has {len(ids[-1])} tokens, {limit} fit beside what is "
                             "generated; shorten it, or generate less")
    turns = tuple(sum(message["role"] == "user" for message in row.messages) for row in prompts)
    return PromptSet(tuple(row.name for row in prompts), tuple(row.kind for row in prompts), tuple(ids), turns)


def file_of(path: str | Path, has_template: bool) -> Path:
    """The file of a path, of "chat" or "family" for the shipped ones, or of "": the chat prompts where the tokenizer
    has a chat template, else the family's.
    """
    shipped = {"chat": CHAT, "family": FAMILY, "": CHAT if has_template else FAMILY}
    return shipped.get(str(path)) or Path(path).expanduser()


def rows(path: Path, most_characters: int | None = MOST_CHARACTERS) -> list[PromptRow]:
    """The prompts of a file; blank lines are skipped. Of a folder's text files so many characters; None for all."""
    if path.is_dir():
        return _of_folder(path, most_characters)
    if not path.is_file():
        raise FileNotFoundError(f"no prompts at {path.resolve()}; give a file of JSON Lines, or a folder of texts")
    by_name: dict[str, PromptRow] = {}
    for place, line in json_lines.texts(path):
        for row in _of_line(line, f"{path}, {place}"):
            if row.name in by_name:
                raise ValueError(f"{row.where}: {row.name!r} is the name of {by_name[row.name].where} already; give it "
                                 "another")
            by_name[row.name] = row
    if not by_name:
        raise ValueError(f"{path} holds no prompt; give at least one line")
    return list(by_name.values())


def _of_folder(folder: Path, most_characters: int | None) -> list[PromptRow]:
    """A prompt of each text file of a folder, also in folders inside, in the order of their names."""
    prompts = []
    for path in sorted(folder.rglob("*")):
        with suppress(UnicodeDecodeError):
            text = path.read_text(encoding="utf-8") if path.suffix.lower() in SUFFIXES and path.is_file() else ""
            if text.strip():
                prompts.append(PromptRow(str(path), str(path.relative_to(folder)), path.suffix[1:].lower(),
                                         dialogue.of_user(text[:most_characters])))
    if not prompts:
        raise ValueError(f"{folder} holds no text in UTF-8; give a folder of files that end in "
                         f"{', '.join(sorted(SUFFIXES))}")
    return prompts


def _of_line(line: bytes, where: str) -> list[PromptRow]:
    """The prompts of a line: one, or of a conversation one for each turn of the user."""
    try:
        row = json_lines.parsed(line)
    except ValueError as error:
        raise ValueError(f"{where} is {error}; write one object per line") from None
    form = next((name for name in FORMS if name in row), None) if isinstance(row, dict) else None
    if form is None:
        raise ValueError(f"{where} is {row!r:.80}; write an object with one of {', '.join(FORMS)}")
    try:
        messages, options = _messages(row, form), dialogue.options_of(row)
        name = json_lines.name_of(row, NAMES, where.rpartition(" ")[2])
        kind = json_lines.name_of(row, ["category"], "chat" if row.get("task_id") is None else "code")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    ends = [end for end, message in enumerate(messages, 1) if message["role"] == "user"]
    if form != "conversation" or len(ends) == 1:
        return [PromptRow(where, name, kind, messages[: ends[-1]], options)]
    return [PromptRow(where, f"{name}{TURN}{turn}", kind, messages[:end], options)
            for turn, end in enumerate(ends, 1)]


def _messages(row: Mapping[str, object], form: str) -> list[dialogue.Message]:
    """The dialogue of a row, whose last message is the user's, but in a conversation. ValueError names the field."""
    messages = row[form]
    refusal = ValueError(f"{form} is {messages!r:.200}; give {FORMS[form]}")
    if form in ("turns", "prompt"):
        turns, answers = messages if form == "turns" else [messages], row.get("answers")
        if not isinstance(turns, list) or not turns or not all(isinstance(text, str) for text in turns):
            raise refusal
        if answers is not None and not (isinstance(answers, list) and all(isinstance(text, str) for text in answers)):
            raise ValueError(f"answers is {answers!r:.200}; give texts, one to each turn but the last, or none")
        is_dialogue = answers is not None and len(answers) == len(turns) - 1
        texts = [text for pair in zip(turns, answers) for text in pair] + turns[-1:] if is_dialogue else turns[:1]
        messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    if not isinstance(messages, list) or not all(
            isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
            and not message.get("tool_calls") and not message.get("function_call") for message in messages):
        raise refusal
    asked = [message["content"].strip() for message in messages if message["role"] == "user"]
    if not asked or not (all(asked) if form == "conversation" else asked[-1] and messages[-1]["role"] == "user"):
        raise refusal
    return [{name: message[name] for name in ("role", "content", "name") if message.get(name) is not None}
            for message in messages]
