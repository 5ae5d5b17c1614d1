"""The pairs that have a name, and the sources of a name: shipped folders, hub ids with revisions, paths."""

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformers import LlamaConfig

from lib.models import gguf
from lib.models.checks import PairError
from lib.models.packages import PACKAGED

SHIPPED = Path(__file__).parents[2] / "data" / "models"
NO_MODEL = "none"  # the name of the draft model of a target alone
RANDOM = "random:"  # before the name of a size of `SIZES`
FOLDER, GGUF, HUB = "folder", "gguf", "hub"  # the other kinds of sources
SMOLLM2, GEMMA3 = PACKAGED  # the headline target, and an optional one
NANO = f"{SMOLLM2}/nano"  # in a folder of its target's name, whose tokenizer it shares
FAMILY = ("base/small", "base/tiny", "base/tiny-base", "small/tiny", "small/tiny-small")  # target/drafter
SHIPPED_NAMES = {NANO, *(member for pair in FAMILY for member in pair.split("/"))}
PAIRS: dict[str, tuple[str, ...]] = (
    {name: (name,) for name in PACKAGED} | {NANO: (SMOLLM2, NANO)} | {name: tuple(name.split("/")) for name in FAMILY})

SIZE_COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "vocab_size", "tie_word_embeddings")
# Published sizes, which get random weights to measure costs: time and memory do not depend on the weights. As their
# makers' config.json files give them (Grattafiori et al. 2024; Ben Allal et al. 2025; Miao et al. 2024).
SIZES = {
    "llama-3-70b": (8192, 28672, 80, 64, 8, 128256, False),
    "llama-3-8b": (4096, 14336, 32, 32, 8, 128256, False),
    "llama-3.2-1b": (2048, 8192, 16, 32, 8, 128256, True),
    "llama-68m": (768, 3072, 2, 12, 12, 32000, False),
    "smollm2-1.7b": (2048, 8192, 24, 32, 32, 49152, True),
    "smollm2-135m": (576, 1536, 30, 9, 3, 49152, True),
}


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    kind: FOLDER, GGUF or RANDOM of this machine, or HUB. where: the folder, file, hub id or name of a size. name: as
    figures show it. written: the text that named it, for messages. revision: of a hub id, None for the hub's default;
    of a size its number of layers. gguf: the GGUF file of which the folder is the converted model.
    """

    kind: str
    where: str
    name: str = field(compare=False)
    written: str = field(compare=False)
    revision: str | None = None
    gguf: str = ""

    def __str__(self) -> str:
        return self.written


def parts(name: str) -> tuple[str, ...]:
    """The texts that name the target and, if there is one, the draft model of a pair: a name of `PAIRS`,
    "TARGET|DRAFTER", or "TARGET" alone. PairError for anything else, with similar names.
    """
    if isinstance(name, str) and name in PAIRS:
        return PAIRS[name]
    texts = tuple(part.strip() for part in str(name).split("|"))
    # A text alone names something local, or a hub id that is no misspelt pair.
    owner, slash, _ = texts[0].partition("/")
    is_path = texts[0].startswith((RANDOM, ".", "/", "~")) or texts[0].endswith(gguf.SUFFIX)
    is_target = is_path or texts[0] in SHIPPED_NAMES or Path(texts[0]).exists() or slash and owner not in SHIPPED_NAMES
    if not isinstance(name, str) or not all(texts) or len(texts) > 2 or len(texts) == 1 and not is_target:
        near = difflib.get_close_matches(str(name), PAIRS, 2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise PairError(f"pair {name!r} is unknown; {hint}choose one of {', '.join(PAIRS)}, or write 'TARGET' or "
                        "'TARGET|DRAFTER' with hub ids, folders or GGUF files")
    return texts


def sources(name: str) -> tuple[Source, Source | None]:
    """Target and draft model of a pair, each in the form that `source` reads; the second is None for a target alone.
    PairError as for `parts`.
    """
    target, drafter = (*map(source, parts(name)), None)[:2]
    return target, drafter


def findable(name: str) -> str:
    """A pair's name with whole paths of local folders and files, which other processes find from any folder."""
    paths = {text: Path(text).expanduser() for text in parts(name) if text not in SHIPPED_NAMES | PAIRS.keys()}
    return name if name in PAIRS else "|".join(
        str(paths[text].resolve()) if text in paths and paths[text].exists() else text for text in parts(name))


def source(text: str) -> Source:
    """One model: a shipped one, one of `PACKAGED` from its package, a local folder, a GGUF file or a folder with one, a
    hub id (optionally with "@REVISION"), or a published size with random weights, as "random:llama-3-8b" (optionally
    with "@LAYERS").

    PairError for a folder or file that does not exist; hub ids are not looked up.
    """
    if text in PACKAGED:
        package = PACKAGED[text]
        if (file := package.file()) is None:
            raise PairError(f"{text} is in the package {package.package}, which is not installed; install it with "
                            f"`{package.install_command}`")
        return Source(GGUF, str(file), text, text)
    path = SHIPPED / text if text in SHIPPED_NAMES else Path(text).expanduser()
    if file := gguf.in_folder(path) if path.is_dir() else path if path.suffix == gguf.SUFFIX else None:
        if not file.is_file():
            raise PairError(f"there is no GGUF file {text}; check the path")
        return Source(GGUF, str(gguf.shards(file)[0]), gguf.stem(file), text)
    if path.is_dir():
        return Source(FOLDER, str(path), path.name, text)
    if text in SHIPPED_NAMES or text.startswith((".", "/", "~")) or text.partition("@")[0].count("/") > 1:
        raise PairError(f"there is no folder {path}; give one with config.json, model.safetensors and tokenizer files")
    where, at, revision = text.partition("@")
    if at and not revision:
        raise PairError(f"{text!r} names no revision after its @; add a branch, tag or commit, or leave @ out")
    kind = RANDOM if text.startswith(RANDOM) else HUB
    return Source(kind, where.removeprefix(RANDOM), Path(where).name + at + revision, text, revision or None)


def local(source: Source) -> Source:
    """The source itself, or for a GGUF file the folder of its converted model, under the same name."""
    if source.kind != GGUF or source.gguf:
        return source
    return replace(source, where=str(gguf.converted(Path(source.where))), gguf=source.where)


def config_of_size(name: str, layers: str | None = None) -> LlamaConfig:
    """The configuration of a size of `SIZES`, with its first layers alone if a number is given. PairError for an
    unknown size, or more layers than it has.
    """
    values = dict(zip(SIZE_COLUMNS, SIZES.get(name, ())))
    if not values or layers is not None and not (
            layers.isdecimal() and 1 <= int(layers) <= values["num_hidden_layers"]):
        raise PairError(f"there is no size {name!r}{f' with {layers!r} layers' if layers else ''}; give random:NAME or "
                        f"random:NAME@LAYERS with one of {', '.join(SIZES)}, and at most as many layers as it has")
    values["num_hidden_layers"] = int(layers or values["num_hidden_layers"])
    return LlamaConfig(**values, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None)
