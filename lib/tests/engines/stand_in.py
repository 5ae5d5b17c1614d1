"""A serving engine for tests: it decodes with the loop of this project, and its clock is a formula."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from lib.decoding import generate
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.engines.driver import Decoded, EngineError
from lib.engines.methods import FORCED, Method, Setting

PREFILL, DRAFTING = 5.0, 0.2


def seconds(rows: int, drafted: int, speculates: bool) -> float:
    """Of a step that checks so many draft tokens of so many prompts together."""
    return 1.0 + 0.1 * rows + (0.1 + 0.05 * drafted if speculates else 0.0)


@dataclass
class StandIn:
    """See `registry.Served`. calls: that it answers before it dies; started: how often it was."""

    calls: float = float("inf")
    started: list[Setting] = field(default_factory=list)
    environment, batches, idles = None, True, True
    methods = (Method("lookup", "ngram", drafter=lambda pair, tokens: LookupDrafter()),
               Method("model", "draft_model", lambda pair: pair.draft_model))

    def line(self, setting: Setting) -> str:
        return f"--draft {setting.tokens}"

    def start(self, target, setting: Setting, *, log: Path, **limits) -> "Running":
        self.started.append(setting)
        return Running(self, target, setting)


@dataclass
class Running:
    """See `driver.Running`."""

    engine: StandIn
    target: object
    setting: Setting

    def decode(self, prompts, new_tokens, ends=(), drafted=None) -> Decoded:
        self.engine.calls -= 1
        if self.engine.calls < 0:
            raise EngineError("the stand-in ended with status -9")
        drafts, clock = [], [PREFILL]
        if self.setting.method == FORCED:
            step = seconds(len(prompts), len(prompts) * drafted, True)
            return Decoded([[0] * new_tokens for _ in prompts], PREFILL + (new_tokens - 1) * step, PREFILL)

        def observe(rows, made, decisions):
            sizes = [draft.tree.budget for draft in made]
            drafts.extend((size, len(kept)) for size, (kept, _) in zip(sizes, decisions))
            clock.append(seconds(len(rows), sum(sizes), self.setting.tokens > 0)
                         + DRAFTING * self.setting.tokens * bool(self.setting.drafter))

        widest = max(map(len, prompts))
        rows = [[0] * (widest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        drafter = (LanguageModelDrafter(self.setting.drafter) if self.setting.drafter else
                   LookupDrafter() if self.setting.tokens else NoDrafter())
        done = generate(self.target, drafter, torch.tensor(rows), shape=f"chain:{self.setting.tokens}",
                        attention_mask=torch.tensor(mask), max_new_tokens=new_tokens, eos_token_id=list(ends) or None,
                        observe=observe)
        accepted = [sum(kept > position for _, kept in drafts) for position in range(self.setting.tokens)]
        return Decoded(done.new_tokens, sum(clock), PREFILL, drafts=sum(size > 0 for size, _ in drafts),
                       drafted=sum(size for size, _ in drafts), accepted=accepted)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Nothing runs."""
