"""Text that a model writes by itself, from which its heads, n-grams and draft models learn.

A chat model writes dialogues from its chat template alone: it continues the opening of a user's turn (Xu et al. 2024,
Magpie, section 2), sampled at temperature 1, and then answers it: half of the answers greedily, half at temperature
0.7. A base model continues its first token at temperature 1; such a row has no user's turn.
`python -m lib training own_text --target T --tokens N` writes such text: to data/text, or where a target's text is
committed there, as many more in the training's folder, which heads and draft models learn beside it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np
import torch

from lib.decoding.loop import continuations
from lib.drafters import vocabulary
from lib.drafters.vocabulary import most_frequent
from lib.models.dialogue import has_template, of_user
from lib.models.registry import SMOLLM2
from lib.replay.trace import loops
from lib.training.loop import TrainingPlan

ROWS, ROWS_OF_GPU = 64, 256  # dialogues of one forward pass
CHUNK = 256  # dialogues that are written to one file, after which a stopped run resumes
TURN, ANSWER = 160, 320  # the most tokens of either turn
FEWEST = 4  # tokens of a user's turn
HELD_OUT_SHARE, HELD_OUT_ROWS = 0.02, 24  # of the text, and how many of its windows are evaluated
WARM = 0.7  # the temperature of the odd rows' answers
TEXT = Path(__file__).parents[2] / "data" / "text"  # the committed dialogues, a file per target
TEMPLATE, USER, SAMPLED, GREEDY = range(4)  # who wrote a token of `stream`: nobody, the user, the answer


class Windows(NamedTuple):
    """Rows of text: tokens int64[R, T + 1]; learned bool[R, T], whether the token after each of T is one to learn."""

    tokens: torch.Tensor
    learned: torch.Tensor

    def first(self, rows: int | None) -> "Windows":
        """At most so many rows; all for None."""
        return Windows(*(part[:rows] for part in self))

    def to(self, device) -> "Windows":
        """On another device."""
        return Windows(*(part.to(device) for part in self))

    def split(self, rows: int) -> "list[Windows]":
        """Parts of so many rows."""
        return [Windows(*parts) for parts in zip(*(part.split(rows) for part in self))]


Draw = Callable[[int], Windows]  # the windows of a step


@dataclass(frozen=True)
class Dialogues:
    """Dialogues without their template: tokens uint16[N] of all turns in order (int32 for a vocabulary that needs it),
    and int32[R] lengths of each row's user turn and answer, which include the end of turn where the model wrote it;
    temperature float32[R] of the answer.
    """

    tokens: np.ndarray
    turn: np.ndarray
    answer: np.ndarray
    temperature: np.ndarray

    def __len__(self) -> int:
        return len(self.turn)

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each row's user turn and answer."""
        ends = np.cumsum(self.turn + self.answer)
        for end, turn, answer in zip(ends, self.turn, self.answer):
            yield self.tokens[end - turn - answer : end - answer], self.tokens[end - answer : end]

    def cut(self, first: int) -> tuple["Dialogues", "Dialogues"]:
        """So many rows, and the others."""
        columns = ((array[:first], array[first:]) for array in (self.turn, self.answer, self.temperature))
        tokens = np.split(self.tokens, [int((self.turn + self.answer)[:first].sum())])
        return tuple(Dialogues(*part) for part in zip(tokens, *columns))

    def stream(self, before: Sequence[int], between: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """All rows one after another with their template (see `template`): tokens int64[N], and who wrote each, int8[N]
        of `TEMPLATE`, `USER`, `SAMPLED` and `GREEDY`.
        """
        tokens, writers = [], []
        for (turn, answer), temperature in zip(self.rows(), self.temperature):
            tokens += [before, turn, between, answer]
            writers += np.repeat([TEMPLATE, USER, TEMPLATE, SAMPLED if temperature else GREEDY],
                                 [len(before), len(turn), len(between), len(answer)]).tolist()
        return np.concatenate(tokens).astype(np.int64), np.array(writers, np.int8)

    def save(self, path: Path) -> None:
        """Writes the arrays, compressed, in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, **vars(self))
        os.replace(partial, path)


def load(path: Path) -> Dialogues:
    """Reads a file of `Dialogues.save`."""
    with np.load(path, allow_pickle=False) as file:
        return Dialogues(**{name: file[name] for name in ("tokens", "turn", "answer", "temperature")})


def to_learn(target: str, training: Path, share: float) -> tuple[Dialogues, Dialogues]:
    """A target's dialogues, for training and held out: the committed ones and those that `make` wrote in a training's
    folder; the last of the committed ones, this share of them, are held out.
    """
    committed = load(path_of(target))
    committed, held_out = committed.cut(round((1 - share) * len(committed)))
    further = [load(path) for path in sorted(chunks_of(target, training).glob("*.npz"))]
    if not further:
        return committed, held_out
    return joined([held_out, committed, *further]).cut(len(held_out))[1], held_out


def lessons(pair, name: str, folder: Path, plan: TrainingPlan) -> tuple[Draw, Windows]:
    """The windows of a step of the text that a target wrote, all before any comes again; and windows of the text that
    is held out.
    """
    around = template(pair.tokenizer)
    training, held_out = (windows(*part.stream(*around), plan.length)
                          for part in to_learn(name, folder, HELD_OUT_SHARE))
    steps = max(1, len(training.tokens) // plan.rows)

    def draw(step: int) -> Windows:
        order = torch.randperm(len(training.tokens), generator=plan.generator(step // steps))
        rows = order[step % steps * plan.rows :][: plan.rows]
        return Windows(training.tokens[rows], training.learned[rows])

    return draw, held_out.first(HELD_OUT_ROWS)


def check_there(target: str) -> None:
    """ValueError where a target's text is not committed."""
    if not path_of(target).is_file():
        raise ValueError(f"target {target!r} has no text of its own in data/text; take {SMOLLM2!r}, or a model for "
                         f"which `python -m lib training own_text --target {target}` has written some")


def chunks_of(target: str, training: Path) -> Path:
    """Where a training's folder has the chunks of a target's dialogues."""
    return training / "own_text" / target


def path_of(target: str) -> Path:
    """The committed dialogues of a target, by its name; they need not exist."""
    return TEXT / f"{target}.npz"


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
    mark = "USER"
    text = tokenizer.apply_chat_template(of_user(mark), add_generation_prompt=True, tokenize=False)
    before, after = text.split(mark)
    end = tokenizer.eos_token
    if not after.startswith(end):
        raise ValueError(f"the chat template does not end a user's turn with {end!r}; own text needs one that does")
    return tokenizer(before)["input_ids"], tokenizer(after.removeprefix(end))["input_ids"]


def windows(tokens: np.ndarray, writers: np.ndarray, length: int) -> Windows:
    """A stream of `Dialogues.stream` cut into rows, each of which begins with the last token of the one before; the
    template is not learned.
    """
    places = np.arange((len(tokens) - 1) // length)[:, None] * length + np.arange(length + 1)
    return Windows(torch.from_numpy(tokens[places]), torch.from_numpy(writers[places[:, 1:]] != TEMPLATE))


def make(target, tokenizer, folder: Path, *, tokens: int, seed: int = 0,
         before: Dialogues | None = None) -> Dialogues:
    """Writes dialogues until they hold `tokens` tokens, and joins them; a stopped run resumes from chunks in `folder`.

    Dialogues whose text loops, whose user turn has no end or fewer than `FEWEST` tokens, and those whose user turn was
    there before are dropped. before: dialogues that are there already, and count.
    """
    # Further chunks are numbered from the dialogues that are there on: no chunk of those has such a number.
    parts, number = ([before], len(before)) if before else ([], 0)
    while (num_tokens := sum(len(part.tokens) for part in parts)) < tokens:
        print(f"own text: {num_tokens:,} of {tokens:,} tokens", flush=True)
        path = folder / f"{number:05d}.npz"
        if not path.exists():
            chunk(target, tokenizer, number, seed).save(path)
        parts.append(load(path))
        number += 1
    return joined(parts)


def extend(pair, training: Path, tokens: int) -> None:
    """Writes a target's dialogues up to so many tokens: where none are committed, to data/text with their frequent
    tokens; else further ones, to the training's folder. ValueError as for `template`, before anything is written.
    """
    template(pair.tokenizer)
    path = path_of(pair.target_name)
    before = load(path) if path.is_file() else None
    dialogues = make(pair.target, pair.tokenizer, chunks_of(pair.target_name, training), tokens=tokens, before=before)
    if before is None:
        publish(dialogues, pair.target_name)


def publish(dialogues: Dialogues, target: str) -> None:
    """Writes a target's dialogues, and the tokens of its answers, the most frequent first, where drafters find them."""
    dialogues.save(path_of(target))
    frequent = most_frequent([answer for _, answer in dialogues.rows()])
    path = vocabulary.SHIPPED / target / vocabulary.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, _small(frequent.tolist()), allow_pickle=False)


@torch.inference_mode()
def chunk(target, tokenizer, number: int, seed: int) -> Dialogues:
    """One chunk, a function of the seed and its number."""
    before, between = template(tokenizer)
    end, generator = tokenizer.eos_token_id, torch.Generator().manual_seed(1_000_003 * seed + number)
    beside = ROWS if target.device.type == "cpu" else ROWS_OF_GPU
    if not has_template(tokenizer):
        texts = continuations(target, [torch.tensor(before)] * CHUNK, max_new_tokens=TURN + ANSWER, temperature=1.0,
                              rows=beside, eos_token_id=end, generator=generator)
        return packed([((), text, 1.0) for text in texts if not loops(text)])
    turns = continuations(target, [torch.tensor(before)] * CHUNK, max_new_tokens=TURN, temperature=1.0, rows=beside,
                          eos_token_id=end, generator=generator)
    turns = [turn for turn in turns if FEWEST < len(turn) < TURN + 1 and turn[-1] == end and not loops(turn)]
    turns.sort(key=len)  # rows of a batch are padded to its longest
    rows = []
    for warm in (False, True):
        openings = turns[warm::2]
        prompts = [torch.tensor([*before, *turn, *between]) for turn in openings]
        answers = continuations(target, prompts, max_new_tokens=ANSWER, temperature=WARM if warm else 0.0, rows=beside,
                                eos_token_id=end, generator=generator)
        rows += [(turn, answer, WARM if warm else 0.0) for turn, answer in zip(openings, answers) if not loops(answer)]
    return packed(rows)


def packed(rows: Sequence[tuple[Sequence[int], Sequence[int], float]]) -> Dialogues:
    """Rows of user turn, answer and temperature as arrays."""
    flat = [token for turn, answer, _ in rows for token in (*turn, *answer)]
    turn, answer = ([len(row[i]) for row in rows] for i in (0, 1))
    return Dialogues(_small(flat), np.array(turn, np.int32), np.array(answer, np.int32),
                     np.array([row[2] for row in rows], np.float32))


def joined(parts: Sequence[Dialogues]) -> Dialogues:
    """All rows of the parts but those whose user turn, or whose text without one, was there before."""
    rows: dict[tuple[int, ...], tuple] = {}
    for part in parts:
        for (turn, answer), temperature in zip(part.rows(), part.temperature):
            text = turn.tolist(), answer.tolist()
            rows.setdefault(tuple(text[0] or text[1]), (*text, float(temperature)))
    return packed(list(rows.values()))


def _small(tokens: Sequence[int]) -> np.ndarray:
    """Tokens in two bytes each where they fit."""
    return np.array(tokens, np.uint16 if max(tokens, default=0) < 2**16 else np.int32)
