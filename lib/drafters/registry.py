"""The kinds of drafters by name, and the one factory of them.

A new kind is a subclass of `Drafter` in a file of its own, and one row here: studies, the recommendation, explorers and
the readers of logs take it from its row.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from typing import get_args

from lib.drafters.drafter import AGAIN, BY_RANKS, Drafter, Traits


@dataclass(frozen=True)
class Kind:
    """A kind of drafter: "module:Class", imported when it is used, a short description of its proposals, its traits."""

    home: str
    about: str
    traits: Traits = Traits()

    @property
    def drafter(self) -> type[Drafter]:
        """The class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)

    @property
    def options(self) -> dict[str, Parameter]:
        """The options that the class takes, by name: see `Drafter.of`."""
        parameters = signature(self.drafter.of).parameters.values()
        named = [option for option in parameters if option.kind is Parameter.KEYWORD_ONLY]
        if any(option.kind is Parameter.VAR_KEYWORD for option in parameters):
            named += [option for option in signature(self.drafter).parameters.values()
                      if option.kind is Parameter.KEYWORD_ONLY or option.default is not Parameter.empty]
        return {option.name: option for option in reversed(named)}  # those of `of` replace the constructor's


DRAFTERS: dict[str, Kind] = {
    "none": Kind("lib.drafters.drafter:NoDrafter", "nothing: plain decoding"),
    "model": Kind(
        "lib.drafters.language_model:LanguageModelDrafter", "a language model's most likely tokens, or its samples",
        Traits(BY_RANKS, grows=True, option="proposal", needs_draft_model=True, specs=("model",), advised=True)),
    "plain": Kind(
        "lib.drafters.plain:PlainDrafter",
        "a language model without a cache, one forward pass per node: the reference for the others",
        Traits(AGAIN, option="proposal", needs_draft_model=True)),
    "ngrams": Kind(
        "lib.drafters.text_drafters:NgramDrafter", "n-grams of the text, then those counted on the target's own text",
        Traits(BY_RANKS, option="enough", head="ngrams", reads_text=True)),
    "lookup": Kind(
        "lib.drafters.text_drafters:LookupDrafter", "the tokens after earlier occurrences of the last few tokens",
        Traits(AGAIN, option="order", reads_text=True, specs=("lookup", "lookup:frequent"), advised=True)),
    "sam": Kind(
        "lib.drafters.text_drafters:SuffixAutomatonDrafter",
        "the tokens after the longest earlier match of any length",
        Traits(AGAIN, option="shortest", reads_text=True, specs=("sam",), advised=True)),
    "combined": Kind(
        "lib.drafters.combined:CombinedDrafter",
        "the longest earlier match where it is long enough, a model or a head elsewhere",
        Traits(AGAIN, option="enough", needs_draft_model=True, specs=("combined",), advised=True)),
    "adaptive": Kind(
        "lib.drafters.adaptive:AdaptiveDrafter", "a language model that drafts as deep as its last rounds advise",
        Traits(option="policy", needs_draft_model=True,
               specs=("adaptive:schedule", "adaptive:complexity", "adaptive:pays"))),
    "confident": Kind(
        "lib.drafters.adaptive:ConfidentDrafter", "a language model that stops where its confidence is low",
        Traits(AGAIN, option="threshold", needs_draft_model=True, specs=("confident",))),
    "merged": Kind(
        "lib.drafters.merged:MergedDrafter", "several language models' trees, or samples, in one tree",
        Traits(option="proposal", needs_draft_model=True, specs=("merged",))),
    "medusa": Kind(
        "lib.drafters.marginals:MedusaDrafter", "heads on the target's last hidden state, one per depth",
        Traits(BY_RANKS, grows=True, per_depth=True, one_pass=True, head="medusa")),
    "eagle3": Kind(
        "lib.drafters.eagle3:Eagle3Drafter", "a layer that continues features fused from three of the target's layers",
        Traits(BY_RANKS, grows=True, idle_passes=1, head="eagle3")),
    "dflash": Kind(
        "lib.drafters.marginals:DFlashDrafter", "layers that predict every depth in one forward pass",
        Traits(BY_RANKS, grows=True, per_depth=True, one_pass=True, head="dflash")),
    "dspark": Kind(
        "lib.drafters.marginals:DSparkDrafter", "a block head, with a bias from each node's parent token",
        Traits(BY_RANKS, grows=True, one_pass=True, head="dspark")),
    "choosing": Kind(
        "lib.drafters.choosing:ChoosingDrafter", "whichever of several drafters is fastest, or suits the text's length",
        Traits(option="by")),
    "mtp": Kind(
        "lib.drafters.mtp:MtpDrafter", "the target's own multi-token-prediction module",
        Traits(specs=("mtp",), advised=True)),
    "random": Kind(
        "lib.drafters.controls:RandomDrafter", "uniform random tokens", Traits(specs=("random",), control=True)),
    "oracle": Kind(
        "lib.drafters.controls:OracleDrafter", "the target's own continuation",
        Traits(specs=("oracle",), control=True)),
}


@cache
def traits_of(drafter: type[Drafter]) -> Traits:
    """The traits in the row of a class, or of the first of its bases that has one; the defaults without one."""
    by_home = {kind.home: kind.traits for kind in DRAFTERS.values()}
    homes = [f"{base.__module__}:{base.__qualname__}" for base in drafter.__mro__]
    return next((by_home[home] for home in homes if home in by_home), Traits())


def make(spec: str, pair, **options) -> Drafter:
    """The drafter of a kind for a pair, with options in its name if wanted: "sam:2" (see `parse`).

    pair: target, draft_model and target_name, as in `lib.models.load.Pair`; a kind reads those that it needs.
    ValueError for options that the kind does not take, and for missing ones.
    """
    name, main = parse(spec)
    kind, options = DRAFTERS[name], {**options, **main}
    taken = kind.options
    unknown = sorted(options.keys() - taken.keys())
    if unknown:
        raise ValueError(f"drafter {name!r} takes no option {', '.join(unknown)}; it takes "
                         f"{', '.join(sorted(taken)) or 'none'}")
    missing = sorted(option for option in taken.keys() - options.keys() if taken[option].default is Parameter.empty)
    if missing:
        raise ValueError(f"drafter {name!r} ({kind.about}) needs {', '.join(missing)}; pass it by keyword")
    return kind.drafter.of(pair, **options)


def advised(pair) -> list[str]:
    """The kinds, of those that are advised by their names alone, that a pair can have."""
    return [name for name, kind in DRAFTERS.items() if kind.traits.advised and not kind.drafter.refusal(pair.target)
            and (pair.draft_model is not None or not kind.traits.needs_draft_model)]


def heads_for(target: str) -> list[str]:
    """The kinds of drafters whose trained head, or tables, ship for a target or were made here."""
    from lib.drafters.heads.store import made_for  # brings transformers, which names and options do not need

    available = made_for(target)
    return [name for name, kind in DRAFTERS.items() if kind.traits.head in available]


def head_of(spec: str) -> str:
    """The kind of trained head, or of tables, that a drafter reads; empty for none."""
    name, options = parse(spec)
    return DRAFTERS[name].traits.head or (head_of(str(options["behind"])) if "behind" in options else "")


def needs_draft_model(spec: str) -> bool:
    """Whether a pair has to have a draft model for such a drafter."""
    name, options = parse(spec)
    return DRAFTERS[name].traits.needs_draft_model and options.get("behind", "model") == "model"


def parse(spec: str) -> tuple[str, dict[str, object]]:
    """A kind's name, and the options after its colons: the value of the main one alone, others with their names.

    "combined:3:vocabulary=8192" gives ("combined", {"enough": 3, "vocabulary": 8192}). A comma may stand for the colon
    before a name.
    """
    name, *parts = re.split(r":|,(?=\w+=)", spec)
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    return name, dict(_option(spec, name, part) for part in parts)


def _option(spec: str, name: str, part: str) -> tuple[str, object]:
    """The option and the value that a part of a spec gives."""
    option, named, text = part.rpartition("=")
    main, taken = DRAFTERS[name].traits.option, DRAFTERS[name].options
    if not text or not (named or main):
        raise ValueError(f"drafter is {spec!r}; " + (f"give a value for {main} after the colon" if main else
                                                     f"{name} takes no value after its name"))
    if named and option not in taken:
        raise ValueError(f"drafter {name!r} takes no option {option}; it takes {', '.join(sorted(taken)) or 'none'}")
    kind = taken[option or main].annotation
    kind = next(iter(get_args(kind)), kind)  # of int | Tensor the first
    if kind not in (int, float, str):
        raise ValueError(f"drafter is {spec!r}, but {option} cannot be written in its name; pass it by keyword")
    try:
        return option or main, kind(text)
    except ValueError:
        raise ValueError(f"drafter is {spec!r}, but {option or main} is a number; give one after the colon") from None
