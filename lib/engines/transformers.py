"""transformers, in this project's own environment: its driver, its settings, and drafters that draft as it does.

What is said of it holds for 5.23. It drafts from the prompt on, in the forward pass that reads it: the first round
starts at the prompt's last token, and has its check in the time of the prefill.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lib.drafters.drafter import merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_index import LookupIndex
from lib.engines import exports
from lib.engines.driver import Worker
from lib.engines.environments import Environment
from lib.engines.methods import LONGEST, Method, Setting, cut, shortened
from lib.engines.vllm import NgramDrafter
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

LOOKUP, ASSISTANT = "prompt_lookup", "assistant_model"
LINES = {  # by method; with another schedule, or a threshold above 0, the drafter stops and adapts on its own
    LOOKUP: f"model.generate(**inputs, prompt_lookup_num_tokens={{tokens}}, max_matching_ngram_size={LONGEST})",
    ASSISTANT: "assistant_model = AutoModelForCausalLM.from_pretrained({drafter!r}); "
               "assistant_model.generation_config.update(num_assistant_tokens={tokens}, "
               'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)'}


class CutLookupDrafter(NgramDrafter):
    """Drafts as the engine's look-up: the tokens after the first occurrence of the text's last tokens, before the first
    token that ends a text.
    """

    def __init__(self, max_matching_ngram_size: int = 2, ends: Sequence[int] = ()):
        super().__init__(max_matching_ngram_size, 1)
        self.stops = ends

    def draft(self, text: LookupIndex, shape: Tree | Growth) -> Draft:
        """One chain."""
        root, *drafted = super().draft(text, shape).token_list
        return merge(root, [drafted[: first_end(drafted, self.stops)]])


class EndedModelDrafter(LanguageModelDrafter):
    """Drafts as the engine's assistant: a model's chain, up to the first token that ends a text, which it keeps."""

    def __init__(self, model, ends: Sequence[int]):
        super().__init__(model)
        self.stops = ends

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One chain for each row."""
        drafts = [draft.token_list for draft in super().propose(shape, draws)]
        return [merge(root, [drafted[: first_end(drafted, self.stops) + 1]]) for root, *drafted in drafts]


def first_end(tokens: Sequence[int], ends: Sequence[int]) -> int:
    """The position of the first token that ends a text, or the number of tokens."""
    return next((position for position, token in enumerate(tokens) if token in ends), len(tokens))


class Here(Environment):
    """This project's own, which has the engine."""

    is_there, folder, python = True, Path(sys.prefix), Path(sys.executable)


class Transformers:
    """The engine: see `registry.Served`. It drafts for one prompt at a time."""

    name, batches, idles = "transformers", False, False
    environment = Here("transformers", (), "Apache-2.0", 0, 0)
    methods = (
        Method("lookup", LOOKUP, None, lambda pair, tokens: CutLookupDrafter(LONGEST, pair.eos_token_ids), cut,
               at_prompt=True),
        Method("model", ASSISTANT, exports.draft_model,
               lambda pair, tokens: EndedModelDrafter(pair.draft_model, pair.eos_token_ids), shortened, at_prompt=True))

    def line(self, setting: Setting) -> str:
        """What a user sets."""
        return LINES[setting.method].format(tokens=setting.tokens, drafter=setting.drafter)

    def start(self, target, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> Worker:
        """As `registry.Served` calls it."""
        options = {"max_matching_ngram_size": LONGEST} if setting.method == LOOKUP else {}
        return Worker(self.name, self.environment.python, "transformers_worker.py", log,
                      {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}, model=str(exports.folder(target)),
                      tokens=setting.tokens, method=setting.method, drafter=setting.drafter, options=options,
                      dtype=dtype, threads=threads)


TRANSFORMERS = Transformers()
