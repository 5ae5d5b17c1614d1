"""Text that a model writes by itself, from which its heads, n-grams and draft models learn.

A chat model writes dialogues from its chat template alone: it continues the opening of a user's turn (Xu et al. 2024,
Magpie, section 2), sampled at temperature 1, and then answers it: half of the answers greedily, half at temperature
0.7. A base model continues its first token at temperature 1; such a row has no user's turn.
`python -m lib training own_text --target T --tokens N` writes such text: to data/text, or where a target's text is
committed there, as many more in the training's folder, which heads and draft models learn beside it.
"""

import os
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

import numpy as np
import torch

from lib.decoding.loop import continuations
from lib.drafters import vocabulary
from lib.models.dialogue import has_template, of_user
from lib.models.registry import SMOLLM2
from lib.replay.trace import loops
from lib.training.loop import TrainingPlan

ROWS, CHUNK = 64, 256  # dialogues of one forward pass on a CPU; of one file, after which a stopped run resumes
TURN, ANSWER = 160, 320  # the most tokens of either turn
FEWEST = 4  # tokens of a user's turn
HELD_OUT_SHARE, HELD_OUT_ROWS = 0.02, 24  # of the text, and how many of its windows are evaluated
WARM = 0.7  # the temperature of half of the answers
TEXT = Path(__file__).parents[2] / "data" / "text"  # the committed dialogues, a file per target


class Dialogue(NamedTuple):
    """Tokens without their template: of a user's turn, empty where a base model wrote, and of an answer, which was
    written at a temperature; both include the end of turn where the model wrote it.
    """

    turn: list[int]
    answer: list[int]
    temperature: float


class Windows(NamedTuple):
    """Rows of text: tokens int64[R, T + 1]; learned bool[R, T], whether the token after each of T is one to learn."""

    tokens: torch.Tensor
    learned: torch.Tensor

    def to(self, device) -> "Windows":
        """On another device."""
        return Windows(*(part.to(device) for part in self))

    def split(self, rows: int) -> "list[Windows]":
        """Parts of so many rows."""
        return [Windows(*parts) for parts in zip(*(part.split(rows) for part in self))]


Draw = Callable[[int], Windows]  # the windows of a step


def path_of(target: str) -> Path:
    """The committed dialogues of a target, by its name; they need not exist."""
    return TEXT / f"{target}.npz"


def save(path: Path, dialogues: Sequence[Dialogue]) -> None:
    """Writes tokens of all turns in order, lengths of both turns and temperatures, compressed, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(partial, tokens=_small([token for row in dialogues for token in (*row.turn, *row.answer)]),
                        turn=np.array([len(row.turn) for row in dialogues], np.int32),
                        answer=np.array([len(row.answer) for row in dialogues], np.int32),
                        temperature=np.array([row.temperature for row in dialogues], np.float32))
    os.replace(partial, path)


def load(path: Path) -> list[Dialogue]:
    """Reads a file of `save`."""
    with np.load(path, allow_pickle=False) as file:
        lengths = np.stack([file["turn"], file["answer"]], axis=1).ravel()
        parts = [part.tolist() for part in np.split(file["tokens"], lengths.cumsum()[:-1])]
        return [*map(Dialogue, parts[::2], parts[1::2], file["temperature"].tolist())]


def written(target: str) -> list[Dialogue]:
    """The committed dialogues of a target. ValueError where there are none."""
    if not path_of(target).is_file():
        raise ValueError(f"target {target!r} has no text of its own in data/text; take {SMOLLM2!r}, or a model for "
                         f"which `python -m lib training own_text --target {target}` has written some")
    return load(path_of(target))


def lessons(pair, name: str, folder: Path, plan: TrainingPlan) -> tuple[Draw, Windows]:
    """The windows of a step of the text that a target wrote, all before any comes again; and windows of the text that
    is held out, the last of what is committed. ValueError without such text.
    """
    committed = written(name)
    first = round((1 - HELD_OUT_SHARE) * len(committed))
    further = [row for path in sorted((folder / "own_text" / name).glob("*.npz")) for row in load(path)]
    held_out = committed[first:]
    rest = distinct([*held_out, *committed[:first], *further])[len(held_out) :]
    around = template(pair.tokenizer)
    training, held_out = (windows(rows, *around, plan.length) for rows in (rest, held_out))
    steps = max(1, len(training.tokens) // plan.rows)

    def draw(step: int) -> Windows:
        order = torch.randperm(len(training.tokens), generator=plan.generator(step // steps))
        rows = order[step % steps * plan.rows :][: plan.rows]
        return Windows(training.tokens[rows], training.learned[rows])

    return draw, Windows(*(part[:HELD_OUT_ROWS] for part in held_out))


def template(tokenizer) -> tuple[list[int], list[int]]:
    """The tokens before a user's first turn, and those between its end of turn and the answer; without a chat template
    the token with which a text begins, and none. ValueError for a tokenizer without such a token, and for a template
    that does not end a user's turn with the tokenizer's end of sequence.
    """
    if not has_template(tokenizer):
        begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if begin is None:
            raise ValueError("the tokenizer has neither a chat template nor a token with which a text begins, which a "
                             "model would continue; take another model")
        return [begin], []
    mark, end = "USER", tokenizer.eos_token
    before, after = tokenizer.apply_chat_template(of_user(mark), add_generation_prompt=True, tokenize=False).split(mark)
    if not after.startswith(end):
        raise ValueError(f"the chat template does not end a user's turn with {end!r}; own text needs one that does")
    return tokenizer(before)["input_ids"], tokenizer(after.removeprefix(end))["input_ids"]


def windows(dialogues: Sequence[Dialogue], before: Sequence[int], between: Sequence[int], length: int) -> Windows:
    """Dialogues one after another with their template (see `template`), cut into rows, each of which begins with the
    last token of the one before; the template is not learned.
    """
    tokens, learned = [], []
    for turn, answer, _ in dialogues:
        for part, is_text in ((before, False), (turn, True), (between, False), (answer, True)):
            tokens += part
            learned += [is_text] * len(part)
    indices = torch.arange((len(tokens) - 1) // length)[:, None] * length + torch.arange(length + 1)
    return Windows(torch.tensor(tokens)[indices], torch.tensor(learned)[indices[:, 1:]])


def write(pair, folder: Path, tokens: int) -> None:
    """Writes a target's dialogues up to so many tokens, in chunks from which a stopped run resumes: where none are
    committed, to data/text, with the tokens of the answers where drafters find them; else further ones, to the
    training's folder. ValueError as for `template`, before anything is written.
    """
    template(pair.tokenizer)
    name = pair.target_name
    committed = load(path_of(name)) if path_of(name).is_file() else []
    # Further chunks are numbered from the dialogues that exist on: no chunk of those has such a number.
    rows, number = list(committed), len(committed)
    while (num_tokens := sum(len(row.turn) + len(row.answer) for row in rows)) < tokens:
        print(f"own text: {num_tokens:,} of {tokens:,} tokens", flush=True)
        path = folder / "own_text" / name / f"{number:05d}.npz"
        if not path.exists():
            save(path, chunk(pair.target, pair.tokenizer, number))
        rows += load(path)
        number += 1
    if not committed:
        rows = distinct(rows)
        save(path_of(name), rows)
        listed = vocabulary.SHIPPED / name / vocabulary.FILE
        listed.parent.mkdir(parents=True, exist_ok=True)
        frequent = vocabulary.most_frequent([row.answer for row in rows])
        np.save(listed, _small(frequent.tolist()), allow_pickle=False)


@torch.inference_mode()
def chunk(target, tokenizer, number: int) -> list[Dialogue]:
    """One chunk, a function of its number, without texts that loop and without user's turns that have no end or fewer
    than `FEWEST` tokens.
    """
    (before, between), end = template(tokenizer), tokenizer.eos_token_id
    generator = torch.Generator().manual_seed(number)

    def texts(prompts: list[list[int]], most: int, temperature: float) -> list[list[int]]:
        return continuations(target, [*map(torch.tensor, prompts)], max_new_tokens=most, temperature=temperature,
                             rows=ROWS if target.device.type == "cpu" else CHUNK, eos_token_id=end, generator=generator)

    if not has_template(tokenizer):
        return [Dialogue([], text, 1.0) for text in texts([before] * CHUNK, TURN + ANSWER, 1.0) if not loops(text)]
    turns = [turn for turn in texts([before] * CHUNK, TURN, 1.0)
             if FEWEST < len(turn) < TURN + 1 and turn[-1] == end and not loops(turn)]
    turns.sort(key=len)  # rows of a batch are padded to its longest
    dialogues = []
    for some, temperature in ((turns[::2], 0.0), (turns[1::2], WARM)):
        answers = texts([[*before, *turn, *between] for turn in some], ANSWER, temperature)
        dialogues += [Dialogue(turn, answer, temperature) for turn, answer in zip(some, answers) if not loops(answer)]
    return dialogues


def distinct(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """All but those whose user's turn, or whose text without one, came before."""
    rows: dict[tuple[int, ...], Dialogue] = {}
    for row in dialogues:
        rows.setdefault(tuple(row.turn or row.answer), row)
    return [*rows.values()]


def _small(tokens: Sequence[int]) -> np.ndarray:
    """Tokens in two bytes each where they fit."""
    return np.array(tokens, np.uint16 if max(tokens, default=0) < 2**16 else np.int32)
