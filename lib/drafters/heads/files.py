"""Heads in folders: config.json and safetensors in the layout of each head's authors, this project's own included.

medusa   `HEAD.BLOCK.linear`, and in version 1 `HEAD.BLOCKS.weight`, an output layer of each head; "medusa_head." comes
         before these names in repositories of a whole model.
eagle3   `fc`, `midlayer`, `norm`. `last_feature_normed`: the last hidden state was read after the target's final norm.
dflash   `fc`, `hidden_norm`, `layers.N`, `norm`; `dflash_config` has target_layer_ids (outputs) and mask_token_id.
dspark   as dflash with both settings at the top level, `markov_head.markov_w1` and `_w2` unless markov_rank is 0; a
         confidence head is ignored. That of this project has `place_embeddings`, and of `markov_w1` the rows of the
         tokens that it drafts. `sample_from_anchor`, of both: whether a position predicts the next token; else its own.

A head may have `embed_tokens` and `lm_head`, else the target's are used, and draft part of the vocabulary: d2t int64[K]
(token = index + d2t[index], ascending) and t2d bool[V].
"""

import json
import math
import warnings
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.marginals import BlockHead, MedusaHeads
from lib.models import checks
from lib.models.files import check_folder

KINDS = {"medusa": MedusaHeads, "eagle3": Eagle3Head, "dflash": BlockHead, "dspark": BlockHead}
NGRAMS = "ngrams"  # the kind of tables that stand in a folder as heads do
MEDUSA, FEATURES, LAYERS = "medusa_head.", "eagle_aux_hidden_state_layer_ids", "target_layer_ids"
COUNTS = {"medusa": ["medusa_num_layers"], "eagle3": [], "dflash": ["num_hidden_layers", "block_size"],
          "dspark": ["num_hidden_layers", "block_size", "markov_rank"]}
VARIANTS = ("norm_output", "causal_head", "is_causal", "causal", "draft_shift", "input_embedding_scale",
            "output_multiplier", "sliding_window", "swa_window_size", "final_logit_softcapping")  # that compute otherwise
INTERNAL = ("kind", "feature_layers", "own_output", "own_embedding", "outputs_per_head", "qk_norm", "shifted",
            "learned_places", "markov_of_all", LAYERS, "use_aux_hidden_state", "architectures",
            "transformers_version")  # attributes of configurations
FAULTS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, StrictDataclassError)
AGAIN = "fetch the folder again"  # where a file is missing


def load(kind: str, folder: str | Path, target) -> nn.Module:
    """A head of a kind for a target, with its dtype and on its device. ValueError says what is wrong in the folder."""
    folder = Path(folder).expanduser()
    settings, tensors = read(folder)
    try:
        head, guessed = _head(kind, settings, tensors, target.config.get_text_config())
    except FAULTS as error:  # of this module, of configurations, and of PyTorch, for values that do not fit
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder} holds no {kind} head for this target: {reason}; name a folder whose files belong "
                         "together and to this target") from error
    if guessed:
        warnings.warn(f"{folder}/config.json does not say which layers of the target the head reads ({guessed}); it is "
                      f"taken to read the hidden states {head.config.feature_layers}, as its authors' code does; if it "
                      "drafts badly, add the right layers", stacklevel=2)
    head.name_or_path = str(folder)
    return head.to(device=target.device, dtype=target.dtype).eval()


def save(head: nn.Module, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes config.json, with what authors' code and serving engines look for, and model.safetensors."""
    config, tensors, tokens = head.config, head.state_dict(), head.tokens
    if tensors.pop("tokens", None) is not None:
        drafted = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, tokens.cpu(), True)
        tensors |= {"d2t": tokens - torch.arange(len(tokens), device=tokens.device), "t2d": drafted}
    features, mask = config.feature_layers, getattr(config, "mask_token_id", None)
    block = {LAYERS: [state - 1 for state in features], "mask_token_id": mask}
    settings = {name: value for name, value in config.to_diff_dict().items() if name not in INTERNAL}
    settings["model_type"] = "qwen3" if getattr(config, "qk_norm", False) else "llama"
    settings |= {"dtype": checks.dtype_name(dtype)} | {
        "medusa": {"version": "2"},
        "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], FEATURES: features,
                   "eagle_config": {FEATURES: features, "use_aux_hidden_state": True},  # where SGLang looks
                   "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
                   "norm_before_residual": getattr(config, "norm_before_residual", False)},
        "dflash": {"architectures": ["DFlashDraftModel"], "dflash_config": block},
        "dspark": {"architectures": ["Qwen3DSparkModel"], "markov_head_type": "vanilla", **block}}[config.kind]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    save_file({name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).cpu().contiguous()
               for name, tensor in tensors.items()}, folder / "model.safetensors")


def read(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """config.json, and all tensors in the folder's safetensors by name. ValueError says what is missing or broken."""
    if folder.is_dir():
        check_folder(folder)
    files, config, tensors = sorted(folder.glob("*.safetensors")), folder / "config.json", {}
    index = folder / "model.safetensors.index.json"  # of several files
    if not files and [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]:
        raise ValueError(f"{folder} has no safetensors; .bin and .pt files are pickles, which can run code when they "
                         "are read: take a repository or a revision with safetensors")
    part = config
    try:
        settings, part = json.loads(config.read_text(encoding="utf-8")), index
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else {}
        listed = {*map(str, weight_map.values())}
        for part in files:
            tensors |= load_file(part)
    except FileNotFoundError:
        raise ValueError(f"{folder} lacks config.json; {AGAIN}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise ValueError(f"{part} is broken: {checks.first_line(error)}; take another copy of it") from error
    if missing := sorted(listed - {file.name for file in files}) or ([] if files else ["model.safetensors"]):
        raise ValueError(f"{folder} lacks {missing[0]}; {AGAIN}")
    if not isinstance(settings, dict):
        raise ValueError(f"{config} holds no object; take another copy of it")
    return settings, tensors


def _head(kind: str, settings: dict, tensors: dict[str, Tensor], target: LlamaConfig) -> tuple[nn.Module, str]:
    """The head of a folder's settings and tensors, and the setting of its layers where these had to be guessed; target:
    the target's text configuration.
    """
    in_model = {name.removeprefix(MEDUSA): tensor for name, tensor in tensors.items() if name.startswith(MEDUSA)}
    tensors = in_model or {name: tensor for name, tensor in tensors.items() if not name.startswith("confidence_head.")}
    settings = settings | (settings.get("eagle_config") or {}) | (settings.get("dflash_config") or {})
    settings = {name: value for name, value in settings.items() if value is not None} | {"kind": kind}
    of_kind = {"medusa": "", "eagle3": FEATURES}.get(kind, LAYERS)
    guessed = of_kind if of_kind and settings.get(of_kind) is None else ""
    settings |= _derived(settings, tensors, target)
    _check(settings, target, len(tensors))
    config = LlamaConfig.from_dict(settings | {"draft_vocab_size": _drafted(tensors, target.vocab_size)})
    with torch.device("meta"):  # without storage, of which a broken file may ask too much
        KINDS[kind](config).load_state_dict(tensors, assign=True)
    if broken := [name for name, tensor in tensors.items() if bool(tensor.isnan().any())]:
        raise ValueError(f"NaN is in {', '.join(broken)}")
    head = KINDS[kind](config)
    head.load_state_dict(tensors)
    return head, guessed


def _derived(settings: dict, tensors: dict[str, Tensor], target: LlamaConfig) -> dict:
    """The settings that tensors tell, and the hidden states that the head reads: n is the input of layer n."""
    layers, kind, blocks = target.num_hidden_layers, settings["kind"], settings.get("medusa_num_layers", 1)
    if kind == "medusa":  # config.json may lack sizes, and some published ones count two heads where there are five
        count = len({name.partition(".")[0] for name in tensors if name[0].isdigit()})
        special = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size, "num_attention_heads": 1,
                   **settings, "medusa_num_heads": count, "medusa_num_layers": blocks, "num_hidden_layers": 1,
                   "feature_layers": [layers]}
    elif kind == "eagle3":  # config.json may count the target's layers
        special = {"num_hidden_layers": 1, "feature_layers": settings.get(FEATURES, [2, layers // 2, layers - 3])}
    else:  # without a list, as many layers as `fc` reads, evenly from the second to the last but two (arXiv 2602.06036)
        count = tensors["fc.weight"].shape[1] // target.hidden_size if "fc.weight" in tensors else 1
        even = [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)] if count > 1 else [layers // 2]
        special = {"feature_layers": [layer + 1 for layer in settings.get(LAYERS, even)]}
    return special | {
        "shifted": settings.get("sample_from_anchor", kind == "dspark"),
        "learned_places": "place_embeddings" in tensors,
        "own_output": "lm_head.weight" in tensors, "own_embedding": "embed_tokens.weight" in tensors,
        "outputs_per_head": f"0.{blocks}.weight" in tensors,
        "attention_bias": any(name.endswith("q_proj.bias") for name in tensors),
        "qk_norm": any(name.endswith("q_norm.weight") for name in tensors),
        "markov_of_all": len(tensors.get("markov_head.markov_w1.weight", ())) == target.vocab_size}


def _check(settings: dict, target: LlamaConfig, most_layers: int) -> None:
    """ValueError for settings of another target or of a variant, and for numbers that a damaged file may have."""
    kind, features, layers = settings["kind"], settings["feature_layers"], target.num_hidden_layers
    if kind != "medusa" and (variants := [name for name in VARIANTS if settings.get(name)]):
        raise ValueError(f"config.json has {variants[0]}, which is not read here; take a head without it")
    if not settings.get("use_aux_hidden_state", True):
        raise ValueError("config.json has use_aux_hidden_state false, for heads that read the target's last hidden "
                         "state alone, which are not read here; take a head that reads several layers")
    if type(settings["shifted"]) is not bool:
        raise ValueError(f"config.json has sample_from_anchor {settings['shifted']!r}, which must be true or false")
    if kind == "dflash" and settings.get("markov_rank"):
        raise ValueError(f"config.json has markov_rank {settings['markov_rank']!r}, as heads of kind dspark; load one")
    for name in ("hidden_size", "vocab_size"):
        if settings.get(name) != (of_target := getattr(target, name)):
            raise ValueError(f"it was made for a target with {name} {settings.get(name)!r}, this one has {of_target}")
    if not features or not all(type(state) is int and 0 <= state <= layers for state in features):
        raise ValueError(f"it reads the hidden states {features}, this target of {layers} layers has 0 to {layers}")
    if kind == "eagle3" and layers in features and not settings.get("last_feature_normed"):
        raise ValueError(f"it reads the target's hidden state {layers} before the final norm, which transformers does "
                         "not give; take a head that reads earlier ones alone")
    for name in COUNTS[kind]:
        count, most, least = settings.get(name), most_layers if "layers" in name else math.inf, name != "markov_rank"
        if type(count) is not int or not least <= count <= most:
            raise ValueError(f"config.json has {name} {count!r}, which must count from {int(least)} "
                             f"{'on' if most == math.inf else f'to {most}, the number of tensors'}")
    mask, masked = settings.get("mask_token_id"), KINDS[kind] is BlockHead and not settings["learned_places"]
    if masked and not (type(mask) is int and 0 <= mask < target.vocab_size):
        raise ValueError(f"config.json has mask_token_id {mask!r}, which is none of the {target.vocab_size} tokens")


def _drafted(tensors: dict[str, Tensor], vocabulary: int) -> int | None:
    """How many tokens the head drafts, None for all; `tokens` takes the place of d2t and t2d."""
    offsets, _ = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        return None
    tokens = torch.arange(len(offsets)) + offsets
    if tokens.is_floating_point() or not (tokens.diff() > 0).all() or not 0 <= tokens[0] <= tokens[-1] < vocabulary:
        raise ValueError(f"its d2t names no tokens of the target's {vocabulary} in ascending order")
    if len(tokens) < vocabulary:
        tensors["tokens"] = tokens
    return len(tokens) if len(tokens) < vocabulary else None
