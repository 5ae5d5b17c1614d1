"""GGUF files as models: each is converted once to bfloat16 safetensors in the user's cache folder.

The model is the dequantised one: its weights are what the file's blocks stand for, rounded to bfloat16. A model that is
split into several files, its shards, is joined first.
"""

import fcntl
import json
import os
import re
import shutil
import sys
from contextlib import redirect_stderr
from hashlib import file_digest, sha256
from io import StringIO
from pathlib import Path
from typing import Sequence

from safetensors import SafetensorError

from lib.lab import json_text
from lib.models import checks
from lib.models.checks import PairError, first_line

SUFFIX = ".gguf"
MAGIC = b"GGUF"  # the first bytes of a file
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")  # the name of each shard, counted from 1
SAFETENSORS = "take the model as safetensors"
CONVERSION = 2  # version of the conversion; folders of earlier versions stay


def in_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder without config.json, or its first shard; None where there is none. PairError where
    there are several models.
    """
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob(f"*{SUFFIX}"))
    models = first_of_each(files)
    if len(models) > 1:
        models = [file for file in models if not _stands_beside(file)] or models
    if len(models) > 1:
        names = ", ".join(file.name for file in models)
        raise PairError(f"{folder} holds {len(models)} GGUF files ({names}); name the one to load, as "
                        f"FOLDER/FILE{SUFFIX}")
    return models[0] if models else None


def _stands_beside(file: Path) -> bool:
    """Whether a file is a companion of a text model, such as a projector of images."""
    from lib.models import gguf_tensors

    if "mmproj" in file.name.lower():
        return True
    try:
        said = gguf_tensors.header(file).metadata
    except PairError:  # it is read, and its faults are named, where it is the one to load
        return False
    return said.get("general.architecture") == "clip" or said.get("general.type", "model") != "model"


def shards(path: Path) -> list[Path]:
    """The files of a model in their order, whichever of them is named; the file alone where it is whole. PairError with
    the first that is missing.
    """
    parts = SHARD.fullmatch(path.name)
    if parts is None:
        return [path]
    files = [path.with_name(f"{parts[1]}-{number + 1:05}-of-{parts[3]}.gguf") for number in range(int(parts[3]))]
    missing = [file.name for file in files if not file.is_file()]
    if missing or path not in files:
        raise PairError(f"{path} is one of {len(files)} shards, and {(missing or [path.name])[0]} is not among those "
                        f"in {path.parent}; fetch all of them into one folder")
    return files


def check_magic(path: Path, start: bytes) -> None:
    """PairError where a file does not begin as a GGUF file does."""
    if not start.startswith(MAGIC):
        raise PairError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}; fetch it again, or name "
                        "another file")


def stem(path: Path) -> str:
    """A model's name: its file's, without the number of a shard."""
    parts = SHARD.fullmatch(path.name)
    return parts[1] if parts else path.stem


def first_of_each(files: Sequence[Path]) -> list[Path]:
    """One file of each model among these."""
    firsts = {}
    for file in sorted(files):
        parts = SHARD.fullmatch(file.name)
        firsts.setdefault(parts.group(1, 3) if parts else file.name, file)
    return list(firsts.values())


def converted(path: Path) -> Path:
    """The folder of a GGUF file's model in transformers' layout, made on the first call, by one process at a time; the
    file may be any shard of several.

    It lies under the user's cache folder (XDG_CACHE_HOME, by default ~/.cache), named by the file's SHA-256 and
    `CONVERSION`. PairError where the file is no whole GGUF file, a weight is NaN or infinite, its architecture,
    quantisation, tokenizer or scaling of the rotary embedding cannot be read, it needs more memory than there is, or
    the disk is full; nothing half-written stays.
    """
    files, digest = shards(path), sha256()
    for shard in files:
        with open(shard, "rb") as file:
            check_magic(shard, file.read(len(MAGIC)))
            file.seek(0)
            file_digest(file, lambda: digest)
    folder = home() / f"{stem(path)}-{digest.hexdigest()[:16]}-{CONVERSION}"
    if _is_whole(folder):
        return folder
    try:
        home().mkdir(parents=True, exist_ok=True)
        lock = open(home() / ".lock", "w")
    except OSError as error:
        raise _unkept(home(), error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_whole(folder):  # another process made it meanwhile
            return folder
        print(f"converting {path.name} to bfloat16 safetensors, once", file=sys.stderr, flush=True)
        partial, whole = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "gguf"))
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            if len(files) > 1:  # transformers reads no shards
                join(files, whole)
            _save(*_read(path, whole if len(files) > 1 else files[0]), partial)
            shutil.rmtree(folder, ignore_errors=True)  # one that was damaged since
            os.replace(partial, folder)
        except MemoryError as error:
            raise checks.no_memory(path, "cpu") from error
        except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
            raise _unkept(home(), error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            whole.unlink(missing_ok=True)
    return folder


def home() -> Path:
    """The folder of converted models, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draft-trees" / "gguf"


def join(files: Sequence[Path], target: Path) -> None:
    """Writes the shards of a model as one file, reading one tensor at a time; the first has the model's metadata.

    PairError where they do not belong together, or as in `gguf_tensors`. OSError where the target cannot be written.
    """
    from lib.models import gguf_tensors  # which loads the package gguf

    headers = [gguf_tensors.header(file) for file in files]
    for number, (file, header) in enumerate(zip(files, headers)):
        said = header.metadata.get("split.no"), header.metadata.get("split.count")
        if said != (number, len(files)):
            raise PairError(f"{file} says that it is shard {said[0]} of {said[1]} (split.no, split.count), counted "
                            f"from 0, and its name says {number} of {len(files)}; fetch it again")
    with open(target, "wb") as written:
        written.write(gguf_tensors.joined_header(files, headers))
        for file, header in zip(files, headers):
            for stored in gguf_tensors.tensors(file, header):
                written.write(bytes(-written.tell() % headers[0].alignment))
                written.write(stored.data)


def _is_whole(folder: Path) -> bool:
    """Whether a converted model is there; its files may have been damaged or deleted since it was made."""
    try:
        checks.check_weights(folder, folder)
        return (folder / "config.json").is_file()
    except (PairError, OSError):
        return False


def _read(path: Path, file: Path) -> tuple[object, object]:
    """The dequantised model in bfloat16, free of what ties it to its file, and the tokenizer. PairError otherwise.

    path: the file that was named; file: the one that is read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from lib.models import gguf_blocks, gguf_rope, gguf_tensors, gguf_tokenizer

    place = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name, trust_remote_code=False)
    header = gguf_tensors.header(file)
    # Each tensor is checked as it is read; transformers reads the file without checks.
    factors = {stored.name: gguf_blocks.floats(stored) for stored in gguf_tensors.tensors(file, header)
               if gguf_rope.is_factors(stored.name)}
    try:
        config = AutoConfig.from_pretrained(**place)
    except Exception as error:
        raise _unreadable(path, error) from error
    checks.check_tree(path, config)
    gguf_rope.take_scaling(path, header.metadata, factors, config)
    if header.metadata.get("tokenizer.ggml.model") == gguf_tokenizer.BYTE_LEVEL:
        tokenizer = gguf_tokenizer.byte_level(path, header.metadata)
    else:
        try:
            tokenizer = AutoTokenizer.from_pretrained(**place)
        except Exception as error:
            raise PairError(f"the tokenizer in {path} cannot be read ({first_line(error)}); {SAFETENSORS}") from error
    try:
        with redirect_stderr(StringIO()):  # the reader draws a bar that no setting turns off
            read, info = AutoModelForCausalLM.from_pretrained(
                **place, config=config, dtype=torch.bfloat16, output_loading_info=True,
                quantization_config=GgufConfig(dequantize=True))
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if info["missing_keys"]:
        raise PairError(f"{path} lacks weights for {', '.join(sorted(info['missing_keys'])[:3])}; give a file that "
                        "holds the whole model")
    # A model that came from GGUF refuses to be saved, so its weights move into one that did not.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    with torch.device("meta"):
        model = type(read)(read.config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config, ends = read.generation_config, read.generation_config.eos_token_id
    if (turn := header.metadata.get("tokenizer.ggml.eot_token_id")) is not None:  # the file's end of turn
        model.generation_config.eos_token_id = list(
            dict.fromkeys([*([ends] if isinstance(ends, int) else ends or ()), int(turn)]))
    return model, tokenizer


def _save(model, tokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers adds a class's own special tokens to vocabularies that lack them; no embedding belongs to them.
    file = folder / "tokenizer.json"
    content = json_text.loads(file.read_text(encoding="utf-8"))
    size = model.config.get_text_config().vocab_size
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < size]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _unkept(folder: Path, error: Exception) -> PairError:
    return PairError(f"a converted GGUF model cannot be kept in {folder} ({first_line(error)}); free space or make "
                     "that folder writable, or set XDG_CACHE_HOME to a folder elsewhere")


def _unreadable(path: Path, error: Exception) -> PairError:
    from lib.models.gguf_tensors import OTHER_TYPES, damaged

    text = first_line(error)
    if "architecture" in text:
        return PairError(f"{path} is of an architecture that transformers cannot read from GGUF ({text}); "
                         f"{SAFETENSORS}")
    if isinstance(error, NotImplementedError) or "quantiz" in text.lower():
        return PairError(f"{path} has a quantisation that cannot be read ({text}); {OTHER_TYPES}")
    return damaged(path, text)
