"""Heads in files: config.json and model.safetensors in bfloat16, under the names of the published layouts."""

import json
from pathlib import Path
from typing import Callable

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.eagle import Eagle3Head, EagleHead
from lib.drafters.heads.marginals import BlockHead, MedusaHeads
from lib.models.packed import pack

KINDS = {"medusa": MedusaHeads, "eagle": EagleHead, "eagle3": Eagle3Head, "block": BlockHead}
NGRAMS = "ngrams"  # the kind of tables that stand in a folder as heads do
SHIPPED = Path(__file__).parents[3] / "data" / "models" / "heads"
# Settings of each kind besides sizes, with their values in a new head.
OPTIONS = {"medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1}, "eagle": {"bias": True}, "eagle3": {},
           "block": {"block_size": 6}}


def settings(kind: str, target_config) -> LlamaConfig:
    """The configuration of a new head for a target: narrower than one of its layers, so that a head costs less.

    Two thirds of the target's query heads over one key head, and a feed-forward layer of the hidden size. Features are
    fused from the first, the middle and the last hidden states.
    """
    _check_kind(kind)
    config = target_config.get_text_config()
    layers = config.num_hidden_layers
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size, vocab_size=config.vocab_size, head_dim=width, num_hidden_layers=1,
        num_attention_heads=max(1, config.num_attention_heads * 2 // 3), num_key_value_heads=1,
        intermediate_size=config.hidden_size, max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6), kind=kind,
        feature_layers=[1, (layers + 1) // 2, layers], **OPTIONS[kind])


def save(head: nn.Module, folder: Path) -> None:
    """Writes config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head.config.to_diff_dict(), indent=1, sort_keys=True) + "\n")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file({name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
               for name, tensor in tensors.items()}, folder / "model.safetensors")


def load(kind: str, folder: str | Path, target) -> nn.Module:
    """A head that `save` wrote, with the target's dtype and on its device. ValueError where it does not fit."""
    _check_kind(kind)
    folder = Path(folder)
    if missing := [name for name in ("config.json", "model.safetensors") if not (folder / name).is_file()]:
        raise ValueError(f"{folder} lacks {' and '.join(missing)}; train the head with `python -m lib making heads "
                         f"--target TARGET --kind {kind}`, or name the folder of another")
    try:
        config = LlamaConfig.from_dict(json.loads((folder / "config.json").read_text()))
        tensors = load_file(folder / "model.safetensors")
    except (ValueError, TypeError, StrictDataclassError, SafetensorError) as error:
        raise ValueError(f"{folder} cannot be read as a head ({' '.join(str(error).split())}); fetch it again, or "
                         "train the head anew") from error
    _check_settings(folder, kind, config, target)
    head = KINDS[kind](config)
    fill(folder, head, tensors)
    return ready(head, folder, target)


def _check_settings(folder: Path, kind: str, config: LlamaConfig, target) -> None:
    """ValueError where the configuration is another kind's or target's, or lacks a setting of the kind."""
    held = getattr(config, "kind", None)
    if held != kind:
        raise ValueError(f"{folder} holds a head of kind {held!r}, not {kind!r}; name the folder of the other")
    if missing := [name for name in ("feature_layers", *OPTIONS[kind]) if not hasattr(config, name)]:
        raise ValueError(f"config.json of {folder} lacks {', '.join(missing)}; fetch the folder again, or train the "
                         "head anew")
    check_fits(folder, config.hidden_size, config.vocab_size, target)
    check_features(folder, config.feature_layers, target)


def ready(head: nn.Module, folder: Path, target) -> nn.Module:
    """The head with the target's dtype and device, ready for its drafter; it remembers its folder."""
    head.name_or_path = str(folder)
    return pack(head.to(device=target.device, dtype=target.dtype).eval())


def shipped(target: str, kind: str) -> Path:
    """The folder of a shipped target's head, or tables, of a kind; it need not exist."""
    return SHIPPED / target / kind


def check_shipped(target: str, kind: str) -> Path:
    """The folder of a shipped target's head, or tables, of a kind. ValueError where none ships."""
    folder = shipped(target, kind)
    if not folder.is_dir():
        kinds = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise ValueError(f"no head of kind {kind!r} ships for target {target!r} ({', '.join(kinds) or 'none'} do); "
                         "give the folder of one, leave it out, or make it with `python -m lib making` (heads, or "
                         "ngrams)")
    return folder


def fill(source, head: nn.Module, tensors: dict[str, Tensor], called: Callable[[str], str] = str) -> None:
    """Copies tensors into a head; `called` gives the name in the file of each of the head's.

    ValueError lists what is missing, unexpected, of another shape or kind of number, or holds NaN.
    """
    wanted = {called(name): tensor for name, tensor in head.state_dict().items()}
    both = sorted(wanted.keys() & tensors.keys())
    faults = {
        "missing": sorted(wanted.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - wanted.keys()),
        "of another shape": [f"{name} {tuple(tensors[name].shape)} for {tuple(wanted[name].shape)}"
                             for name in both if tensors[name].shape != wanted[name].shape],
        "of another kind of number": [  # weights of fewer bits, for example, whose scales are not read
            f"{name} {tensors[name].dtype} for {wanted[name].dtype}" for name in both
            if tensors[name].is_floating_point() != wanted[name].is_floating_point()],
        "with NaN": [name for name in both if bool(tensors[name].isnan().any())],
    }
    if any(faults.values()):
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in faults.items() if names)
        raise ValueError(f"the tensors of {source} are not those of its config.json ({listed}); "
                         "fetch the folder again, or name one whose files belong together")
    head.load_state_dict({name: tensors[called(name)] for name in head.state_dict()})


def check_fits(source, hidden: int, vocabulary: int, target) -> None:
    """ValueError where a head was made for a target of another hidden size or vocabulary."""
    ours = target.config.get_text_config()
    for name, wanted in (("hidden_size", hidden), ("vocab_size", vocabulary)):
        if getattr(ours, name) != wanted:
            raise ValueError(f"{source} was made for a target with {name} {wanted}, this one has "
                             f"{getattr(ours, name)}; take the head of this target")


def check_features(source, layers: list[int], target) -> None:
    """ValueError where a head reads hidden states that the target has not: 0, before its first layer, to L, after its
    last.
    """
    deepest = target.config.get_text_config().num_hidden_layers
    if not all(0 <= layer <= deepest for layer in layers):
        raise ValueError(f"{source} reads the hidden states {layers}, this target of {deepest} layers has 0 to "
                         f"{deepest}; take the head of this target")


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"head is of kind {kind!r}; choose one of {', '.join(KINDS)}")
