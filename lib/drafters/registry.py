"""The kinds of drafters by name, and the one factory of them.

A new kind is a subclass of `Drafter` in any module, and one row here.
"""

from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import get_args

from lib.drafters.drafter import Drafter


@dataclass(frozen=True)
class Kind:
    """A kind of drafter: "module:Class", imported when it is used, and a short description of its proposals."""

    home: str
    about: str

    @property
    def drafter(self) -> type[Drafter]:
        """The class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)

    @property
    def options(self) -> dict[str, Parameter]:
        """The options that the class takes, by name: see `Drafter.of`."""
        parameters = signature(self.drafter.of).parameters.values()
        named = [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
        if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
            named += [each for each in signature(self.drafter).parameters.values()
                      if each.kind is Parameter.KEYWORD_ONLY or each.default is not Parameter.empty]
        return {each.name: each for each in reversed(named)}  # those of `of` take the place of the constructor's


DRAFTERS: dict[str, Kind] = {
    "none": Kind("lib.drafters.drafter:NoDrafter", "nothing: plain decoding"),
    "model": Kind("lib.drafters.language_model:LanguageModelDrafter",
                  "a language model's most likely tokens, or its samples"),
    "plain": Kind("lib.drafters.plain:PlainDrafter",
                  "the same without a cache, with a forward pass per node: the oracle of the others"),
    "lookup": Kind("lib.drafters.lookup:LookupDrafter", "the tokens after earlier occurrences of the last few tokens"),
    "sam": Kind("lib.drafters.suffix_automaton:SuffixAutomatonDrafter",
                "the tokens after the longest earlier match of any length"),
    "recycling": Kind("lib.drafters.recycling:RecyclingDrafter",
                      "the target's own candidates from when it last verified a token"),
    "ngrams": Kind("lib.drafters.ngrams:NgramDrafter",
                   "n-grams of the text, then those counted on the target's own text"),
    "early_exit": Kind("lib.drafters.self_speculation:EarlyExitDrafter",
                       "the target's own first layers and its head"),
    "int8": Kind("lib.drafters.self_speculation:Int8SelfDrafter", "the target itself with int8 weights"),
    "combined": Kind("lib.drafters.combined:CombinedDrafter",
                     "the longest earlier match where it is long enough, a model or a head elsewhere"),
    "graft": Kind("lib.drafters.graft:GraftDrafter",
                  "a model's or head's tree, pruned for tokens after the longest earlier match"),
    "adaptive": Kind("lib.drafters.adaptive:AdaptiveDrafter",
                     "a language model that drafts as deep as its last rounds advise"),
    "confident": Kind("lib.drafters.adaptive:ConfidentDrafter",
                      "a language model that stops where its confidence is low"),
    "merged": Kind("lib.drafters.merged:MergedDrafter", "several language models' trees, or samples, in one tree"),
    "medusa": Kind("lib.drafters.marginals:MedusaDrafter", "heads on the target's last hidden state, one per depth"),
    "eagle": Kind("lib.drafters.eagle:EagleDrafter", "a layer that continues the target's last features"),
    "eagle3": Kind("lib.drafters.eagle:Eagle3Drafter",
                   "a layer that continues features fused from three of the target's layers"),
    "block": Kind("lib.drafters.marginals:BlockDrafter", "a layer that predicts every depth in one forward pass"),
    "jetspec": Kind("lib.drafters.marginals:JetSpecDrafter", "a block head whose places see backwards alone"),
    "dspark": Kind("lib.drafters.dspark:DSparkDrafter",
                   "a block head, with a bias from each node's parent token"),
    "random": Kind("lib.drafters.controls:RandomDrafter", "uniform random tokens"),
    "oracle": Kind("lib.drafters.controls:OracleDrafter", "the target's own continuation"),
}


def make(spec: str, pair, **options) -> Drafter:
    """The drafter of a kind for a pair, with options in its name if wanted: "early_exit:2" (see `parse`).

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
    missing = [each for each in sorted(taken) if taken[each].default is Parameter.empty and each not in options]
    if missing:
        raise ValueError(f"drafter {name!r} ({kind.about}) needs {', '.join(missing)}; pass it by keyword")
    return kind.drafter.of(pair, **options)


def heads_for(target: str) -> list[str]:
    """The kinds of drafters whose trained head, or tables, ship for a target or were made here."""
    from lib.drafters.heads.store import made_for  # brings transformers, which names and options do not need

    heads = {name: kind.drafter.head_kind for name, kind in DRAFTERS.items()}
    made = made_for(target)
    return [name for name, head in heads.items() if head in made]


def head_of(spec: str) -> str:
    """The kind of trained head, or of tables, that a drafter reads; empty for none."""
    name, options = parse(spec)
    return DRAFTERS[name].drafter.head_kind or (head_of(str(options["behind"])) if "behind" in options else "")


def needs_draft_model(spec: str) -> bool:
    """Whether a pair has to have a draft model for such a drafter."""
    name, options = parse(spec)
    return DRAFTERS[name].drafter.needs_draft_model and options.get("behind", "model") == "model"


def parse(spec: str) -> tuple[str, dict[str, object]]:
    """A kind's name, and the options after its colons: the value of the main one alone, others with their names.

    "early_exit:3:vocabulary=8192" gives ("early_exit", {"layers": 3, "vocabulary": 8192}).
    """
    name, *parts = spec.split(":")
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    return name, dict(_option(spec, name, part) for part in parts)


def _option(spec: str, name: str, part: str) -> tuple[str, object]:
    """The option and the value that a part of a spec gives."""
    option, named, text = part.rpartition("=")
    main, taken = DRAFTERS[name].drafter.option, DRAFTERS[name].options
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
