"""For which batch size and length of text speculation pays: the five steps, but for the race, on prompts of each
length.

Prompts are cut from real text. Their texts, rounds, costs, predictions and answers are tables in a folder of the run
for each length; "schedule" has the fastest way for each batch size and length.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lib.models import dialogue
from lib.models import prompts as prompt_files
from lib.models.prompts import PromptSet
from lib.study.bench import Bench, arranged

PER_KIND = 2  # prompts of each kind of text and length: one chooses, one judges
MOST_TOKENS = 8192  # of all texts of a batch: larger ones are not timed


def measure(bench: Bench, tokenizer, lengths: Sequence[int], steps: Callable[[Bench], None]) -> None:
    """Adds the missing rows of the table "schedule". steps: fills the table "answers" of a bench."""
    table = bench.store.open("schedule")
    for length in lengths:
        batches = [batch for batch in bench.batches
                   if batch * length <= MOST_TOKENS and (bench.backend.name, batch, length) not in table.keys()]
        if not batches:
            continue
        prompts, parts = arranged(prompts_of_length(tokenizer, length), 1, 1, bench.generator("length", length))
        store = replace(bench.store, folder=bench.store.folder / "lengths" / str(length))
        after_length = replace(bench, store=store, prompts=prompts, parts=parts, raced=dict.fromkeys(batches, 0))
        steps(after_length)
        answers = after_length.rows_of("answers").query("role == 'recommended'").assign(length=length)
        table.extend(answers[list(table.schema.kinds)])


def prompts_of_length(tokenizer, length: int, texts: Path = prompt_files.FAMILY) -> PromptSet:
    """PER_KIND prompts of each kind with `length` tokens of text, and those of the chat template where there is one, of
    a file's or folder's texts, joined by kind. Kinds that are too short are left out; ValueError where all are.
    """
    by_kind, prompts = {}, []
    for row in prompt_files.rows(texts, most_characters=None):
        by_kind.setdefault(row.kind, []).extend(tokenizer(
            row.messages[-1]["content"] + "\n\n", add_special_tokens=False, split_special_tokens=True)["input_ids"])
    for kind, tokens in by_kind.items():
        for number in range(PER_KIND if len(tokens) >= PER_KIND * length else 0):
            piece = tokens[number * length : (number + 1) * length]
            if dialogue.has_template(tokenizer):
                ids = dialogue.tokenise(dialogue.of_user(tokenizer.decode(piece, skip_special_tokens=True)), tokenizer)
            else:
                ids = torch.cat([dialogue.plain("", tokenizer), torch.tensor(piece)])
            prompts.append((f"{kind}-{length}-{number}", kind, ids, 1))
    if not prompts:
        raise ValueError(f"no kind of text in {texts} has {PER_KIND} x {length} tokens; give a smaller length, or a "
                         "folder with more text")
    return PromptSet(*zip(*prompts))
