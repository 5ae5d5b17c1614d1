"""Every kind of drafter by name, and what each is made of."""

from dataclasses import dataclass
from typing import Callable

from lib.drafters import early_exit, int8_self, ngram_tables, published
from lib.drafters.adaptive import AdaptiveDrafter
from lib.drafters.block import BlockDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.confident import ConfidentDrafter
from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.draft_length import POLICIES
from lib.drafters.eagle import EagleDrafter
from lib.drafters.early_exit import EarlyExitDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.medusa import MedusaDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.ngrams import NgramDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter
from lib.drafters.recycling import RecyclingDrafter
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter


@dataclass(frozen=True)
class Kind:
    """A kind of drafter: the keywords that `build` needs, those it may be given, and how its children are chosen.

    replayable: whether its drafts depend on the committed tokens and the path alone, through one rank a position, so
    that a trace's ranks decide every shape. Heads need a rank for each start and depth: they have `read_ahead`.
    option: the keyword that a value behind the kind's name sets, as "adaptive:recent" sets the policy. head: the kind
    of trained head, or of tables, in the `folder` that it needs. refusal: why a target cannot have it; empty where it
    can. reads: what makes an option's value of text.
    """

    build: Callable[..., Drafter]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    proposal: str
    replayable: bool
    about: str
    option: str = ""
    head: str = ""
    refusal: Callable[[object], str] = lambda target: ""
    reads: Callable[[str], object] = int


def _sampling(proposal: str) -> Callable[..., Drafter]:
    return lambda model, **options: LanguageModelDrafter(model, proposal=proposal, **options)


def _merging(models, **options) -> MergedDrafter:
    return MergedDrafter([LanguageModelDrafter(model, **options) for model in models])


def _merging_samples(models, **options) -> MergedDrafter:
    return MergedDrafter([LanguageModelDrafter(model, proposal="iid", **options) for model in models])


def _combining(model, enough: int = 4, shortest: int = 1, **options) -> CombinedDrafter:
    return CombinedDrafter(SuffixAutomatonDrafter(shortest), LanguageModelDrafter(model, **options), enough)


def _combining_with_eagle(target, folder, enough: int = 4, shortest: int = 1, **options) -> CombinedDrafter:
    drafter = EagleDrafter(target, published.load("eagle", folder, target), **options)
    return CombinedDrafter(SuffixAutomatonDrafter(shortest), drafter, enough)


def _adapting(model, policy: str = "schedule", **options) -> AdaptiveDrafter:
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
    return AdaptiveDrafter(LanguageModelDrafter(model, **options), POLICIES[policy]())


def _rounding(target, **options) -> LanguageModelDrafter:
    return LanguageModelDrafter(int8_self.rounded(target), **options)


def _counting(target, folder, **options) -> NgramDrafter:
    return NgramDrafter(ngram_tables.load(folder, target), **options)


def _reading(kind: str, drafter: Callable[..., Drafter]) -> Callable[..., Drafter]:
    return lambda target, folder, **options: drafter(target, published.load(kind, folder, target), **options)


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
                   "what followed the last tokens when they stood in the text before", "order", reads=str),
    "sam": Kind(SuffixAutomatonDrafter, (), ("shortest",), "top_k", False,
                "what followed the longest earlier match of any length", "shortest"),
    "recycling": Kind(RecyclingDrafter, ("vocabulary",), ("candidates",), "top_k", False,
                      "what the target itself thought likely, when it last verified a token", "candidates"),
    "ngrams": Kind(_counting, ("target", "folder"), ("enough", "longest"), "top_k", False,
                   "the text's own n-grams, and behind them those that the target was seen to follow", "enough",
                   ngram_tables.KIND),
    "early_exit": Kind(EarlyExitDrafter, ("target",), ("layers", "vocabulary", "keep_probs"), "top_k", True,
                       "the target's own first layers and its head", "layers", refusal=early_exit.refusal),
    "int8": Kind(_rounding, ("target",), ("vocabulary", "keep_probs"), "top_k", True,
                 "the target itself, its weights rounded to int8", refusal=int8_self.refusal),
    "combined": Kind(_combining, ("model",), ("enough", "shortest", "vocabulary"), "top_k", False,
                     "the longest earlier match where it is long enough, a language model elsewhere", "enough"),
    "adaptive": Kind(_adapting, ("model",), ("policy", "vocabulary"), "top_k", False,
                     "a language model that goes as deep as its last rounds advise", "policy", reads=str),
    "confident": Kind(ConfidentDrafter, ("model",), ("threshold", *_WARPED), "top_k", False,
                      "a language model that stops where it is not sure", "threshold", reads=float),
    "merged": Kind(_merging, ("models",), ("vocabulary",), "top_k", False, "several language models' trees in one"),
    "merged_iid": Kind(_merging_samples, ("models",), _WARPED, "iid", False,
                       "several language models' independent samples in one tree, each proposal kept"),
    "medusa": Kind(_reading("medusa", MedusaDrafter), ("target", "folder"), (), "top_k", False,
                   "heads on the target's last hidden state, one a depth", head="medusa"),
    "eagle": Kind(_reading("eagle", EagleDrafter), ("target", "folder"), ("temperature", "keep_probs"), "top_k", False,
                  "a layer that continues the target's last features", head="eagle"),
    "eagle3": Kind(_reading("eagle3", EagleDrafter), ("target", "folder"), ("temperature", "keep_probs"), "top_k",
                   False, "a layer that continues features fused from three of the target's layers", head="eagle3"),
    "block": Kind(_reading("block", BlockDrafter), ("target", "folder"), (), "top_k", False,
                  "a layer that speaks of every depth in one forward", head="block"),
    "sam_eagle": Kind(_combining_with_eagle, ("target", "folder"), ("enough", "shortest"), "top_k", False,
                      "the longest earlier match where it is long enough, an EAGLE head elsewhere", "enough", "eagle"),
    "random": Kind(RandomDrafter, ("vocabulary", "generator"), (), "top_k", False, "uniform random tokens"),
    "oracle": Kind(OracleDrafter, ("prompts", "continuations", "vocabulary", "generator"), (), "top_k", False,
                   "the target's own continuation"),
}


def make(name: str, **given) -> Drafter:
    """A drafter by its kind's name, with a value for its option if wanted ("early_exit:2"), from those of the keywords
    that it takes; what other kinds take may stand beside. ValueError for what is missing, and what no kind takes.
    """
    name, setting = parse(name)
    kind = DRAFTERS[name]
    given = {**given, **setting}
    strange = given.keys() - {word for each in DRAFTERS.values() for word in each.needs + each.takes}
    if strange:
        raise ValueError(f"no drafter takes {', '.join(sorted(strange))}; {name!r} takes "
                         f"{', '.join(kind.needs + kind.takes) or 'nothing'}")
    missing = [word for word in kind.needs if word not in given]
    if missing:
        raise ValueError(f"drafter {name!r} ({kind.about}) needs {', '.join(missing)}; pass it by keyword")
    return kind.build(**{word: value for word, value in given.items() if word in kind.needs + kind.takes})


def parse(spec: str) -> tuple[str, dict[str, object]]:
    """A kind's name and what is behind its colon as a keyword."""
    name, colon, value = spec.partition(":")
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    option, reads = DRAFTERS[name].option, DRAFTERS[name].reads
    if colon and not (option and value):
        raise ValueError(f"drafter is {spec!r}; " + (f"give a value for {option} behind the colon" if option else
                                                     f"{name} takes no value behind its name"))
    try:
        return name, {option: reads(value)} if colon else {}
    except ValueError:
        raise ValueError(f"drafter is {spec!r}, but {option} is a number; give one behind the colon") from None
