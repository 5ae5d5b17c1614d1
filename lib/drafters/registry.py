"""The kinds of drafters by name, and the one factory of them.

A new kind is a subclass of `Drafter` in a file of its own, and one row here: studies, the recommendation, explorers and
the readers of logs take it from its row.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Signature, signature
from typing import get_args

from lib.drafters.drafter import AGAIN, BY_RANKS, Drafter, Traits

DRAFT_MODEL, FOLDER = "draft model", "folder"  # see `Kind.needs`


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    home: "module:Class"; the module is imported when it is used. proposes: what it drafts, in a few words.
    option: the option that the value after a kind's colon sets, as "sam:3" sets `shortest`.
    needs: DRAFT_MODEL, that of the pair; FOLDER, of the kind's name, with a trained head or tables; empty for neither.
    specs: the specs that studies decode by default; heads are found in their folders instead.
    advised: whether the recommendation tries it, by its name alone.
    """

    home: str
    proposes: str
    traits: Traits = Traits()
    option: str = ""
    needs: str = ""
    specs: tuple[str, ...] = ()
    advised: bool = False

    @property
    def drafter(self) -> type[Drafter]:
        """The class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"lib.drafters.{module}"), name)

    @property
    def options(self) -> Signature:
        """The options that the class takes: those of its `of`, or where it does not define that, of its constructor."""
        maker = self.drafter if self.drafter.of.__func__ is Drafter.of.__func__ else self.drafter.of
        parameters = signature(maker).parameters.values()
        return Signature([option for option in parameters if option.name != "pair"])


ONE_PASS_HEAD = Traits(BY_RANKS, grows=True, per_depth=True, one_pass=True)
DRAFTERS: dict[str, Kind] = {
    "none": Kind("drafter:NoDrafter", "nothing: plain decoding"),
    "model": Kind("language_model:LanguageModelDrafter", "a language model's most likely tokens, or its samples",
                  Traits(BY_RANKS, grows=True), "proposal", DRAFT_MODEL, ("model",), advised=True),
    "ngrams": Kind("text_drafters:NgramDrafter", "n-grams of the text, then those counted on the target's own text",
                   Traits(BY_RANKS, reads_text=True), "enough", FOLDER),
    "lookup": Kind("text_drafters:LookupDrafter", "the tokens after earlier occurrences of the last few tokens",
                   Traits(AGAIN, reads_text=True), "longest", specs=("lookup",), advised=True),
    "sam": Kind("text_drafters:SuffixAutomatonDrafter", "the tokens after the longest earlier match of any length",
                Traits(AGAIN, reads_text=True), "shortest", specs=("sam",), advised=True),
    "combined": Kind("combined:CombinedDrafter", "the longest earlier match where it is long enough, a model or a head "
                     "elsewhere", Traits(AGAIN), "enough", DRAFT_MODEL, ("combined",), advised=True),
    "merged": Kind("merged:MergedDrafter", "several language models' trees, or samples, in one tree",
                   Traits(), "proposal", DRAFT_MODEL, ("merged",)),
    "choosing": Kind("choosing:ChoosingDrafter", "one of several drafters: the fastest, or by the text's length",
                     Traits(), "by", DRAFT_MODEL),
    "adaptive": Kind("adaptive:AdaptiveDrafter", "a language model, as deep as a policy advises", Traits(), "policy",
                     DRAFT_MODEL, ("adaptive:history", "adaptive:complexity", "adaptive:pays")),
    "medusa": Kind("marginals:MedusaDrafter", "heads on the target's last hidden state, one per depth", ONE_PASS_HEAD,
                   needs=FOLDER),
    "eagle3": Kind("eagle3:Eagle3Drafter", "a layer that continues features fused from three of the target's layers",
                   Traits(BY_RANKS, grows=True), needs=FOLDER),
    "dflash": Kind("marginals:DFlashDrafter", "layers that predict every depth in one forward pass", ONE_PASS_HEAD,
                   needs=FOLDER),
    "dspark": Kind("marginals:DSparkDrafter", "a block head, with a bias from each node's parent token",
                   Traits(BY_RANKS, grows=True, one_pass=True), needs=FOLDER),
    "mtp": Kind("mtp:MtpDrafter", "the target's own multi-token-prediction module", specs=("mtp",), advised=True),
    "random": Kind("controls:RandomDrafter", "uniform random tokens", Traits(control=True), specs=("random",)),
    "oracle": Kind("controls:OracleDrafter", "the target's own continuation", Traits(control=True), specs=("oracle",)),
}


@cache
def name_of(drafter: type[Drafter]) -> str:
    """The kind of a class, or of the first of its bases that has a row; empty without one."""
    names = {f"lib.drafters.{kind.home}": name for name, kind in DRAFTERS.items()}
    homes = (f"{base.__module__}:{base.__qualname__}" for base in drafter.__mro__)
    return next((names[home] for home in homes if home in names), "")


def make(spec: str, pair, **options) -> Drafter:
    """The drafter of a kind for a pair, with options in its name if wanted: "sam:2" (see `parse`).

    pair: see `lib.models.load.Pair`. ValueError for options that the kind does not take, and for missing ones.
    """
    name, written = parse(spec)
    kind, options = DRAFTERS[name], {**options, **written}
    try:
        kind.options.bind(**options)
    except TypeError as error:
        raise ValueError(f"drafter {name!r} ({kind.proposes}): {error}; it takes "
                         f"{', '.join(kind.options.parameters) or 'no options'}, by keyword") from None
    return kind.drafter.of(pair, **options)


def parse(spec: str) -> tuple[str, dict[str, object]]:
    """A kind's name, and the options after its colons: the value of the main one alone, others with their names.

    "combined:3:vocabulary=8192" gives ("combined", {"enough": 3, "vocabulary": 8192}).
    """
    name, *parts = spec.split(":")
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    kind, options = DRAFTERS[name], {}
    for part in parts:
        option, _, text = part.rpartition("=")
        option, taken = option or kind.option, kind.options.parameters
        if option not in taken:
            raise ValueError(f"drafter is {spec!r}, but {name} takes no option {option!r}; it takes "
                             f"{', '.join(taken) or 'none'}")
        annotation = taken[option].annotation
        to_value = next(iter(get_args(annotation)), annotation)  # of int | Tensor the first
        if to_value not in (int, float, str):
            raise ValueError(f"drafter is {spec!r}, but {option} cannot be written in its name; pass it by keyword")
        try:
            options[option] = to_value(text)
        except ValueError:
            raise ValueError(f"drafter is {spec!r}, but {option} is a number; give one after the colon") from None
    return name, options


def advised(pair) -> list[str]:
    """The advised kinds that a pair can have."""
    return [name for name, kind in DRAFTERS.items() if kind.advised and not kind.drafter.refusal(pair.target)
            and (pair.draft_model is not None or kind.needs != DRAFT_MODEL)]


def heads_for(target: str) -> list[str]:
    """The kinds of drafters whose trained head, or tables, ship for a target or were made here."""
    from lib.drafters.heads.files import made_for  # brings transformers, which names and options do not need

    available = made_for(target)
    return [name for name, kind in DRAFTERS.items() if kind.needs == FOLDER and name in available]


def head_of(spec: str) -> str:
    """The kind of trained head, or of tables, that a drafter reads; empty for none."""
    name, _ = parse(spec)
    return name if DRAFTERS[name].needs == FOLDER else next(filter(None, map(head_of, _inner(spec))), "")


def needs_draft_model(spec: str) -> bool:
    """Whether a pair has to have a draft model for such a drafter."""
    name, _ = parse(spec)
    return DRAFTERS[name].needs == DRAFT_MODEL and "model" in (_inner(spec) or ["model"])


def _inner(spec: str) -> list[str]:
    """The kinds of which a drafter is made, where its spec names them."""
    _, options = parse(spec)
    return [name for option in ("behind", "among") for name in str(options.get(option, "")).split("+") if name]
