"""Heads from a folder or a hub id: those of this project, and Medusa's and EAGLE's as others publish them.

Medusa's tensors are "HEAD.BLOCK.linear.weight" and ".bias", and "HEAD.BLOCKS.weight": head and block count from 0;
after the blocks comes the head's own output layer, which heads of the layout's version "2" leave out, as they share the
target's. Repositories that hold a whole model put "medusa_head." before these names.

EAGLE's have a Llama config.json, and tensors under the names of `lib.drafters.heads.eagle`. The first generation has
`fc`, `layers.0` without its first norm, and a copy of the target's `embed_tokens`. The third has `fc`, `midlayer`,
`norm`, `lm_head` over a draft vocabulary with its maps `d2t` and `t2d`, and sometimes `embed_tokens`. In the form that
vLLM's speculators write, `midlayer` is called `layers.0`, and the layer's sizes are nested in
`transformer_layer_config`.
"""

import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads import store
from lib.drafters.heads.eagle import Eagle3Head, EagleHead
from lib.drafters.heads.marginals import MedusaHeads
from lib.drafters.heads.store import check_features, check_fits, filled, layer_config
from lib.models import checks
from lib.models.packed import pack

READ = ("config.json", "*.safetensors")
PREFIX = "medusa_head."
NESTED = "transformer_layer_config"
FEATURES = "eagle_aux_hidden_state_layer_ids"


def load(kind: str, where: str | Path, target) -> nn.Module:
    """A head of a kind for a target, with its dtype and on its device: one of this project's, or a published one of
    kind medusa, eagle or eagle3.

    where: a folder, or a hub id with "@REVISION" if wanted. ValueError says what is missing, unexpected or unreadable.
    """
    layouts = {"medusa": load_medusa, "eagle": load_eagle, "eagle3": load_eagle3}
    folder = folder_of(where)
    settings, tensors = store.read(where, folder)
    if "kind" in settings:
        head = store.load(kind, where, settings, tensors, target)
    elif kind in layouts:
        head = layouts[kind](where, settings, tensors, target)
    else:
        raise ValueError(f"config.json of {where} names no kind of head, and {kind!r} heads have no published layout; "
                         "name the folder of a head that this project trained")
    head.name_or_path = str(folder)
    return pack(head.to(device=target.device, dtype=target.dtype).eval())


def load_medusa(where, settings: dict, tensors: dict[str, Tensor], target) -> nn.Module:
    """Medusa heads for a target.

    Of config.json medusa_num_layers counts, and medusa_num_heads as the least number of heads: some published ones say
    2 and hold 5.
    """
    heads_alone = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    tensors = heads_alone or tensors
    check_counts(where, settings, "medusa_num_heads", "medusa_num_layers")
    heads = [int(match[1]) for name in tensors if (match := re.match(r"(\d+)\.\d+\.", name))]
    ours, layers = target.config.get_text_config(), settings.get("medusa_num_layers", 1)
    own_output = any(re.fullmatch(rf"\d+\.{layers}\.weight", name) for name in tensors)
    config = LlamaConfig(hidden_size=ours.hidden_size, num_attention_heads=1, vocab_size=ours.vocab_size, kind="medusa",
                         medusa_num_heads=max([settings.get("medusa_num_heads", 1), *(head + 1 for head in heads)]),
                         medusa_num_layers=layers, medusa_vocab_size=ours.vocab_size if own_output else None)
    if {"hidden_size", "vocab_size"} <= settings.keys():
        check_fits(where, settings["hidden_size"], settings["vocab_size"], target)
    return filled(where, MedusaHeads, config, tensors, lambda name: published_name(name, layers))


def published_name(name: str, layers: int) -> str:
    """What the published layout calls a tensor of `MedusaHeads`."""
    part, head, *rest = name.split(".")
    return ".".join([head, *rest] if part == "stacks" else [head, str(layers), *rest])


def load_eagle(where, settings: dict, tensors: dict[str, Tensor], target) -> nn.Module:
    """An EAGLE-1 head for a target."""
    config = _config(where, settings, tensors, kind="eagle", bias=settings.get("bias", True))
    check_fits(where, config.hidden_size, config.vocab_size, target)
    return filled(where, EagleHead, config, _weights(tensors))


def load_eagle3(where, settings: dict, tensors: dict[str, Tensor], target) -> nn.Module:
    """An EAGLE-3 head for a target. ValueError also for features that the target has not, and where `t2d` and `d2t`
    contradict one another.
    """
    _check_parts(where, settings)
    settings = {**(settings.get(NESTED) or {}), **settings}
    tensors = _with_midlayer(where, tensors)
    config = _config(where, settings, tensors, kind="eagle3", num_hidden_layers=1,  # some configs tell the target's
                     feature_layers=feature_layers(settings, target.config),
                     draft_vocab_size=settings.get("draft_vocab_size") or settings.get("vocab_size"))
    check_fits(where, settings.get("target_hidden_size") or config.hidden_size, config.vocab_size, target)
    check_features(where, config.feature_layers, target)
    if config.hidden_size != target.config.get_text_config().hidden_size:
        config.own_embedding = True  # the target's would not fit
    if config.draft_vocab_size == config.vocab_size:
        tensors.setdefault("d2t", torch.zeros(config.vocab_size, dtype=torch.long))
    head = filled(where, Eagle3Head, config, _weights(tensors))
    _check_map(where, tensors, config.vocab_size)
    return head


def feature_layers(settings: dict, target_config) -> list[int]:
    """Which hidden states an EAGLE-3 head reads: those of its config, else the second, middle and third last.

    The default is that of EAGLE's own code: the inputs of layers 2, L/2 and L - 3. `eagle_config` names layers whose
    output is meant, one place further among the hidden states; the same key at the top level, as vLLM reads it, names
    those.
    """
    nested = settings.get("eagle_config")
    if isinstance(nested, dict) and nested.get(FEATURES):
        return [layer + 1 for layer in nested[FEATURES]]
    layers = target_config.get_text_config().num_hidden_layers
    return settings.get(FEATURES) or [2, layers // 2, layers - 3]


def _config(where, settings: dict, tensors: dict[str, Tensor], **more) -> LlamaConfig:
    needed = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
    if missing := [name for name in needed if settings.get(name) is None]:
        raise ValueError(f"config.json of {where} lacks {', '.join(missing)}; it is not that of an EAGLE head")
    more |= {"attention_bias": settings.get("qkv_bias", settings.get("attention_bias", False)),
             "own_embedding": "embed_tokens.weight" in tensors}
    present = {name: value for name, value in {**settings, **more}.items() if value is not None}
    check_counts(where, present, *needed, "num_key_value_heads", "num_hidden_layers", "draft_vocab_size")
    config = layer_config(where, {"num_hidden_layers": 1, **settings, **more})
    if config.num_hidden_layers != 1:
        raise ValueError(f"{where} has {config.num_hidden_layers} layers; EAGLE heads of one layer are read here")
    return config


def _check_parts(where, settings: dict) -> None:
    """ValueError where the layer's nested config is no object, or feature layers are no numbers."""
    nested, eagle = settings.get(NESTED) or {}, settings.get("eagle_config")
    if not isinstance(nested, dict):
        raise ValueError(f"config.json of {where} has {NESTED} {nested!r}, no object; fetch the folder again")
    for held in (nested, settings, eagle if isinstance(eagle, dict) else {}):
        layers = held.get(FEATURES) or []
        if not (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
            raise ValueError(f"config.json of {where} has {FEATURES} {layers!r}, no list of whole numbers; fetch the "
                             "folder again")


def _with_midlayer(where, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the layer under its first name. ValueError where one is there under both."""
    ours = {name: re.sub(r"^layers\.0\.", "midlayer.", name) for name in tensors}
    if twice := sorted(name for name, other in ours.items() if other != name and other in tensors):
        raise ValueError(f"{where} holds {', '.join(twice)} a second time as midlayer; keep one of the two layouts")
    return {ours[name]: tensor for name, tensor in tensors.items()}


def _weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without those that follow from the others."""
    return {name: tensor for name, tensor in tensors.items()
            if name != "t2d" and not name.endswith("rotary_emb.inv_freq")}


def _check_map(where, tensors: dict[str, Tensor], vocabulary: int) -> None:
    """d2t int64[draft] and t2d bool[V] must name the same tokens, each once."""
    if "d2t" not in tensors:
        return
    tokens = (torch.arange(len(tensors["d2t"])) + tensors["d2t"]).sort().values
    known = tensors["t2d"].nonzero().flatten() if "t2d" in tensors else tokens.unique()
    if not torch.equal(tokens, known) or tokens[0] < 0 or tokens[-1] >= vocabulary:
        raise ValueError(f"the draft vocabulary of {where} is no part of the target's {vocabulary} tokens, or its d2t "
                         "and t2d differ; fetch the folder again, or take the head of this target")


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
        refused = checks.meaning(error)
        if not refused:
            raise
        raise ValueError(f"{where} {refused}") from error


def check_counts(where, settings: dict, *names: str) -> None:
    """ValueError where config.json has one of these and it is no whole number from 1 on."""
    held = {name: settings[name] for name in names if name in settings}
    wrong = {name: value for name, value in held.items() if type(value) is not int or value < 1}
    if wrong:
        listed = ", ".join(f"{name} {value!r}" for name, value in wrong.items())
        raise ValueError(f"config.json of {where} has {listed}, which must count from 1 on; fetch the folder again")
