"""The kinds of drafters by name, and the one factory of them. A new kind is a subclass of `Drafter` in a file of its
own, and one row here, from which studies, the recommendation, explorers and the readers of logs take it. Names are read
without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Mapping, get_args

if TYPE_CHECKING:
    from lib.drafters.drafter import Drafter

DRAFT_MODEL, FOLDER = "draft model", "folder"  # see `Kind.needs`
ROOTS = [Path(__file__).parents[2] / "data" / path for path in ("models/heads", "runs/training/heads")]  # shipped, made
# How a trace of the target's text decides a drafter's rounds: the ranks of the text's tokens among its candidates
# decide any tree; its drafts depend on the text alone; they depend on more.
BY_RANKS, AGAIN, LIVE = "by ranks", "by drafting again", "live alone"


@dataclass(frozen=True)
class Traits:
    """What all drafters of a kind have in common; a row of DRAFTERS holds them."""

    replay: str = LIVE  # BY_RANKS, AGAIN or LIVE; of drafts whose children are not samples
    grows: bool = False  # trees can grow by its probabilities
    per_depth: bool = False  # it has one distribution for each depth ahead, the same for all nodes of that depth
    one_pass: bool = False  # it drafts all levels in one forward pass, so that deeper trees take no more of them
    reads_text: bool = False  # it drafts from the text alone, so that logs decide its rounds without the target
    control: bool = False  # it only bounds the others, and is made anew for each prompt


@dataclass(frozen=True)
class Kind:
    """A kind of drafter: its class as "module:Class", which is imported when it is used."""

    home: str
    traits: Traits = Traits()
    needs: str = ""  # DRAFT_MODEL, that of the pair; FOLDER, of the kind's name, with a trained head or tables
    specs: tuple[str, ...] = ()  # those that studies decode by default; heads are found in their folders instead
    advised: bool = False  # whether the recommendation tries it, by its name alone
    written: Mapping[str, type] | None = None  # the options that a name can hold; None: those of the class

    @property
    def drafter(self) -> type[Drafter]:
        """The class."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"lib.drafters.{module}"), name)

    def maker(self, pair) -> Callable[..., Drafter]:
        """Makes a drafter for a pair from options, as keywords."""
        return partial(self.drafter.of, pair) if hasattr(self.drafter, "of") else self.drafter

    @property
    def options(self) -> dict[str, type]:
        """All options and their types, of `int | None` the first."""
        types = {name: option.annotation for name, option in signature(self.maker(None)).parameters.items()}
        return {name: next(iter(get_args(of_type)), of_type) for name, of_type in types.items()}


MADE_SO, LENGTHS = {"proposal": str, "temperature": float}, {"longest": int, "shortest": int}
RANKED, TEXT = Traits(BY_RANKS, grows=True), Traits(AGAIN, reads_text=True)
ONE_PASS = Traits(BY_RANKS, grows=True, per_depth=True, one_pass=True)
DRAFTERS: dict[str, Kind] = {
    "none": Kind("drafter:NoDrafter"),
    "model": Kind("language_model:LanguageModelDrafter", RANKED, DRAFT_MODEL, ("model",), advised=True,
                  written={**MADE_SO, "vocabulary": int}),
    "ngrams": Kind("text_drafters:NgramDrafter", Traits(BY_RANKS, reads_text=True), FOLDER,
                   written={"enough": int, "longest": int}),
    "lookup": Kind("text_drafters:LookupDrafter", TEXT, specs=("lookup",), advised=True, written=LENGTHS),
    "sam": Kind("text_drafters:SuffixAutomatonDrafter", TEXT, specs=("sam",), advised=True),
    "combined": Kind("combined:CombinedDrafter", Traits(AGAIN), DRAFT_MODEL, ("combined",), advised=True,
                     written={"enough": int, "behind": str, "vocabulary": int}),
    "merged": Kind("merged:MergedDrafter", Traits(), DRAFT_MODEL, ("merged",), written=MADE_SO),
    "choosing": Kind("choosing:ChoosingDrafter", Traits(), DRAFT_MODEL, written={"length": int, "among": str}),
    "adaptive": Kind("adaptive:AdaptiveDrafter", Traits(), DRAFT_MODEL,
                     ("adaptive:history", "adaptive:complexity", "adaptive:pays"), written={"policy": str}),
    "medusa": Kind("marginals:MedusaDrafter", ONE_PASS, FOLDER, written=MADE_SO),
    "eagle3": Kind("eagle3:Eagle3Drafter", RANKED, FOLDER, written=MADE_SO),
    "dflash": Kind("marginals:DFlashDrafter", ONE_PASS, FOLDER, written=MADE_SO),
    "dspark": Kind("marginals:DSparkDrafter", Traits(BY_RANKS, grows=True, one_pass=True), FOLDER,
                   written=MADE_SO),
    "mtp": Kind("mtp:MtpDrafter", specs=("mtp",), advised=True),
    "random": Kind("controls:RandomDrafter", Traits(AGAIN, control=True), specs=("random",)),
}


@cache
def name_of(drafter: type[Drafter]) -> str:
    """The kind of a class, or of the first of its bases that has a row; "none" without one."""
    names = {f"lib.drafters.{kind.home}": name for name, kind in DRAFTERS.items()}
    homes = (f"{base.__module__}:{base.__name__}" for base in drafter.__mro__)
    return next((names[home] for home in homes if home in names), "none")


def make(spec: str, pair, options: Mapping[str, object] = {}) -> Drafter:
    """The drafter of a kind for a pair (see `lib.models.load.Pair`), with options, or those in its name (see `parse`).

    ValueError for options that the kind does not take, and for missing ones.
    """
    name, written = parse(spec)
    kind, options = DRAFTERS[name], {**options, **written}
    maker = kind.maker(pair)
    try:
        signature(maker).bind(**options)
    except TypeError as error:
        raise ValueError(f"drafter {name!r}: {error}; it takes {', '.join(kind.options) or 'no options'}") from None
    return maker(**options)


def parse(spec: str) -> tuple[str, dict[str, object]]:
    """A kind's name and the options after its colons: "combined:3:vocabulary=8192" gives ("combined", {"enough": 3,
    "vocabulary": 8192}). Numbers and words can be written so; a value without a name is that of the first such option.
    """
    name, *parts = spec.split(":")
    if name not in DRAFTERS:
        raise ValueError(f"drafter is {name!r}; choose one of {', '.join(DRAFTERS)}")
    options, types = {}, DRAFTERS[name].written if parts else {}
    if types is None:
        types = {option: type_ for option, type_ in DRAFTERS[name].options.items() if type_ in (int, float, str)}
    for part in parts:
        option, _, text = part.rpartition("=")
        option = option or next(iter(types), "")
        try:
            options[option] = types[option](text)
        except (KeyError, ValueError):
            taken = ", ".join(f"{option}={of_type.__name__.upper()}" for option, of_type in types.items())
            raise ValueError(f"drafter is {spec!r}, but {name} takes no {part!r}; after its name it takes "
                             f"{taken or 'nothing'}") from None
    return name, options


def kinds_for(pair) -> list[str]:
    """The advised kinds that a pair can have, then those whose head or tables ship for its target or were made here."""
    heads, models = made_for(pair.target_name), pair.draft_model is not None
    advised = [name for name, kind in DRAFTERS.items() if kind.advised and (models or kind.needs != DRAFT_MODEL)
               and not kind.drafter.refusal(pair.target)]
    return advised + [name for name in DRAFTERS if name in heads]


def needs(spec: str) -> set[str]:
    """What a drafter needs of its pair: DRAFT_MODEL, and the kinds of heads or tables that it reads."""
    name, options = parse(spec)
    if inner := options.get("behind") or options.get("among"):
        return set().union(*map(needs, inner.split("+")))
    return {DRAFT_MODEL: {DRAFT_MODEL}, FOLDER: {name}}.get(DRAFTERS[name].needs, set())


def folder_of(target: str, kind: str) -> Path:
    """The folder of a target's head, or tables, of a kind: one that ships, else one made here. ValueError if none."""
    for folder in (root / target / kind for root in ROOTS):
        if (folder / "config.json").is_file():
            return folder
    existing = ", ".join(made_for(target)) or "none"
    raise ValueError(f"no head of kind {kind!r} exists for target {target!r} ({existing} do); give the folder of one, "
                     "leave it out, or make it with `python -m lib training` (heads, or ngrams)")


def made_for(target: str) -> list[str]:
    """The kinds, with a variant after a dash where there are several, of all heads and tables of a target."""
    return sorted({path.parent.name for root in ROOTS for path in (root / target).glob("*/config.json")})


def folders_of(target: str) -> list[Path]:
    """The folders of all heads and tables of a target."""
    return [folder_of(target, kind) for kind in made_for(target)]
