"""The pairs that have a name, and the sources of a name: shipped folders, hub ids with revisions, paths."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.models import files
from lib.models.files import PairError
from lib.models.packages import PACKAGED

SHIPPED = Path(__file__).parents[2] / "data" / "models"
NO_MODEL = "none"  # the name of the draft model of a target alone
FOLDER, GGUF, HUB = "folder", "gguf", "hub"  # kinds of sources
SMOLLM2, GEMMA3 = PACKAGED  # the headline target, and an optional one
NANO = f"{SMOLLM2}/nano"  # in a folder of its target's name, whose tokenizer it shares
FAMILY = ("base/small", "base/tiny", "base/tiny-base", "small/tiny", "small/tiny-small")  # target/drafter
SHIPPED_NAMES = {NANO, *(member for pair in FAMILY for member in pair.split("/"))}
PAIRS: dict[str, tuple[str, ...]] = (
    {name: (name,) for name in PACKAGED} | {NANO: (SMOLLM2, NANO)} | {name: tuple(name.split("/")) for name in FAMILY})


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    kind: str  # FOLDER or GGUF of this machine, or HUB
    where: str  # the folder, file or hub id
    name: str = field(compare=False)  # as figures show it
    written: str = field(compare=False)  # the text that names it from any folder
    revision: str | None = None  # of a hub id
    gguf: str = ""  # the GGUF file of which the folder is the converted model

    def __str__(self) -> str:
        return self.written


def parts(name: str) -> tuple[str, ...]:
    """The texts that name the target and, if there is one, the draft model of a pair: a name of `PAIRS`,
    "TARGET|DRAFTER", or "TARGET" alone. PairError for anything else.
    """
    if name in PAIRS:
        return PAIRS[name]
    texts = tuple(part.strip() for part in str(name).split("|"))
    # A text alone names something local, or a hub id that is no misspelt pair.
    owner, slash, _ = texts[0].partition("/")
    is_local = texts[0].startswith((".", "/", "~")) or texts[0].endswith(files.SUFFIX) or Path(texts[0]).exists()
    is_target = is_local or texts[0] in SHIPPED_NAMES or slash and owner not in SHIPPED_NAMES
    if not all(texts) or len(texts) > 2 or len(texts) == 1 and not is_target:
        raise PairError(f"pair {name!r} is unknown; choose one of {', '.join(PAIRS)}, or write 'TARGET' or "
                        "'TARGET|DRAFTER' with hub ids, folders or GGUF files")
    return texts


def sources(name: str) -> tuple[Source, Source | None]:
    """Target and draft model of a pair as `source` reads each; the second is None for a target alone."""
    target, drafter = (*map(source, parts(name)), None)[:2]
    return target, drafter


def source(text: str) -> Source:
    """One model: a shipped one, one of `PACKAGED` from its package, a local folder, a GGUF file or a folder with one,
    or a hub id (optionally with "@REVISION"), which is not looked up. PairError for a folder or file that is missing.
    """
    if package := PACKAGED.get(text):
        if (file := package.file()) is None:
            raise PairError(f"{text} is in the package {package.packages[0]}, which is not installed; install it with "
                            f"`{package.install_command}`")
        return Source(GGUF, str(file), text, text)
    is_shipped = text in SHIPPED_NAMES
    path = SHIPPED / text if is_shipped else Path(os.path.abspath(Path(text).expanduser()))
    written, (where, at, revision) = text if is_shipped else str(path), text.partition("@")
    file = files.in_folder(path) if path.is_dir() else (path if path.suffix == files.SUFFIX else None)
    if file:
        if not file.is_file():
            raise PairError(f"there is no GGUF file {text}; check the path")
        files.check_files(files.shards(file))
        return Source(GGUF, str(files.shards(file)[0]), files.stem(file), written)
    if path.is_dir():
        files.check_model(path)
        return Source(FOLDER, str(path), path.name, written)
    if is_shipped or text.startswith((".", "/", "~")) or where.count("/") > 1:
        raise PairError(f"there is no folder {text}; give one with config.json, model.safetensors and tokenizer files")
    if at and not revision:
        raise PairError(f"{text!r} names no revision after its @; add a branch, tag or commit, or leave @ out")
    return Source(HUB, where, Path(where).name + at + revision, text, revision or None)


def local(source: Source) -> Source:
    """The source itself, or for a GGUF file the folder of its converted model, under the same name."""
    if source.kind != GGUF or source.gguf:
        return source
    from lib.models import gguf  # brings torch, which names do not need

    return replace(source, where=str(gguf.converted(Path(source.where))), gguf=source.where)


def files_of(source: Source) -> list[Path]:
    """The files or the folder of a model; of a hub's the cache's file with its commit. Nothing is fetched."""
    if source.kind == GGUF:
        return files.shards(Path(source.where))
    if source.kind != HUB:
        return [Path(source.where)]
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source.where, repo_type="model")
    return [folder / "refs" / (source.revision or "main")]
