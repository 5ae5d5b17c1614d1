"""For tests of engines: one that decodes with the loop of this project and whose clock is a formula; scripts of
`lib.engines.workers` in this process, with stand-ins of the packages that they drive; and what these should count.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from lib.decoding import loop
from lib.drafters.drafter import NoDrafter
from lib.engines import driver
from lib.engines.driver import Decoded
from lib.engines.methods import FORCED, Method, Sizes, Way, rounds_of
from lib.replay.recording import Texts, read
from lib.replay.simulated import Recorded

PREFILL, DRAFTING = 5.0, 0.2


def import_worker(name: str, **packages):
    """The module of a script, which finds these objects in the place of packages."""
    folder = str(Path(driver.__file__).with_name("workers"))
    with mock.patch.dict(sys.modules, packages), mock.patch.object(sys, "path", [folder, *sys.path]):
        return importlib.import_module(name)


def replayed(way: Way, prompt: torch.Tensor, text: Sequence[int], new_tokens: int) -> Sizes:
    """The rounds of a way that decodes so many tokens, of which `text` has more, after a prompt int64[T]."""
    trace = read(None, {}, Texts(["a"], ["b"], [prompt], [text], [False]))
    recorded = Recorded(replace(trace, lengths=np.array([new_tokens - 1])), [prompt])
    return rounds_of(way, recorded, new_tokens)[0]


def seconds(rows: int, drafted: int, speculates: bool) -> float:
    """Of a step that checks so many draft tokens of so many prompts together."""
    return 1.0 + 0.1 * rows + (0.1 + 0.05 * drafted if speculates else 0.0)


@dataclass
class StandIn:
    """With the interface of `driver.Engine`. calls: that it answers before it dies; started: how often it was."""

    target: object
    calls: float = float("inf")
    started: list[Way] = field(default_factory=list)
    name, batches, idles, padded, at_once = "stand-in", True, True, False, 3
    methods = Method("lookup", "ngram"), Method("model", "draft_model", lambda pair: pair.draft_model)

    def line(self, way: Way) -> str:
        return f"--draft {way.nodes}"

    def start(self, way: Way, **limits) -> "Running":
        self.started.append(way)
        return Running(self, way)


@dataclass
class Running(driver.Running):
    """The engine with a way to draft."""

    engine: StandIn
    way: Way

    def decode(self, prompts, new_tokens, ends=(), drafted=None) -> Decoded:
        self.engine.calls -= 1
        if self.engine.calls < 0:
            raise RuntimeError("the stand-in ended with status -9")
        if self.way.method == FORCED:
            step = seconds(len(prompts), len(prompts) * drafted, True)
            return Decoded([[0] * new_tokens for _ in prompts], PREFILL + (new_tokens - 1) * step, PREFILL)
        drafting, clock = DRAFTING * self.way.nodes if self.way.weights else 0.0, [PREFILL]

        def observe(rows, drafts, decisions):
            nodes = sum(draft.tree.budget for draft in drafts)
            clock.append(seconds(len(rows), nodes, self.way.nodes > 0) + drafting)

        ids, mask = next(loop.in_batches([torch.tensor(prompt) for prompt in prompts], len(prompts)))
        done = loop.generate(self.engine.target, self.way.drafter or NoDrafter(), ids, shape=self.way.shape,
                             attention_mask=mask, max_new_tokens=new_tokens, eos_token_id=list(ends) or None,
                             observe=observe)
        return Decoded(done.new_tokens, sum(clock), PREFILL, drafts=sum(one.drafted > 0 for one in done.rounds),
                       drafted=done.drafted, accepted=done.accepted)
