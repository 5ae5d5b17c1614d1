"""A serving engine for tests: it decodes with the loop of this project, and its clock is a formula."""

from dataclasses import dataclass, field

import torch

from lib.decoding import loop
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.engines import driver
from lib.engines.driver import Decoded
from lib.engines.methods import FORCED, Method, Way

PREFILL, DRAFTING = 5.0, 0.2


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
    methods = (Method("lookup", "ngram", drafter=lambda pair, tokens: LookupDrafter()),
               Method("model", "draft_model", lambda pair: pair.draft_model))

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
        drafts, clock = [], [PREFILL]
        if self.way.method == FORCED:
            step = seconds(len(prompts), len(prompts) * drafted, True)
            return Decoded([[0] * new_tokens for _ in prompts], PREFILL + (new_tokens - 1) * step, PREFILL)

        def observe(rows, made, decisions):
            sizes = [draft.tree.budget for draft in made]
            drafts.extend((size, len(kept)) for size, (kept, _) in zip(sizes, decisions))
            clock.append(seconds(len(rows), sum(sizes), self.way.nodes > 0)
                         + DRAFTING * self.way.nodes * bool(self.way.weights))

        ids, mask = next(loop.in_batches([torch.tensor(prompt) for prompt in prompts], len(prompts)))
        drafter = (LanguageModelDrafter(self.way.weights) if self.way.weights else
                   LookupDrafter() if self.way.nodes else NoDrafter())
        done = loop.generate(self.engine.target, drafter, ids, shape=self.way.shape, attention_mask=mask,
                             max_new_tokens=new_tokens, eos_token_id=list(ends) or None, observe=observe)
        return Decoded(done.new_tokens, sum(clock), PREFILL, drafts=sum(size > 0 for size, _ in drafts),
                       drafted=sum(size for size, _ in drafts), accepted=sum(kept for _, kept in drafts))
