"""Prompts of a file, tokenised through a tokenizer's chat template if it has one. Errors name file and line.

A file has JSON Lines as benchmarks publish them and as people write them. A row is read by the first of these fields
that it has:
    turns: of Spec-Bench and MT-bench, with question_id and category. If `answers` holds an answer to each turn but the
        last, the prompt is the dialogue up to the last turn; otherwise, as for published files, the first turn alone.
    messages: of OpenAI, with role and content. Earlier answers and the system message are kept.
    conversation: messages of which each of the user's is a prompt of its own, which re-reads all before it. The prompts
        are "NAME turn 1", "NAME turn 2" and so on, and are one unit wherever prompts are split or resampled.
    prompt: of HumanEval, with task_id.
Without a name (question_id or task_id) a row has its line's number, without a category "code" if it has a task_id, else
"chat". In a folder each text file is a prompt: its path is the name, its suffix the category.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lib.lab import json_text, stats
from lib.models import dialogue

FAMILY, CHAT = (Path(__file__).parents[2] / "data" / "prompts" / name for name in ("family.jsonl", "chat.jsonl"))
MESSAGES = "objects with role (system, user or assistant) and content (a text), the last of the user"
FORMS = {  # by field: further fields that a row needs, and what the field holds
    "turns": (("question_id", "category"), "a list of texts, with texts between them as answers or without"),
    "messages": ((), MESSAGES), "conversation": ((), MESSAGES), "prompt": ((), "a text")}
ROLES = ("system", "user", "assistant")
SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html", ".c", ".cpp", ".h", ".java", ".js", ".ts", ".go",
            ".rs", ".sh", ".yaml", ".toml", ".tex", ".log"}  # of the text files of a folder
MOST_CHARACTERS = 4000  # of a file that is a prompt, about 1,000 tokens
GZIP = b"\x1f\x8b"  # the first bytes of a compressed file
HALF = re.compile("[\ud800-\udfff]")  # a surrogate without its other half


@dataclass(frozen=True)
class PromptRow:
    """One prompt: messages, of which the last is the user's. where: its file and line."""

    where: str
    name: str
    kind: str
    messages: Sequence[dialogue.Message]


@dataclass(frozen=True)
class PromptSet:
    """Tokenised prompts: names, kinds of text, and ids int64[T] each."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[Tensor, ...]

    def select(self, rows: Sequence[int]) -> "PromptSet":
        """The prompts of these rows, in this order."""
        return replace(self, **{name: tuple(getattr(self, name)[row] for row in rows)
                                for name in ("names", "kinds", "ids")})

    def split(self, choose: int, judge: int) -> tuple["PromptSet", "PromptSet"]:
        """The first `choose` prompts of each kind, from which trees are chosen, and the next `judge`, which judge them.

        ValueError as for `split_rows`.
        """
        choosing, judging = split_rows(self.names, self.kinds, choose, judge)
        return self.select(choosing), self.select(judging)


def split_rows(names: Sequence[str], kinds: Sequence[str], choose: int, judge: int) -> tuple[list[int], list[int]]:
    """The rows of the first `choose` prompts of each kind, and of the next `judge`, conversations counting as one.
    ValueError if a kind has fewer.
    """
    numbers = numbers_in_kind(names, kinds)
    counts = {kind: 1 + number for kind, number in zip(kinds, numbers)}
    short = [kind for kind, count in counts.items() if count < choose + judge]
    if short:
        raise ValueError(f"kinds {', '.join(short)} have fewer than {choose} + {judge} prompts; lower choose_prompts "
                         "or judge_prompts, or give more prompts")
    return ([row for row, number in enumerate(numbers) if number < choose],
            [row for row, number in enumerate(numbers) if choose <= number < choose + judge])


def numbers_in_kind(names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The number of each prompt among those of its kind, from 0 on; the turns of a conversation share one."""
    units: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    return [units[kind].setdefault(stats.unit(name), len(units[kind])) for name, kind in zip(names, kinds)]


def load(path: str | Path, tokenizer, limit: int | None = None, *, first: int | None = None) -> PromptSet:
    """The prompts of a file, or of a folder's text files, in their order; path as for `file_of`.

    Prompts go through the tokenizer's chat template if it has one, with the system prompt that the template may insert;
    the family's are plain text. The text of a control token in a prompt is tokenised as text.

    limit: tokens that a prompt may have: the models' window less the generated tokens.
    first: the number of prompts of each kind, conversations counting as one; None for all.
    ValueError names file and line.
    """
    if first is not None and first < 1:
        raise ValueError(f"first is {first}; give 1 or more prompts of each kind, or None for all")
    path = file_of(path, dialogue.has_template(tokenizer))
    prompts, ids = rows(path), []
    numbers = numbers_in_kind([row.name for row in prompts], [row.kind for row in prompts])
    prompts = [row for row, number in zip(prompts, numbers) if first is None or number < first]
    for row in prompts:
        text = row.messages[-1]["content"]
        try:
            is_plain = path.samefile(FAMILY)
            tokens = dialogue.plain(text, tokenizer) if is_plain else dialogue.tokenise(row.messages, tokenizer)
        except ValueError as error:
            raise ValueError(f"{row.where}: {error}") from None
        if not len(tokens):
            raise ValueError(f"{row.where}: the tokenizer makes no token of {text[:40]!r}; write other text")
        if limit is not None and len(tokens) > limit:
            raise ValueError(f"{row.where}: the prompt has {len(tokens)} tokens, {limit} fit beside what is generated; "
                             "shorten it, or generate less")
        ids.append(tokens)
    return PromptSet(tuple(row.name for row in prompts), tuple(row.kind for row in prompts), tuple(ids))


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
        raise FileNotFoundError(f"no prompts at {path.resolve()}; give a file of JSON Lines with question_id, category "
                                "and turns")
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content.startswith(GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked as gzip ({error}); fetch it again") from None
    by_name: dict[str, PromptRow] = {}
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        for row in _of_line(line, f"{path}, line {number}", number) if line.strip() else ():
            if row.name in by_name:
                raise ValueError(f"{row.where}: {row.name!r} is the name of {by_name[row.name].where} already; give it "
                                 "another")
            by_name[row.name] = row
    if not by_name:
        raise ValueError(f"{path} holds no prompt; give at least one line")
    return list(by_name.values())


def of_length(tokenizer, length: int, first: int = 1, path: Path = FAMILY) -> PromptSet:
    """`first` prompts of each kind with `length` tokens of text, and those of the chat template where there is one.

    Costs and acceptance change with the length of the text, and random tokens have neither the repetition nor the
    experts of real ones.

    path: of a file of prompts, or a folder, whose texts are joined by kind. A kind that is too short for all prompts
    has fewer. ValueError where no kind is long enough.
    """
    by_kind: dict[str, list[int]] = {}
    for row in rows(path, most_characters=None):
        by_kind.setdefault(row.kind, []).extend(tokenizer(
            row.messages[-1]["content"] + "\n\n", add_special_tokens=False, split_special_tokens=True)["input_ids"])
    names, kinds, ids = [], [], []
    for kind, tokens in by_kind.items():
        for number in range(min(first, len(tokens) // length)):
            piece = tokens[number * length : (number + 1) * length]
            names.append(f"{kind}-{length}-{number}")
            kinds.append(kind)
            if dialogue.has_template(tokenizer):
                text = tokenizer.decode(piece, skip_special_tokens=True)
                ids.append(dialogue.tokenise(dialogue.of_user(text), tokenizer))
            else:
                ids.append(torch.cat([dialogue.plain("", tokenizer), torch.tensor(piece)]))
    if not ids:
        longest = max(map(len, by_kind.values()))
        raise ValueError(f"prompts of {length} tokens cannot be made: the longest kind of text has {longest} tokens; "
                         "give a smaller length, or a folder with more text")
    return PromptSet(tuple(names), tuple(kinds), tuple(ids))


def _of_folder(folder: Path, most_characters: int | None) -> list[PromptRow]:
    """A prompt of each text file of a folder, also in folders inside, in the order of their names."""
    prompts = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if text.strip():
                prompts.append(PromptRow(str(path), str(path.relative_to(folder)), path.suffix[1:].lower(),
                                         dialogue.of_user(text[:most_characters])))
    if not prompts:
        raise ValueError(f"{folder} holds no text in UTF-8; give a folder of files that end in "
                         f"{', '.join(sorted(SUFFIXES))}")
    return prompts


def _of_line(line: bytes, where: str, number: int) -> list[PromptRow]:
    """The prompts of a line: one, or of a conversation one for each turn of the user."""
    try:
        row = json_text.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is no UTF-8 (byte {error.start}); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is no JSON ({error.msg} at column {error.colno}); write one object per "
                         "line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; write an object with question_id, category and turns")
    form = next((field for field in FORMS if field in row), "turns")
    needed, remedy = FORMS[form]
    if missing := [field for field in (*needed, form) if field not in row]:
        raise ValueError(f"{where} lacks {', '.join(missing)}; it has {', '.join(row) or 'nothing'}; give question_id, "
                         "category and turns, or messages, or task_id and prompt")
    name = row.get("question_id", row.get("task_id", number))
    kind = row.get("category", "code" if "task_id" in row else "chat")
    if not isinstance(name, (str, int)) or not isinstance(kind, str):
        raise ValueError(f"{where}: question_id or task_id is {name!r}, category {kind!r}; give a number or text, and "
                         "a text")
    messages = _messages(row, form)
    if not messages:
        raise ValueError(f"{where}: {form} is {row[form]!r:.200}; give {remedy}")
    if half := HALF.search("".join(message["content"] for message in messages)):
        raise ValueError(f"{where}: {form} holds {half[0]!r}, half of a character; write whole characters")
    if not messages[-1]["content"].strip():
        raise ValueError(f"{where}: the prompt is empty; write one, or remove the line")
    ends = [end for end, message in enumerate(messages, 1) if message["role"] == "user"]
    if form != "conversation" or len(ends) == 1:
        return [PromptRow(where, str(name), kind, messages)]
    return [PromptRow(where, f"{name}{stats.TURN}{turn}", kind, messages[:end]) for turn, end in enumerate(ends, 1)]


def _messages(row: dict, form: str) -> list[dialogue.Message]:
    """The dialogue of a row, whose last message is the user's; empty where the row does not hold one."""
    messages = row[form]
    if form in ("turns", "prompt"):
        turns, answers = messages if form == "turns" else [messages], row.get("answers")
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            return []
        if isinstance(answers, list) and len(answers) == len(turns) - 1:
            turns = [text for pair in zip(turns, answers) for text in pair] + turns[-1:]
        else:
            turns = turns[:1]
        messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(turns)]
    if not isinstance(messages, list) or not all(
            isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
            for message in messages) or [message["role"] for message in messages[-1:]] != ["user"]:
        return []
    return [{"role": message["role"], "content": message["content"]} for message in messages]
