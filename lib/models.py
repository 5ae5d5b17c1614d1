"""A pair of target and drafter by name: the shipped family, a preset, two hub ids, or two local folders."""

import json
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lib import attention
from lib.drafters import LanguageModelDrafter

SHIPPED = Path(__file__).parent.parent / "data" / "models"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
FAMILY = ("base/small", "base/tiny", "base/tiny-base", "small/tiny", "small/tiny-small")
PRESETS = {
    "gpt2": ("openai-community/gpt2-xl", "openai-community/gpt2"),
    "pythia": ("EleutherAI/pythia-2.8b", "EleutherAI/pythia-160m"),
    "qwen2.5": ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    "qwen3": ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"),
    "smollm2": ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "llama3": ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    "llama-68m/llama-2-7b": ("meta-llama/Llama-2-7b-hf", "JackFram/llama-68m"),
    "llama-68m/vicuna-7b": ("lmsys/vicuna-7b-v1.3", "double7/vicuna-68m"),
}
PAIRS: dict[str, tuple[str, str]] = {name: tuple(str(SHIPPED / member) for member in name.split("/")) for name in FAMILY} | PRESETS


class PairError(ValueError):
    """A pair that cannot be loaded or cannot work: what, why, and what to do."""


@dataclass(frozen=True)
class Pair:
    """A target (a transformers model with tree attention), a drafter for `decoding.generate`, and their tokenizer."""

    name: str
    target: object
    drafter: LanguageModelDrafter
    tokenizer: object
    target_name: str
    drafter_name: str

    @property
    def vocabulary(self) -> int:
        """Tokens that both models know; what either has beyond is padding."""
        return min(self.target.config.vocab_size, self.drafter.model.config.vocab_size)

    @property
    def folders(self) -> list[str]:
        """The models' folders, where they are local: their content is what results depend on."""
        return [model.name_or_path for model in (self.target, self.drafter.model) if Path(model.name_or_path).is_dir()]

    @property
    def revisions(self) -> list[str | None]:
        """The models' commits on the hub; None for local folders."""
        return [getattr(model.config, "_commit_hash", None) for model in (self.target, self.drafter.model)]


def load_pair(name: str, *, dtype: str | torch.dtype = "float32", device: str = "cpu") -> Pair:
    """Loads a pair: a name of `PAIRS`, or "TARGET|DRAFTER", each a hub id (with "@REVISION" if wanted) or a local folder.

    PairError (a ValueError) says which model is missing or gated, cannot host a tree, does not fit into memory, or has
    another tokenizer than its partner. No code from a hub runs, and only safetensors are read.
    """
    target_id, drafter_id = _identify(name)
    dtype = _dtype(dtype)
    _check_device(device)
    configs = [_config(model) for model in (target_id, drafter_id)]
    tokenizers = [_tokenizer(model) for model in (target_id, drafter_id)]
    _check_tokenizers(*tokenizers, target_id, drafter_id)
    attention.register()
    target, drafter = (_model(model, config, dtype, device) for model, config in zip((target_id, drafter_id), configs))
    return Pair(name, target, LanguageModelDrafter(drafter, vocabulary=target.config.vocab_size), tokenizers[0],
                *(_short(model) for model in (target_id, drafter_id)))


def _identify(name: str) -> tuple[str, str]:
    if name in PAIRS:
        return PAIRS[name]
    target, bar, drafter = name.partition("|")
    if not bar or not target or not drafter:
        raise PairError(f"pair {name!r} is unknown; choose one of {', '.join(PAIRS)}, or write 'TARGET|DRAFTER' with two hub ids or folders")
    return target, drafter


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise PairError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PairError(f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); set device to one that is there, such as cpu") from None


def _split(model: str) -> tuple[str, str | None]:
    """A model's id and revision; a folder keeps its @."""
    if Path(model).is_dir():
        return model, None
    name, at, revision = model.partition("@")
    return name, revision if at else None


def _config(model: str):
    name, revision = _split(model)
    config = _fetch(AutoConfig, model, name, revision)
    reason = attention.can_host_tree(config)
    if reason:
        raise PairError(f"{name} cannot verify a tree in one forward: {reason}; choose a model with full attention, such as a Llama or a Qwen3")
    return config


def _tokenizer(model: str):
    name, revision = _split(model)
    return _fetch(AutoTokenizer, model, name, revision)


def _fetch(kind, model: str, name: str, revision: str | None):
    """From hub or folder, with an error that says what is the matter."""
    if (model.startswith((".", "/", "~")) or name.count("/") > 1) and not Path(name).is_dir():
        raise PairError(f"there is no folder {name}; give a folder with config.json, model.safetensors and tokenizer files")
    try:
        return kind.from_pretrained(name, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise PairError(_reason(name, revision, error)) from error


def _reason(name: str, revision: str | None, error: Exception) -> str:
    text = f"{type(error).__name__} {error} {error.__cause__!r}".lower()
    if Path(name).is_dir():
        return f"the folder {name} cannot be read as a model ({str(error).splitlines()[0]}); it needs config.json, model.safetensors and tokenizer files"
    if "gated" in text or "401" in text or "403" in text:
        return f"{name} is gated or private; accept its licence on the hub and log in with `hf auth login`"
    if "revision" in text and revision:
        return f"{name} has no revision {revision!r}; leave @{revision} out, or name one that the hub lists"
    if "remote code" in text or "trust_remote_code" in text:
        return f"{name} brings its own code, which never runs here; choose a model that transformers knows"
    if any(sign in text for sign in ("offline", "connect", "resolve", "local", "cached")):
        return (f"{name} is not on this machine and the hub cannot be reached; check the network and HF_HUB_OFFLINE, give a folder, "
                f"or use a shipped pair: {', '.join(FAMILY)}")
    return f"{name} cannot be loaded ({str(error).splitlines()[0]}); check the spelling of the hub id"


def _check_tokenizers(target, drafter, target_id: str, drafter_id: str) -> None:
    """The same token must mean the same text; vocabularies may differ by padding alone."""
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    differing = [token for token, index in ours.items() if theirs.get(token, index) != index]
    apart = set(ours) ^ set(theirs)
    if differing or len(apart) > 0.02 * len(ours):
        example = repr(differing[0] if differing else sorted(apart)[0])
        raise PairError(f"{_short(target_id)} and {_short(drafter_id)} have different tokenizers ({len(differing) + len(apart)} tokens differ, {example} "
                        "for one); a drafter needs its target's vocabulary: choose two members of one family")


def _model(model: str, config, dtype: torch.dtype, device: str):
    name, revision = _split(model)
    needed, free = _bytes(name, config, dtype), _free(device)
    if needed > free:
        raise PairError(f"{_short(model)} needs about {needed / 2**30:.1f} GiB as {dtype}, {free / 2**30:.1f} GiB are free on {device}; "
                        "use a smaller dtype, a smaller model or another device")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=dtype, attn_implementation=attention.TREE,
                                                      trust_remote_code=False, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise PairError(_reason(name, revision, error)) from error
    return loaded.to(device).eval()


def _bytes(name: str, config, dtype: torch.dtype) -> int:
    """Weights in memory: from the index of a local folder where there is one, else from a model without storage."""
    files = list(Path(name).glob("*.safetensors")) if Path(name).is_dir() else []
    if files:
        stored = DTYPES.get(json.loads((Path(name) / "config.json").read_text()).get("dtype", "float32"), torch.float32)
        return sum(file.stat().st_size for file in files) * dtype.itemsize // stored.itemsize
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()) * dtype.itemsize


def _free(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def _short(model: str) -> str:
    """A model's name as figures show it."""
    name, revision = _split(model)
    return Path(name).name + (f"@{revision}" if revision else "")
