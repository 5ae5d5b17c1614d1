"""This project's loop as a backend in this process, one per number format: trees, growth rules and batches."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Sequence

import torch

from lib.attention.registration import takes_chains
from lib.decoding import loop
from lib.drafters.controls import ExcerptDrafter
from lib.drafters.drafter import ROOT_ALONE, NoDrafter
from lib.engines.driver import Decoded, Running
from lib.engines.methods import FORCED, PLAIN, Way
from lib.lab.timing import synchronise
from lib.models.load import Pair
from lib.trees import named

DEEPEST = 4  # levels of forced drafts: chains side by side, which a check reads as any other tree of as many nodes


@dataclass(frozen=True)
class Own:
    """The loop with the models of a pair, with the interface of `driver.Engine`.

    texts: of which forced drafts are excerpts. temperature: 0 is greedy; above, drafts of chosen children are verified
    by naive sampling.
    """

    pair: Pair
    texts: Sequence[torch.Tensor]
    temperature: float = 0.0
    batches = padded = True
    idles = False
    at_once = 16

    @property
    def name(self) -> str:
        """The name in tables: "own:bfloat16", or "own:bfloat16@0.7" at a temperature."""
        return f"own:{self.pair.dtype.partition('|')[0]}" + (f"@{self.temperature:g}" if self.temperature else "")

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> "Decoding":
        if way.method == FORCED:
            excerpts = ExcerptDrafter(self.texts, self.pair.vocabulary, torch.Generator().manual_seed(0))
            way = replace(way, drafter=excerpts)
        return Decoding(self, way)

    def line(self, way: Way) -> str:
        """The call of `generate`; a tree that was grown from text is written out."""
        try:
            named(way.shape_name)
            shape = f'"{way.shape_name}"'
        except ValueError:
            shape = f"Tree.from_choices({way.shape.choices()})"
        return f'generate(target, make("{way.method}", pair), input_ids, shape={shape})'

    @cached_property
    def chains(self) -> bool:
        """Whether the target takes chains alone."""
        return takes_chains(self.pair.target.config)


@dataclass(frozen=True)
class Decoding(Running):
    """The loop with one way."""

    backend: Own
    way: Way

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """As `Running.decode`; a forced round accepts what its excerpt happens to hold, and is counted by `steps`."""
        pair, drafter, shape = self.backend.pair, self.way.drafter, self.way.shape
        if self.way.name == PLAIN or drafted == 0:
            drafter, shape = NoDrafter(), ROOT_ALONE
        elif self.way.name == FORCED:
            count = 1 if self.backend.chains else -(-drafted // DEEPEST)
            shape = named(f"independent:{count}@{drafted}")
        ids, mask = next(loop.in_batches([torch.tensor(prompt) for prompt in prompts], len(prompts)))
        synchronise(pair.target.device)
        start = time.perf_counter()
        generation = loop.generate(
            pair.target, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new_tokens,
            eos_token_id=list(ends), rule="naive" if self.backend.temperature else "greedy",
            temperature=self.backend.temperature, generator=torch.Generator().manual_seed(sum(map(len, prompts))))
        synchronise(pair.target.device)
        seconds, rounds = time.perf_counter() - start, generation.rounds
        # Of each step the record of its first row: records are ordered by step, then by row.
        steps = [after for before, after in zip([None, *rounds], rounds) if before is None or after.row <= before.row]
        passes = [step for step in steps if step.draft_calls] or steps
        return Decoded(generation.new_tokens, seconds, prefill=seconds - sum(step.seconds for step in steps),
                       drafting=sum(step.draft_seconds for step in steps), steps=len(steps), drafting_steps=len(passes),
                       accepted=generation.accepted)
