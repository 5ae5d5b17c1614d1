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

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.marginals import BlockHead, MedusaHeads
from lib.lab import json_text

KINDS = {"medusa": MedusaHeads, "eagle3": Eagle3Head, "dflash": BlockHead, "dspark": BlockHead}
LAYERS, MOST_LAYERS = ("num_hidden_layers", "medusa_num_heads", "medusa_num_layers"), 1000  # more are a broken file's
NGRAMS = "ngrams"  # the kind of tables that stand in a folder as heads do
PICKLES = (".pt", ".pth", ".bin", ".pkl")
DATA = Path(__file__).parents[3] / "data"
PLACES = DATA / "models" / "heads", DATA / "runs" / "training" / "heads"  # of those that ship, and that were made here
# Settings of each kind besides sizes, with their values in a new head.
OPTIONS = {"medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1}, "eagle3": {},
           "dflash": {"num_hidden_layers": 2, "block_size": 7, "shifted": False, "qk_norm": True},
           "dspark": {"block_size": 6, "shifted": True, "markov_rank": 64, "learned_places": True}}
MASK = 16  # the mask token of a new head: one of SmolLM2's special tokens that texts do not have
AGAIN = "fetch the folder again"


def settings(kind: str, target_config, draft_vocab_size: int | None = None) -> LlamaConfig:
    """The configuration of a new head for a target: narrower than one of its layers, so that a head costs less.
    draft_vocab_size: how many of the target's tokens it drafts; None for all.

    Two thirds of the target's query heads over one key head, and a feed-forward layer of the hidden size.
    """
    config = target_config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size, vocab_size=config.vocab_size, head_dim=width,
        num_attention_heads=max(1, config.num_attention_heads * 2 // 3), num_key_value_heads=1,
        intermediate_size=config.hidden_size, max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6), kind=kind, mask_token_id=min(MASK, config.vocab_size - 1),
        feature_layers=feature_layers(config.num_hidden_layers), draft_vocab_size=draft_vocab_size,
        **{"num_hidden_layers": 1, **OPTIONS[kind]})


def feature_layers(layers: int) -> list[int]:
    """The hidden states that a new head of a target with so many layers reads, ascending: the inputs of layers 2, L/2
    and L - 3, as EAGLE-3's code and serving engines have it; of the last three layers where the target has few.

    The last hidden state is none of them: transformers gives it after the final norm, engines before it.
    """
    return [2, layers // 2, layers - 3] if layers > 6 else list(range(layers))[-3:]


def save(head: nn.Module, folder: Path) -> None:
    """Writes config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head.config.to_diff_dict(), indent=1, sort_keys=True) + "\n")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file({name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
               for name, tensor in tensors.items()}, folder / "model.safetensors")


def read(where, folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json, and all tensors of the folder's safetensors by name; nothing is unpickled.

    where: the folder as a user named it. ValueError says what is missing or broken.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{where} has no config.json; {AGAIN}, or name another")
    try:
        settings = json_text.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json of {where} is no JSON ({error}); {AGAIN}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"config.json of {where} holds a {type(settings).__name__}, no object; {AGAIN}")
    files = sorted(folder.glob("*.safetensors"))
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if not files and pickles:
        raise ValueError(
            f"{where} holds its weights in {', '.join(pickles)}: a pickle, which can run code when it is read, so that "
            "only safetensors are read here; if you trust it, read it with torch.load(..., weights_only=True), write "
            "it with safetensors.torch.save_file, and give the folder of that")
    if not files:
        raise ValueError(
            f"{where} has no safetensors; if its page lists .bin or .pt files, those are pickles, which can run code "
            "when they are read, and are not fetched here: name a repository or a revision with safetensors, such as "
            "NAME@refs/pr/1 where its page shows a conversion to them")
    try:
        return settings, {name: tensor for path in files for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{where} holds a broken safetensors file ({error}); fetch it again") from error


class HeadFiles:
    """config.json and the tensors of a folder that holds a head, and the target that the head is for.

    where: the folder, or hub id, as a user named it. settings, tensors: as `read` gives them. Errors are ValueErrors
    that name the folder, the value and the remedy.
    """

    def __init__(self, where, folder: Path, target):
        self.where, self.target = where, target
        self.settings, tensors = read(where, folder)
        self.tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}

    def wrong(self, fault: str, remedy: str = AGAIN) -> ValueError:
        """The error for a fault of config.json."""
        return ValueError(f"config.json of {self.where} {fault}; {remedy}")

    def unlike_llama(self, error: Exception) -> ValueError:
        """The error for settings that transformers refuses."""
        return self.wrong(f"is not that of a Llama layer ({' '.join(str(error).split())})", f"{AGAIN}, or name another")

    def check_counts(self, settings: dict, *names: str) -> None:
        """ValueError where the settings have one of these and it is no whole number from 1 on."""
        held = {name: settings[name] for name in names if name in settings}
        if wrong := {name: value for name, value in held.items() if type(value) is not int or value < 1}:
            listed = ", ".join(f"{name} {value!r}" for name, value in wrong.items())
            raise self.wrong(f"has {listed}, which must count from 1 on")

    def config(self, settings: dict) -> LlamaConfig:
        """The configuration of a head's layers. ValueError where the settings are not those of a Llama layer."""
        try:
            return LlamaConfig.from_dict(settings)
        except StrictDataclassError as error:
            raise self.unlike_llama(error) from error

    def check_fits(self, hidden: int, vocabulary: int, features: list[int] | None = None) -> None:
        """ValueError where a head was made for a target of another hidden size or vocabulary, or reads features that
        the target has not: hidden states from 0, before its first layer, to L, after its last.
        """
        config, remedy = self.target.config.get_text_config(), "take the head of this target"
        for name, wanted in (("hidden_size", hidden), ("vocab_size", vocabulary)):
            if (ours := getattr(config, name)) != wanted:
                raise ValueError(f"{self.where} was made for a target with {name} {wanted}, this one has {ours}; "
                                 f"{remedy}")
        deepest = config.num_hidden_layers
        if not all(type(layer) is int and 0 <= layer <= deepest for layer in features or ()):
            raise ValueError(f"{self.where} reads the hidden states {features}, this target of {deepest} layers has 0 "
                             f"to {deepest}; {remedy}")

    def head(self, kind: type[nn.Module], config: LlamaConfig, tensors: dict[str, Tensor],
             called: Callable[[str], str] = str) -> nn.Module:
        """A head with these tensors; `called` gives the name in the file of each of the head's.

        ValueError lists what is missing, unexpected, of another shape or kind of number, or holds NaN. ValueError also
        for an activation or a rotation that transformers does not know, and where the tokens that the head drafts are
        no ascending part of the target's.
        """
        for name in LAYERS:
            if not 0 < (count := getattr(config, name, None) or 1) <= MOST_LAYERS:
                raise self.wrong(f"has {name} {count}")
        try:
            with torch.device("meta"):  # without storage, which a broken file may ask too much of
                wanted = {called(name): tensor for name, tensor in kind(config).state_dict().items()}
        except (KeyError, TypeError) as error:
            raise self.unlike_llama(error) from error
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
            raise ValueError(f"the tensors of {self.where} are not those of its config.json ({listed}); {AGAIN}, or "
                             "name one whose files belong together")
        head = kind(config)
        head.load_state_dict({name: tensors[called(name)] for name in head.state_dict()})
        tokens, size = head.tokens, config.vocab_size
        if tokens is not None and not ((tokens.diff() > 0).all() and 0 <= tokens[0] and tokens[-1] < size):
            raise ValueError(f"the tokens that {self.where} drafts are no part of the target's {size}, each once; "
                             f"{AGAIN}, or take the head of this target")
        return head

    def saved(self, kind: str) -> nn.Module:
        """The head that `save` wrote. ValueError where it is another kind's or does not fit."""
        if (held := self.settings["kind"]) != kind:
            raise ValueError(f"{self.where} holds a head of kind {held!r}, not {kind!r}; name the folder of the other")
        if missing := [name for name in ("feature_layers", *OPTIONS[kind]) if name not in self.settings]:
            raise self.wrong(f"lacks {', '.join(missing)}", f"{AGAIN}, or train the head anew")
        config = self.config(self.settings)
        self.check_fits(config.hidden_size, config.vocab_size, config.feature_layers)
        return self.head(KINDS[kind], config, self.tensors)


def folder_of(target: str, kind: str) -> Path:
    """The folder of a target's head, or tables, of a kind: the one that ships, else the one that was made here; it need
    not exist.
    """
    first, *_ = folders = [place / target / kind for place in PLACES]
    return next((folder for folder in folders if (folder / "config.json").is_file()), first)


def made_for(target: str) -> list[str]:
    """The kinds, with a variant after a dash where there are several, of all heads and tables of a target."""
    return sorted({path.parent.name for place in PLACES for path in (place / target).glob("*/config.json")})


def check_folder_of(target: str, kind: str) -> Path:
    """`folder_of`. ValueError where there is none."""
    folder = folder_of(target, kind)
    if not folder.is_dir():
        known = ", ".join(made_for(target)) or "none"
        raise ValueError(f"no head of kind {kind!r} exists for target {target!r} ({known} do); give the folder of one, "
                         "leave it out, or make it with `python -m lib training` (heads, or ngrams)")
    return folder
