"""transformers, in this project's own environment: its driver, its settings, and drafters that draft as it does.

What is said of it holds for 5.23. It drafts from the prompt on, in the forward pass that reads it: the first round
starts at the prompt's last token, and has its check in the time of the prefill.
"""

from collections.abc import Sequence
from pathlib import Path

from lib.drafters.drafter import merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.engines import exports
from lib.engines.driver import Engine, Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, LONGEST, Method, Way, cut, shortened
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

    def __init__(self, ends: Sequence[int], longest: int = LONGEST):
        super().__init__(longest)
        self.stops = ends

    def changed(self, tokens: list[int], depth: int) -> list[int]:
        return tokens[: first_end(tokens, self.stops)]


class EndedModelDrafter(LanguageModelDrafter):
    """Drafts as the engine's assistant: a model's chain, up to the first token that ends a text, which it keeps."""

    def __init__(self, model, ends: Sequence[int]):
        super().__init__(model)
        self.stops = ends

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        drafts = [draft.token_list for draft in super().propose(shape, draws)]
        return [merge(root, [drafted[: first_end(drafted, self.stops) + 1]]) for root, *drafted in drafts]


def first_end(tokens: Sequence[int], ends: Sequence[int]) -> int:
    """The position of the first token that ends a text, or the number of tokens."""
    return next((position for position, token in enumerate(tokens) if token in ends), len(tokens))


class Transformers(Engine):
    """It drafts for one prompt at a time."""

    title, environment, batches = "transformers", Environment("transformers"), False
    methods = (
        Method("lookup", LOOKUP, drafter=lambda pair, tokens: CutLookupDrafter(pair.eos_token_ids), ending=cut,
               at_prompt=True),
        Method("model", ASSISTANT, exports.draft_model,
               lambda pair, tokens: EndedModelDrafter(pair.draft_model, pair.eos_token_ids), shortened, at_prompt=True))

    def command(self, way: Way) -> str:
        return LINES[way.method].format(tokens=way.nodes, drafter=way.weights)

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Worker:
        options = {"prompt_lookup_num_tokens": way.nodes, "max_matching_ngram_size": LONGEST}
        return Worker(
            self.title, self.environment.python, "transformers_worker.py", log,
            {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(self.threads)}, model=str(exports.folder(self.target)),
            tokens=way.nodes, method=way.method, drafter=way.weights, dtype=self.dtype, threads=self.threads,
            options=options if way.method in (LOOKUP, FORCED) else {})
