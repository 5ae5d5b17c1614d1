"""Files of a published head: found in a folder or fetched from the hub, and read without unpickling anything."""

import json
from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lib.models import hub_errors

READ = ("config.json", "*.safetensors")
PICKLES = (".pt", ".pth", ".bin", ".pkl")


def folder_of(where: str | Path) -> Path:
    """The folder itself, or the hub id's snapshot, of which config and safetensors alone are fetched. ValueError if
    there is neither.
    """
    path = Path(where).expanduser()
    if path.is_dir():
        return path
    name, _, revision = str(where).partition("@")
    if str(where).startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"there is no folder {where}; give one with config.json and safetensors, or a hub id "
                         "OWNER/NAME")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(READ)))
    except Exception as error:
        refused = hub_errors.meaning(error)
        if not refused:
            raise
        raise ValueError(f"{where} {refused}") from error


def config_of(where, folder: Path) -> dict:
    """What config.json holds. ValueError where it is missing or holds no JSON object."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{where} has no config.json; fetch the folder again, or name another")
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json of {where} is no JSON ({error}); fetch the folder again") from error
    if not isinstance(given, dict):
        raise ValueError(f"config.json of {where} holds a {type(given).__name__}, no object; fetch the folder again")
    return given


def read(where, folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json, and all tensors of the folder's safetensors by name. ValueError for pickles and what is missing."""
    given = config_of(where, folder)
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ValueError(f"{where} {_instead(folder)}")
    try:
        tensors = {name: tensor for path in found for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{where} holds a broken safetensors file ({error}); fetch it again") from error
    return given, tensors


def check_counts(where, given: dict, *names: str) -> None:
    """ValueError where config.json has one of these and it is no whole number from 1 on."""
    held = {name: given[name] for name in names if name in given}
    wrong = {name: value for name, value in held.items() if type(value) is not int or value < 1}
    if wrong:
        listed = ", ".join(f"{name} {value!r}" for name, value in wrong.items())
        raise ValueError(f"config.json of {where} has {listed}, which must count from 1 on; fetch the folder again")


def _instead(folder: Path) -> str:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if not pickles:
        return ("has no safetensors; if its page lists .bin or .pt files, those are pickles, which can run code when "
                "they are read, and are not fetched here: name a repository or a revision with safetensors, such as "
                "NAME@refs/pr/1 where its page shows a conversion to them")
    return (f"holds its weights in {', '.join(pickles)}: a pickle, which can run code when it is read, so that only "
            "safetensors are read here; if you trust it, read it with torch.load(..., weights_only=True), write it "
            "with safetensors.torch.save_file, and give the folder of that")
