"""Dialogues that a chat model writes by itself, from which its heads, n-grams and draft models learn.

It continues the opening of a user's turn in its chat template (Xu et al. 2024, Magpie, section 2), sampled at
temperature 1, and then answers it: half of the answers greedily, half at temperature 0.7.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lib.decoding.loop import continuations
from lib.drafters.heads.files import NGRAMS
from lib.drafters.text_drafters import save_tables
from lib.drafters.text_index import count_tables
from lib.models.dialogue import has_template, of_user
from lib.replay.trace import loops

TEXT = Path(__file__).parents[2] / "data" / "text"  # a file per target
CHUNK, HELD_OUT = 128, 24  # dialogues that are begun together; windows
TURN, FEWEST, ANSWER = 160, 4, 320  # the most and the fewest tokens of a user's turn, and the most of an answer
WARM = 0.7  # the temperature of half of the answers
MARK = "\ue000"  # stands for a user's text: templates do not have it

Dialogues = dict[tuple[int, ...], list[int]]  # answers by user's turn, as tokens without template, with ends of turn
Windows = tuple[Tensor, Tensor]  # tokens int64[R, T + 1]; bool[R, T]: whether the token after each of T is learned


def save(target: str, dialogues: Dialogues) -> None:
    """Writes a target's file: the tokens of all turns in order, and the lengths of both turns."""
    TEXT.mkdir(parents=True, exist_ok=True)
    tokens, partial = [*chain.from_iterable(chain(*dialogues.items()))], TEXT / f"{target}.partial.npz"
    np.savez_compressed(partial, tokens=np.array(tokens, np.min_scalar_type(max(tokens, default=0))),
                        turn=[*map(len, dialogues)], answer=[*map(len, dialogues.values())])
    partial.replace(TEXT / f"{target}.npz")


def load(target: str) -> Dialogues:
    """The dialogues that a target wrote. ValueError where there are none."""
    path = TEXT / f"{target}.npz"
    if not path.is_file():
        raise ValueError(f"target {target!r} has no text of its own in data/text; take a model that has, or let it "
                         "write some: `python -m lib training own_text`")
    with np.load(path, allow_pickle=False) as file:
        lengths = np.stack([file["turn"], file["answer"]], axis=1).ravel()
        parts = [part.tolist() for part in np.split(file["tokens"], lengths.cumsum()[:-1])]
    return dict(zip(map(tuple, parts[::2]), parts[1::2]))


def lessons(pair, length: int) -> tuple[Windows, Windows]:
    """Windows of a target's dialogues, one after another with their template, which is not learned; and the first
    windows, which are held out. Each begins with the last token of the one before. ValueError without such text.
    """
    (before, between), tokens, learned = template(pair), [], []
    for turn, answer in load(pair.target_name).items():
        tokens += [*before, *turn, *between, *answer]
        learned += [False] * len(before) + [True] * len(turn) + [False] * len(between) + [True] * len(answer)
    rows = torch.arange((len(tokens) - 1) // length)[:, None] * length + torch.arange(length + 1)
    if len(rows) < 2 * HELD_OUT:
        raise ValueError(f"target {pair.target_name!r} wrote {len(tokens)} tokens, less than {2 * HELD_OUT} windows of "
                         f"{length}; let it write more: `python -m lib training own_text`")
    tokens, learned = torch.tensor(tokens)[rows], torch.tensor(learned)[rows[:, 1:]]
    return (tokens[HELD_OUT:], learned[HELD_OUT:]), (tokens[:HELD_OUT], learned[:HELD_OUT])


def template(pair) -> tuple[list[int], list[int]]:
    """The tokens before a user's first turn, and those between its end of turn and the answer. ValueError for a target
    that is no chat model, or whose template does not end a turn with its end of sequence.
    """
    tokenizer, rendered = pair.tokenizer, MARK
    if has_template(tokenizer):
        rendered = tokenizer.apply_chat_template(of_user(MARK), add_generation_prompt=True, tokenize=False)
    before, after = rendered.split(MARK)
    if not (end := tokenizer.eos_token) or not after.startswith(end):
        raise ValueError(f"target {pair.target_name!r} has no chat template that ends a user's turn with {end!r}; take "
                         "a chat model that has one")
    return tokenizer(before)["input_ids"], tokenizer(after.removeprefix(end))["input_ids"]


def write(pair, num_tokens: int) -> None:
    """Adds to a target's dialogues until they have so many tokens; a stopped run resumes. ValueError as for `template`,
    and where no dialogue of a chunk is kept.
    """
    dialogues = load(pair.target_name) if (TEXT / f"{pair.target_name}.npz").is_file() else {}
    number = len(dialogues)  # of no chunk that wrote these
    while (written := sum(map(len, chain(*dialogues.items())))) < num_tokens:
        print(f"own text: {written:,} of {num_tokens:,} tokens", flush=True)
        if not (kept := chunk(pair, number)):
            raise ValueError(f"target {pair.target_name!r} wrote {CHUNK} dialogues, of which none has a turn that ends "
                             f"within {TURN} tokens and an answer without a loop; take another chat model")
        dialogues |= kept
        save(pair.target_name, dialogues)
        number += 1


@torch.inference_mode()
def chunk(pair, number: int) -> Dialogues:
    """A function of the number, without texts that loop and turns without an end; half of the answers are greedy."""
    (before, between), end = template(pair), pair.tokenizer.eos_token_id
    generator = torch.Generator().manual_seed(number)

    def texts(prompts: Sequence[Sequence[int]], most: int, temperature: float) -> list[list[int]]:
        return continuations(pair.target, [*map(torch.tensor, prompts)], max_new_tokens=most, temperature=temperature,
                             rows=CHUNK, eos_token_id=end, generator=generator)

    turns, dialogues = texts([before] * CHUNK, TURN, 1.0), {}
    turns = [turn for turn in turns if FEWEST < len(turn) and turn[-1] == end and not loops(turn)]
    for part, temperature in ((turns[::2], 0.0), (turns[1::2], WARM)):
        answers = texts([[*before, *turn, *between] for turn in part], ANSWER, temperature)
        dialogues |= {tuple(turn): answer for turn, answer in zip(part, answers) if not loops(answer)}
    return dialogues


def count_ngrams(pair, folder: Path) -> None:
    """Counts tables of n-grams in a target's answers into folder/heads/TARGET/ngrams. ValueError without text."""
    dialogues, (before, between) = load(pair.target_name), template(pair)
    tables = count_tables([[*before, *turn, *between] for turn in dialogues], dialogues.values(), pair.vocabulary)
    save_tables(tables, folder / "heads" / pair.target_name / NGRAMS, {"entries": [*map(len, tables.orders)]})
