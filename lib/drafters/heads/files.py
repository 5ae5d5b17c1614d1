"""Heads in folders: config.json and safetensors in the layout of each head's authors, this project's own included.

medusa   `HEAD.BLOCK.linear`, and in version 1 `HEAD.BLOCKS.weight`, an output layer of each head. Repositories of a
         whole model put "medusa_head." before these names.
eagle3   `fc`, `midlayer`, `norm`, and EAGLE-3.1's `fc_norm.N` or `input_norm`. vLLM's speculators call the layer
         `layers.0` and nest its sizes in `transformer_layer_config`; some put "model." before the names. A head of this
         project whose last feature was trained after the target's final norm says so (`last_feature_normed`).
dflash   `fc`, `hidden_norm`, `layers.N`, `norm`; `dflash_config` has target_layer_ids, whose outputs are read, and
         mask_token_id. Speculators name hidden states in aux_hidden_state_layer_ids, counted from the embeddings on.
dspark   as dflash with both settings at the top level (DeepSpec), `markov_head.markov_w1` and `_w2`; a confidence head
         is left out. That of this project has `place_embeddings`, and of `markov_w1` the rows of the tokens it drafts.

A head may have its own `embed_tokens` and `lm_head`, and draft part of the vocabulary: d2t int64[K] (token = index +
d2t[index]) and t2d bool[V]. Without `lm_head` the target's output layer stands in.
"""

import json
import math
import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.layers import embed
from lib.drafters.heads.marginals import BlockHead, MedusaHeads
from lib.forward.packed import pack
from lib.lab import json_text
from lib.models import checks

KINDS = {"medusa": MedusaHeads, "eagle3": Eagle3Head, "dflash": BlockHead, "dspark": BlockHead}
NGRAMS = "ngrams"  # the kind of tables that stand in a folder as heads do
DATA = Path(__file__).parents[3] / "data"
PLACES = DATA / "models" / "heads", DATA / "runs" / "training" / "heads"  # of those that ship, and that were made here
PICKLES = (".pt", ".pth", ".bin", ".pkl")
FEATURES = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc")  # of EAGLE-3
SIZES = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
LAYERS, MOST_LAYERS = ("num_hidden_layers", "medusa_num_heads", "medusa_num_layers"), 1000
COUNTS = (*SIZES, *LAYERS, "num_key_value_heads", "draft_vocab_size", "block_size", "markov_rank")
VARIANTS = ("causal_head", "is_causal", "draft_shift", "input_embedding_scale", "output_multiplier", "sliding_window",
            "final_logit_softcapping", "conv_kernel_size", "selector_rank")
INTERNAL = ("kind", "feature_layers", "own_output", "own_embedding", "outputs_per_head", "qk_norm", "shifted",
            "learned_places", "markov_of_all", "architectures", "transformers_version")  # attributes of configurations
AGAIN = "fetch the folder again, or name one whose files belong together and to this target"


def load(kind: str, where: str | Path, target) -> nn.Module:
    """A head of a kind for a target, with its dtype and on its device.

    where: a folder, or a hub id with "@REVISION" if wanted. ValueError names the folder and what is wrong in it.
    """
    folder = _fetched(where)
    settings, tensors = read(where, folder)
    try:
        head = _head(kind, settings, tensors, target.config.get_text_config())
    except Exception as error:  # whatever libraries raise of settings with values of unknown types
        reason = " ".join(str(error).split())
        raise ValueError(f"{where} holds no {kind} head for this target: {reason}; {AGAIN}") from error
    head.name_or_path = str(folder)
    head = head.to(device=target.device, dtype=target.dtype).eval()
    if isinstance(head, BlockHead) and head.place_embeddings is None:
        mask = torch.tensor(head.config.mask_token_id, device=target.device)
        head.mask_embedding = embed(head, target, mask).detach()
    return pack(head)


def save(head: nn.Module, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes config.json and model.safetensors in the layout of the authors of the head's kind."""
    config, tensors, tokens = head.config, head.state_dict(), head.tokens
    if tensors.pop("tokens", None) is not None:
        drafted = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, tokens.cpu(), True)
        tensors |= {"d2t": tokens - torch.arange(len(tokens), device=tokens.device), "t2d": drafted}
    settings = {name: value for name, value in config.to_diff_dict().items() if name not in INTERNAL}
    settings |= {"dtype": str(dtype).removeprefix("torch."), **_authors_settings(config)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    save_file({name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).cpu().contiguous()
               for name, tensor in tensors.items()}, folder / "model.safetensors")


def _authors_settings(config: LlamaConfig) -> dict[str, object]:
    """The settings besides sizes by which authors' code and serving engines know a head."""
    features = config.feature_layers
    if config.kind == "medusa":
        return {"version": "2"}
    if config.kind == "eagle3":  # engines differ in where they look for features, and in what they assume of flags
        return {"architectures": ["LlamaForCausalLMEagle3"], FEATURES: features,
                "eagle_config": {FEATURES: features, "use_aux_hidden_state": True},
                "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
                **{flag: bool(getattr(config, flag, False)) for flag in FLAGS}}
    inner = {"target_layer_ids": [state - 1 for state in features], "mask_token_id": config.mask_token_id}
    settings = {"model_type": "qwen3" if config.qk_norm else "llama"}
    if config.kind == "dflash":
        return settings | {"architectures": ["DFlashDraftModel"], "dflash_config": inner}
    return settings | {"architectures": ["Qwen3DSparkModel"], "markov_head_type": "vanilla", **inner}


def read(where: str | Path, folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json, and all tensors of the folder's safetensors by name; nothing is unpickled.

    where: the folder as a user named it. ValueError says what is missing or broken.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{where} has no config.json; {AGAIN}")
    try:
        settings = json_text.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json of {where} is no JSON ({error}); {AGAIN}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"config.json of {where} holds a {type(settings).__name__}, no object; {AGAIN}")
    files = sorted(folder.glob("*.safetensors"))
    pickles = ", ".join(sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES))
    if not files:
        raise ValueError(
            f"{where} has no safetensors{f', but {pickles}' if pickles else ''}; .bin and .pt files are pickles, which "
            "can run code when they are read: name a repository or a revision with safetensors, such as a pull request's "
            "(NAME@refs/pr/1)")
    try:
        return settings, {name: tensor for path in files for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{where} holds a broken safetensors file ({error}); {AGAIN}") from error


def _head(kind: str, settings: dict, tensors: dict[str, Tensor], target) -> nn.Module:
    """The head of a folder's settings and tensors; target: the target's text configuration. ValueErrors of a few words;
    other errors where settings have values of unknown types.
    """
    settings = {**(settings.get("transformer_layer_config") or {}), **settings}
    tensors = _renamed(kind, tensors)
    special = {"medusa": _of_medusa, "eagle3": _of_eagle3, "dflash": _of_block, "dspark": _of_block}[kind](
        kind, settings, tensors, target)
    settings = {**settings, **special, "kind": kind, "own_output": "lm_head.weight" in tensors}
    settings["own_embedding"] = "embed_tokens.weight" in tensors or settings["hidden_size"] != target.hidden_size
    if lacking := [name for name in SIZES if settings.get(name) is None]:
        raise ValueError(f"config.json lacks {', '.join(lacking)}")
    for name in COUNTS:
        count, most = settings.get(name, 1), MOST_LAYERS if name in LAYERS else math.inf
        if count is not None and (type(count) is not int or not 1 <= count <= most):
            raise ValueError(f"config.json has {name} {count!r}, which must count from 1 on")
    for name, of_target in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        of_head = (name == "hidden_size" and settings.get("target_hidden_size")) or settings[name]
        if of_head != of_target:
            raise ValueError(f"it was made for a target with {name} {of_head}, this one has {of_target}")
    features = settings["feature_layers"]
    if not all(type(state) is int and 0 <= state <= target.num_hidden_layers for state in features):
        raise ValueError(f"it reads the hidden states {features}, this target of {target.num_hidden_layers} layers has "
                         f"0 to {target.num_hidden_layers}")
    settings["draft_vocab_size"], tensors = _drafted(settings, tensors)
    return _filled(KINDS[kind], LlamaConfig.from_dict(settings), tensors)


def _renamed(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the head under its authors' names."""
    alone = {name: tensor for name, tensor in tensors.items() if name.startswith("medusa_head.")}
    unread = ("confidence_head",) if kind == "dspark" else ()
    names = {name: name.removeprefix("medusa_head.").removeprefix("model.") for name in alone or tensors
             if not name.endswith("rotary_emb.inv_freq") and not name.startswith(unread)}
    if kind == "eagle3":
        names = {name: re.sub(r"^layers\.0\.", "midlayer.", new) for name, new in names.items()}
    renamed = list(names.values())
    if twice := sorted({new for new in renamed if renamed.count(new) > 1}):
        raise ValueError(f"it has {', '.join(twice)} under two names")
    return {new: tensors[name] for name, new in names.items()}


def _of_medusa(kind: str, settings: dict, tensors: dict[str, Tensor], target) -> dict:
    """medusa_num_heads of config.json is the least number of heads: some published ones say 2 and hold 5."""
    numbers = [int(match[1]) for name in tensors if (match := re.match(r"(\d+)\.\d+\.", name))]
    blocks, heads = settings.get("medusa_num_layers", 1), settings.get("medusa_num_heads", 1)
    if type(blocks) is not int or type(heads) is not int:
        raise ValueError(f"config.json has medusa_num_heads {heads!r}, medusa_num_layers {blocks!r}, which must count")
    return {"hidden_size": settings.get("hidden_size", target.hidden_size), "num_attention_heads": 1,
            "vocab_size": settings.get("vocab_size", target.vocab_size), "intermediate_size": target.hidden_size,
            "medusa_num_heads": max([heads, *(number + 1 for number in numbers)]), "medusa_num_layers": blocks,
            "outputs_per_head": any(re.fullmatch(rf"\d+\.{blocks}\.weight", name) for name in tensors),
            "feature_layers": []}


def _of_eagle3(kind: str, settings: dict, tensors: dict[str, Tensor], target) -> dict:
    """Features are counted as vLLM does, from the embeddings on: n is the input of layer n. The default is EAGLE's."""
    if wrong := [name for name in FLAGS if type(settings.get(name, False)) is not bool]:
        raise ValueError(f"config.json has {wrong[0]} {settings[wrong[0]]!r}, which must be true or false")
    nested, layers = settings.get("eagle_config") or {}, target.num_hidden_layers
    features = settings.get(FEATURES) or nested.get(FEATURES) or [2, layers // 2, layers - 3]
    if layers in features and not settings.get("last_feature_normed"):
        raise ValueError(f"it reads the target's hidden state {layers} before the final norm, which transformers does "
                         "not give; take a head that reads earlier ones alone")
    norms = {"fc_norm": "fc_norm.0.weight" in tensors, "norm_before_fc": "input_norm.weight" in tensors}
    return {**norms, **{flag: settings[flag] for flag in FLAGS if flag in settings}, "feature_layers": features,
            "num_hidden_layers": 1, "attention_bias": settings.get("qkv_bias", settings.get("attention_bias", False))}


def _of_block(kind: str, settings: dict, tensors: dict[str, Tensor], target) -> dict:
    """Places of DFlash's block predict their own token, those of DSpark's the next one."""
    settings = {**settings, **(settings.get("dflash_config") or {})}
    if unread := [name for name in VARIANTS if settings.get(name)]:
        raise ValueError(f"config.json has {unread[0]}, which is not read here; take a head without it")
    if kind == "dspark" and settings.get("markov_head_type", "vanilla") != "vanilla":
        raise ValueError(f"config.json has markov_head_type {settings['markov_head_type']!r}; 'vanilla' is read here")
    if kind == "dspark" and ("markov_rank" not in settings or "speculators_model_type" in settings):
        raise ValueError("it is no DSpark head as DeepSpec writes it (markov_rank, no speculators_model_type)")
    layers = settings.get("target_layer_ids")
    states = settings.get("aux_hidden_state_layer_ids") if layers is None else [layer + 1 for layer in layers]
    if not states or "block_size" not in settings:
        raise ValueError("config.json names no layers of the target, or no block_size")
    mask, learned = settings.get("mask_token_id"), "place_embeddings" in tensors
    if not learned and (type(mask) is not int or not 0 <= mask < target.vocab_size):
        raise ValueError(f"config.json has mask_token_id {mask!r}, which is none of the {target.vocab_size} tokens")
    biases = tensors.get("markov_head.markov_w1.weight")
    return {"feature_layers": states, "shifted": kind == "dspark", "learned_places": learned, "mask_token_id": mask,
            "block_size": settings["block_size"], "qk_norm": settings.get("model_type") != "llama",
            "markov_rank": settings["markov_rank"] if kind == "dspark" else None,
            "markov_of_all": biases is not None and len(biases) == settings.get("vocab_size")}


def _drafted(settings: dict, tensors: dict[str, Tensor]) -> tuple[int | None, dict[str, Tensor]]:
    """How many tokens the head drafts, None for all, and the tensors with `tokens` in place of d2t and t2d, and the
    rows of output layers in ascending order of their tokens.
    """
    offsets, drafted = tensors.get("d2t"), tensors.get("t2d")
    tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    vocabulary = settings["vocab_size"]
    size = settings.get("draft_vocab_size") or (vocabulary if offsets is None else len(offsets))
    if size == vocabulary and (offsets is None or not offsets.any()):
        return None, tensors
    if offsets is None or offsets.is_floating_point():
        raise ValueError(f"it drafts {size} of {vocabulary} tokens, but has no d2t of integers")
    tokens, order = (torch.arange(len(offsets)) + offsets.long()).sort()
    if drafted is not None and not torch.equal(drafted.nonzero().flatten(), tokens):
        raise ValueError("d2t and t2d name different tokens")
    if not ((tokens.diff() > 0).all() and 0 <= tokens[0] and tokens[-1] < vocabulary):
        raise ValueError(f"the tokens that it drafts are no part of the target's {vocabulary}, each once")
    ordered = {name: tensors[name][order] for name in ("lm_head.weight", "markov_head.markov_w2.weight")
               if name in tensors}
    return size, {**tensors, **ordered, "tokens": tokens}


def _filled(kind: type[nn.Module], config: LlamaConfig, tensors: dict[str, Tensor]) -> nn.Module:
    """A head with these tensors. ValueError lists what is missing, unexpected, of another shape or kind of number
    (weights of fewer bits, for example, whose scales are not read), or holds NaN.
    """
    with torch.device("meta"):  # without storage, which a broken file may ask too much of
        expected = kind(config).state_dict()
    both = sorted(expected.keys() & tensors.keys())
    faults = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - expected.keys()),
        "of another shape": [f"{name} {tuple(tensors[name].shape)} for {tuple(expected[name].shape)}"
                             for name in both if tensors[name].shape != expected[name].shape],
        "of another kind of number": [
            f"{name} {tensors[name].dtype} for {expected[name].dtype}" for name in both
            if tensors[name].is_floating_point() != expected[name].is_floating_point()],
        "with NaN": [name for name in both if bool(tensors[name].isnan().any())],
    }
    if listed := "; ".join(f"{fault}: {', '.join(names)}" for fault, names in faults.items() if names):
        raise ValueError(f"its tensors are not those of its config.json ({listed})")
    head = kind(config)
    head.load_state_dict(tensors)
    return head


def _fetched(where: str | Path) -> Path:
    """The folder itself, or the hub id's snapshot, of which config and safetensors alone are fetched."""
    path = Path(where).expanduser()
    if path.is_dir():
        return path
    name, _, revision = str(where).partition("@")
    if str(where).startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"there is no folder {where}; give one with config.json and safetensors, or a hub id "
                         "OWNER/NAME")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=["config.json", "*.safetensors"]))
    except Exception as error:
        if not (refused := checks.meaning(error)):
            raise
        raise ValueError(f"{where} {refused}") from error


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
        there = ", ".join(made_for(target)) or "none"
        raise ValueError(f"no head of kind {kind!r} exists for target {target!r} ({there} do); give the folder of one, "
                         "leave it out, or make it with `python -m lib training` (heads, or ngrams)")
    return folder
