"""Prompts of a file, tokenised through a tokenizer's chat template if it has one. Errors name file and line.

A file has JSON Lines as benchmarks publish them and as people write them. A row is read by its fields, the first of
these that it has:
    turns: of Spec-Bench and MT-bench, with question_id and category. If `answers` holds an answer to each turn but the
        last, the prompt is the dialogue up to the last turn; otherwise, as for published files, the first turn alone.
    messages: of OpenAI, with role and content. Earlier answers and the system message are kept.
    conversation: messages of which each of the user's is a prompt of its own, which re-reads all before it. The prompts
        are "NAME turn 1", "NAME turn 2" and so on, and stand together wherever prompts are split or resampled.
    source: of the shipped family, with question_id and category: the recipe of a text in an installed package.
    prompt: of HumanEval, with task_id.
Without a name (question_id or task_id) a row has its line's number, without a category "code" if it has a task_id, else
"chat".
"""

import ast
import gzip
import importlib.metadata
import json
import sysconfig
import zlib
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path
from typing import Sequence

from torch import Tensor

from lib.lab import json_text, stats
from lib.models import dialogue

TEXTS = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html", ".c", ".cpp", ".h", ".java", ".js", ".ts", ".go",
         ".rs", ".sh", ".yaml", ".toml", ".tex", ".log"}  # of a folder's files those that are read
MOST_CHARACTERS = 4000  # of a file that is a prompt, about 1,000 tokens
FAMILY, CHAT = (Path(__file__).parents[2] / "data" / "prompts" / name for name in ("family.jsonl", "chat.jsonl"))
GZIP = b"\x1f\x8b"  # the first bytes of a compressed file
FORMS = {"turns": ("question_id", "category"), "messages": (), "conversation": (),
         "source": ("question_id", "category"), "prompt": ()}
ROLES = ("system", "user", "assistant")
RECIPE = {"package", "path", "sha256", "part", "start", "end"}  # fields of a source
SHORTEST_DOCSTRING = 160  # characters


@dataclass(frozen=True)
class PromptRow:
    """One prompt: messages, of which the last is the user's, or the recipe of a text. where: its file and line."""

    where: str
    name: str
    kind: str
    messages: Sequence[dialogue.Message] = ()
    source: dict | None = None

    def dialogue(self) -> Sequence[dialogue.Message]:
        """The messages; of a recipe, one turn of the user with its text. LookupError as for `recipe_text`."""
        return self.messages or dialogue.of_user(recipe_text(self.source))


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
    at = places(names, kinds)
    counts = {kind: 1 + place for kind, place in zip(kinds, at)}
    short = [kind for kind, count in counts.items() if count < choose + judge]
    if short:
        raise ValueError(f"kinds {', '.join(short)} have fewer than {choose} + {judge} prompts; lower choose_prompts "
                         "or judge_prompts, or give more prompts")
    return ([row for row, place in enumerate(at) if place < choose],
            [row for row, place in enumerate(at) if choose <= place < choose + judge])


def places(names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The place of each prompt among those of its kind, which the turns of a conversation share."""
    seen: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    return [seen[kind].setdefault(stats.unit(name), len(seen[kind])) for name, kind in zip(names, kinds)]


def load(path: str | Path, tokenizer, limit: int | None = None, *, first: int | None = None) -> PromptSet:
    """The prompts of a file, or of a folder's text files, in their order: a path, "chat" or "family" for the shipped
    files, or "" for "chat" where the tokenizer has a chat template and "family" elsewhere.

    Prompts go through the tokenizer's chat template if it has one, with the system prompt that the template may insert;
    the family's are plain text. The text of a control token in a prompt is tokenised as text.

    limit: tokens that a prompt may have: the models' window less the generated tokens.
    first: the number of prompts of each kind, conversations counting as one; None for all.
    ValueError names file and line.
    """
    if first is not None and first < 1:
        raise ValueError(f"first is {first}; give 1 or more prompts of each kind, or None for all")
    path = place(path, dialogue.has_template(tokenizer))
    is_plain, names, kinds, ids, read = path.resolve() == FAMILY.resolve(), [], [], [], rows(path)
    for row, at in zip(read, places([row.name for row in read], [row.kind for row in read])):
        if first is not None and at >= first:
            continue
        try:
            messages = row.dialogue()
            text = messages[-1]["content"]
            tokens = dialogue.plain(text, tokenizer) if is_plain else dialogue.tokenise(messages, tokenizer)
        except (LookupError, ValueError) as error:
            raise (LookupError if isinstance(error, LookupError) else ValueError)(f"{row.where}: {error}") from None
        if not len(tokens):
            raise ValueError(f"{row.where}: the tokenizer makes no token of {text[:40]!r}; write other text")
        if limit is not None and len(tokens) > limit:
            raise ValueError(f"{row.where}: the prompt has {len(tokens)} tokens, {limit} fit beside what is generated; "
                             "shorten it, or generate less")
        names.append(row.name)
        kinds.append(row.kind)
        ids.append(tokens)
    return PromptSet(tuple(names), tuple(kinds), tuple(ids))


def check(path: str | Path, chat: bool) -> tuple[list[str], list[str]]:
    """Names and kinds of a file's prompts, with the errors of `load` as far as the file alone tells.

    chat: whether the tokenizer that will read them has a chat template, which decides which file "" is.
    """
    read = rows(place(path, chat))
    return [row.name for row in read], [row.kind for row in read]


def place(path: str | Path, chat: bool) -> Path:
    """The file of a path or name as `load` takes it; chat: whether the tokenizer has a chat template."""
    shipped = {"chat": CHAT, "family": FAMILY, "": CHAT if chat else FAMILY}
    return shipped.get(str(path)) or Path(path).expanduser()


def texts_in(folder: Path) -> list[tuple[Path, str]]:
    """The text files of a folder, also in folders inside, in the order of their names. ValueError where there is none
    that is UTF-8.
    """
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in TEXTS and path.is_file():
            try:
                texts.append((path, path.read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue
    texts = [(path, text) for path, text in texts if text.strip()]
    if not texts:
        raise ValueError(f"{folder} holds no text in UTF-8; give a folder of files that end in "
                         f"{', '.join(sorted(TEXTS))}")
    return texts


def rows(path: Path) -> list[PromptRow]:
    """The rows of a file; blank lines are skipped. Of a folder a row for each text file: its first MOST_CHARACTERS."""
    if path.is_dir():
        return [row for number, (file, text) in enumerate(texts_in(path), 1)
                for row in _parse(json.dumps(dict(question_id=str(file.relative_to(path)), turns=[
                    text[:MOST_CHARACTERS]], category=file.suffix[1:].lower())).encode(), str(file), number)]
    if not path.is_file():
        raise FileNotFoundError(f"no prompts at {path.resolve()}; give a file of JSON Lines with question_id, category "
                                "and turns")
    content, read, seen = path.read_bytes(), [], {}
    try:
        content = gzip.decompress(content) if content.startswith(GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked as gzip ({error}); fetch it again") from None
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        for row in _parse(line, f"{path}, line {number}", number):
            if seen.setdefault(row.name, number) != number:
                raise ValueError(f"{row.where}: {row.name!r} is the name of line {seen[row.name]} already; give it "
                                 "another")
            read.append(row)
    if not read:
        raise ValueError(f"{path} holds no prompt; give at least one line")
    return read


def recipe_text(recipe: dict) -> str:
    """The text that a recipe names, which lies in an installed package and is not copied here.

    recipe: the package ("python" for the standard library), the path inside it, the SHA-256 of the file's text, the
    part ("file", or "docstrings" for its longer docstrings), and start and end in characters.
    LookupError where the file is not installed, or differs from the recipe's.
    """
    package, path = str(recipe["package"]), str(recipe["path"])
    try:
        python = package == "python"
        root = sysconfig.get_paths()["stdlib"] if python else importlib.metadata.distribution(package).locate_file("")
        text = Path(root, path).read_text(encoding="utf-8") if Path(root, path).is_file() else None
    except (OSError, ValueError, importlib.metadata.PackageNotFoundError):
        text = None
    if text is None:
        raise LookupError(f"{package}: {path} is not installed; install requirements.txt")
    if sha256(text.encode()).hexdigest() != recipe["sha256"]:
        raise LookupError(f"{package}: {path} differs from the file that the prompt was cut from; install the versions "
                          "of requirements.txt")
    if recipe["part"] == "docstrings":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = [ast.get_docstring(node, clean=False) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        text = "\n\n".join(cleandoc(doc) for doc in docs if doc and len(doc) >= SHORTEST_DOCSTRING)
    return text[recipe["start"] : recipe["end"]]


def _parse(line: bytes, where: str, number: int) -> list[PromptRow]:
    """The prompts of a line: one, or one for each turn of the user."""
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
    missing = [field for field in (*FORMS[form], form) if field not in row]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}; it has {', '.join(row) or 'nothing'}; give question_id, "
                         "category and turns, or messages, or task_id and prompt")
    name = row.get("question_id", row.get("task_id", number))
    kind = row.get("category", "code" if "task_id" in row else "chat")
    if not isinstance(name, (str, int)) or not isinstance(kind, str):
        raise ValueError(f"{where}: question_id or task_id is {name!r}, category {kind!r}; give a number or text, and "
                         "a text")
    if form != "source":
        messages = _messages(row, form, where)
        asked = [at for at, message in enumerate(messages, 1) if message["role"] == "user"]
        if form != "conversation" or len(asked) == 1:
            return [PromptRow(where, str(name), kind, messages)]
        return [PromptRow(where, f"{name}{stats.TURN}{turn}", kind, messages[:end])
                for turn, end in enumerate(asked, 1)]
    source = row["source"]
    if not (isinstance(source, dict) and RECIPE <= source.keys()):
        raise ValueError(f"{where}: source is {source!r}; give {', '.join(sorted(RECIPE))}, or turns")
    return [PromptRow(where, str(name), kind, source=source)]


def _messages(row: dict, form: str, where: str) -> list[dialogue.Message]:
    """The dialogue of a row, up to the user's message that the model answers."""
    messages = row[form] if form in ("messages", "conversation") else _of_turns(row, form, where)
    good = isinstance(messages, list) and all(
        isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
        for message in messages)
    if not good or [message["role"] for message in messages[-1:]] != ["user"]:
        raise ValueError(f"{where}: messages is {messages!r:.200}; give objects with role (system, user or assistant) "
                         "and content (a text), the last of the user")
    said = "".join(message["content"] for message in messages)
    if unpaired := [letter for letter in said if "\ud800" <= letter <= "\udfff"]:
        raise ValueError(f"{where}: {form} holds {unpaired[0]!r}, half of a character; write whole characters")
    if not messages[-1]["content"].strip():
        raise ValueError(f"{where}: the prompt is empty; write one, or remove the line")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _of_turns(row: dict, form: str, where: str) -> list[dialogue.Message]:
    """The user's turns with the answers between them if the row has those, else the first; a `prompt` is one turn."""
    turns, answers = row[form] if form == "turns" else [row[form]], row.get("answers")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: {form} is {row[form]!r}; give {'a list of texts' if form == 'turns' else 'a text'}")
    if not isinstance(answers, list) or len(answers) != len(turns) - 1:
        return dialogue.of_user(turns[0])
    contents = [text for pair in zip(turns, answers) for text in pair] + turns[-1:]
    return [{"role": ROLES[1 + place % 2], "content": text} for place, text in enumerate(contents)]
