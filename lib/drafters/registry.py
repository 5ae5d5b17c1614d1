"""Every kind of drafter by name, and what each is made of."""

from dataclasses import dataclass
from typing import Callable

from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter


@dataclass(frozen=True)
class Kind:
    """A kind of drafter: the keywords that `build` needs, those it may be given, and how its children are chosen.

    replayable: whether its drafts depend on the committed tokens and the path alone, through one rank a position, so
    that a trace's ranks decide every shape.
    """

    build: Callable[..., Drafter]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    proposal: str
    replayable: bool
    about: str


def _sampling(proposal: str) -> Callable[..., Drafter]:
    return lambda model, **options: LanguageModelDrafter(model, proposal=proposal, **options)


def _merging(models, **options) -> MergedDrafter:
    return MergedDrafter([LanguageModelDrafter(model, **options) for model in models])


_WARPED = ("temperature", "vocabulary")
DRAFTERS: dict[str, Kind] = {
    "top_k": Kind(LanguageModelDrafter, ("model",), (*_WARPED, "keep_probs"), "top_k", True,
                  "a language model's most likely tokens"),
    "iid": Kind(_sampling("iid"), ("model",), _WARPED, "iid", False, "a language model's independent samples"),
    "without_replacement": Kind(_sampling("without_replacement"), ("model",), _WARPED, "without_replacement", False,
                                "a language model's distinct samples"),
    "plain": Kind(PlainDrafter, ("model",), ("proposal", "temperature"), "top_k", True,
                  "the same without a cache, a forward a node: the oracle of the others"),
    "lookup": Kind(LookupDrafter, (), ("longest", "shortest", "order"), "top_k", False,
                   "what followed the last tokens when they stood in the text before"),
    "merged": Kind(_merging, ("models",), ("vocabulary",), "top_k", False, "several language models' trees in one"),
    "random": Kind(RandomDrafter, ("vocabulary", "generator"), (), "top_k", False, "uniform random tokens"),
    "oracle": Kind(OracleDrafter, ("prompts", "continuations", "vocabulary", "generator"), (), "top_k", False,
                   "the target's own continuation"),
}


def make(name: str, **given) -> Drafter:
    """A drafter by its kind's name, from those of the keywords that it takes. ValueError for what is missing."""
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    kind = DRAFTERS[name]
    missing = [word for word in kind.needs if word not in given]
    if missing:
        raise ValueError(f"drafter {name!r} ({kind.about}) needs {', '.join(missing)}; pass it by keyword")
    return kind.build(**{word: value for word, value in given.items() if word in kind.needs + kind.takes})
