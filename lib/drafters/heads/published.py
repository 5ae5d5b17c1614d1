"""Heads from a folder or a hub id: those of this project, and others as their authors publish them.

Medusa's tensors are "HEAD.BLOCK.linear.weight" and ".bias", and "HEAD.BLOCKS.weight": head and block count from 0;
after the blocks comes the head's own output layer, which heads of the layout's version "2" leave out, as they share the
target's. Repositories that hold a whole model put "medusa_head." before these names.

EAGLE-3's have a Llama config.json; tensors `fc`, `midlayer`, `norm`, `lm_head` over a draft vocabulary with its maps `d2t`
and `t2d`, and sometimes `embed_tokens`. EAGLE-3.1 adds `norm_output` to its config.json and `fc_norm.0`, `fc_norm.1` and
so on to its tensors, or `input_norm`. In the form that vLLM's speculators write, `midlayer` is called `layers.0`, and the
layer's sizes are nested in `transformer_layer_config`; some makers put "model." before all but `lm_head` and the maps.

DFlash's have a Qwen3 config.json with `block_size` and `dflash_config`: target_layer_ids, whose outputs they read, and
mask_token_id; tensors `fc`, `hidden_norm`, `layers.N` and `norm`. DSpark's (DeepSpec) name layers and mask at the top
level, and add `markov_head.markov_w1` and `_w2`. Speculators nest the layer's sizes, name the states that they read in
aux_hidden_state_layer_ids, counted one further, and may have `lm_head` over a draft vocabulary.
"""

import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.layers import embed
from lib.drafters.heads.marginals import BlockHead, MedusaHeads
from lib.drafters.heads.store import AGAIN, HeadFiles
from lib.forward.packed import pack
from lib.models import checks

READ = ("config.json", "*.safetensors")
PREFIX = "medusa_head."
NESTED = "transformer_layer_config"
FEATURES = "eagle_aux_hidden_state_layer_ids"
VARIANTS = ("causal_head", "is_causal", "draft_shift", "input_embedding_scale", "output_multiplier", "sliding_window",
            "final_logit_softcapping", "conv_kernel_size", "selector_rank")  # settings of block heads that are not read
FLAGS = ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc")  # of EAGLE-3


def load(kind: str, where: str | Path, target) -> nn.Module:
    """A head of a kind for a target, with its dtype and on its device: one of this project's, or a published one.

    where: a folder, or a hub id with "@REVISION" if wanted. ValueError says what is missing, unexpected or unreadable.
    """
    layouts = {"medusa": load_medusa, "eagle3": load_eagle3, "dflash": load_dflash, "dspark": load_dspark}
    folder = folder_of(where)
    files = HeadFiles(where, folder, target)
    try:
        head = files.saved(kind) if "kind" in files.settings else layouts[kind](files)
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        raise files.wrong(f"holds values that make no head ({type(error).__name__}: {checks.first_line(error)})"
                          ) from error
    head.name_or_path = str(folder)
    head = head.to(device=target.device, dtype=target.dtype).eval()
    if isinstance(head, BlockHead) and head.place_embeddings is None:
        mask = torch.tensor(head.config.mask_token_id, device=target.device)
        head.mask_embedding = embed(head, target, mask).detach()
    return pack(head)


def load_medusa(files: HeadFiles) -> nn.Module:
    """Medusa heads.

    Of config.json medusa_num_layers counts, and medusa_num_heads as the least number of heads: some published ones say
    2 and hold 5.
    """
    settings, tensors = files.settings, files.tensors
    heads_alone = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    tensors = heads_alone or tensors
    files.check_counts(settings, "medusa_num_heads", "medusa_num_layers")
    heads = [int(match[1]) for name in tensors if (match := re.match(r"(\d+)\.\d+\.", name))]
    ours, layers = files.target.config.get_text_config(), settings.get("medusa_num_layers", 1)
    own_output = any(re.fullmatch(rf"\d+\.{layers}\.weight", name) for name in tensors)
    config = LlamaConfig(hidden_size=ours.hidden_size, num_attention_heads=1, vocab_size=ours.vocab_size, kind="medusa",
                         medusa_num_heads=max([settings.get("medusa_num_heads", 1), *(head + 1 for head in heads)]),
                         medusa_num_layers=layers, medusa_vocab_size=ours.vocab_size if own_output else None)
    if {"hidden_size", "vocab_size"} <= settings.keys():
        files.check_fits(settings["hidden_size"], settings["vocab_size"])

    def published_name(name: str) -> str:
        part, head, *rest = name.split(".")
        return ".".join([head, *rest] if part == "stacks" else [head, str(layers), *rest])

    return files.head(MedusaHeads, config, tensors, published_name)


def load_eagle3(files: HeadFiles) -> nn.Module:
    """An EAGLE-3 head. ValueError also for features that the target has not or transformers does not give, and where
    `t2d` and `d2t` contradict one another.
    """
    settings, tensors = files.settings, files.tensors
    if wrong := [name for name in FLAGS if type(settings.get(name, False)) is not bool]:
        raise files.wrong(f"has {wrong[0]} {settings[wrong[0]]!r}, which must be true or false")
    ours = {name: re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model.")) for name in tensors}
    names = list(ours.values())
    if twice := sorted(name for name, other in ours.items() if other != name and names.count(other) > 1):
        raise ValueError(f"{files.where} holds {', '.join(twice)} a second time as midlayer; keep one of the two "
                         "layouts")
    settings = {**(settings.get(NESTED) or {}), **settings}
    tensors = {ours[name]: tensor for name, tensor in tensors.items()}
    norms = {"fc_norm": "fc_norm.0.weight" in tensors, "norm_before_fc": "input_norm.weight" in tensors}
    config = _sizes(files, norms | settings, tensors, kind="eagle3", num_hidden_layers=1,  # some tell the target's
                    feature_layers=feature_layers(settings, files.target.config),
                    own_output="lm_head.weight" in tensors)
    files.check_fits(settings.get("target_hidden_size") or config.hidden_size, config.vocab_size, config.feature_layers)
    if (last := files.target.config.get_text_config().num_hidden_layers) in config.feature_layers:
        raise ValueError(f"{files.where} reads the target's hidden state {last} before the final norm, which "
                         "transformers does not give; take a head that reads earlier ones alone")
    if config.hidden_size != files.target.config.get_text_config().hidden_size:
        config.own_embedding = True  # the target's would not fit
    return files.head(Eagle3Head, config, _drafting(files, config, tensors))


def load_dflash(files: HeadFiles) -> BlockHead:
    """A DFlash head. ValueError also for layers or a mask token that the target has not."""
    inner = files.settings.get("dflash_config") or {}
    more = {name: inner[name] for name in ("mask_token_id", "block_size") if name in inner}
    return _load_block(files, files.tensors, inner, more | {"kind": "dflash", "shifted": False})


def load_dspark(files: HeadFiles) -> BlockHead:
    """A DSpark head as DeepSpec writes it, without its confidence. ValueError also for another sequential part than a
    low-rank bias, and for the form of other makers, whose places predict other tokens.
    """
    settings = files.settings
    if "speculators_model_type" in settings:
        raise ValueError(f"{files.where} is a DSpark head in the form of speculators, which is not read here; give one "
                         "as DeepSpec writes it")
    if (made := settings.get("markov_head_type", "vanilla")) != "vanilla":
        raise files.wrong(f"has markov_head_type {made!r}", "heads with 'vanilla' are read here")
    files.check_counts(settings, "markov_rank")
    if "markov_rank" not in settings:
        raise files.wrong("names no markov_rank, which a DSpark head has", f"{AGAIN}, or load a DFlash head as 'dflash'")
    renamed = {name.replace("markov_head.markov_w1.", "markov.embed.").replace("markov_head.markov_w2.", "markov.head."):
               tensor for name, tensor in files.tensors.items() if not name.startswith("confidence_head")}
    return _load_block(files, renamed, settings, {"kind": "dspark", "shifted": True, "markov_of_all": True})


def _load_block(files: HeadFiles, tensors: dict[str, Tensor], inner: dict, more: dict) -> BlockHead:
    """inner: the settings that name the layers of the target whose outputs are read; where they do not, the
    speculators' list of hidden states stands.
    """
    settings = {**(files.settings.get(NESTED) or {}), **files.settings}
    if variant := [name for name in VARIANTS if inner.get(name) or settings.get(name)]:
        raise files.wrong(f"has {variant[0]}, which is not read here", "take a DFlash or DSpark head without it")
    layers = inner.get("target_layer_ids")
    states = settings.get("aux_hidden_state_layer_ids") if layers is None else [layer + 1 for layer in layers]
    if not states:
        raise files.wrong("names no layers of the target", "it is not that of a DFlash or DSpark head")
    config = _sizes(files, settings, tensors, qk_norm=True, own_output="lm_head.weight" in tensors,
                    feature_layers=states, **more)
    files.check_counts({"block_size": getattr(config, "block_size", None)}, "block_size")
    files.check_fits(config.hidden_size, config.vocab_size, config.feature_layers)
    mask = getattr(config, "mask_token_id", None)
    if type(mask) is not int or not 0 <= mask < config.vocab_size:
        raise files.wrong(f"has mask_token_id {mask!r}, which is none of the {config.vocab_size} tokens")
    tensors = {re.sub(r"^hidden_norm\.", "feature_norm.", name): tensor
               for name, tensor in _drafting(files, config, tensors).items()}
    return files.head(BlockHead, config, tensors)


def feature_layers(settings: dict, target_config) -> list[int]:
    """Which hidden states an EAGLE-3 head reads: those of its config, at the top level or in `eagle_config`, else the
    second, middle and third last.

    They are counted as vLLM 0.32 counts them, from the embeddings on: n is the input of layer n. SGLang takes a list in
    `eagle_config` that begins with 1 for layers whose outputs are meant. The default is that of EAGLE's own code.
    """
    nested, layers = settings.get("eagle_config"), target_config.get_text_config().num_hidden_layers
    inner = nested.get(FEATURES) if isinstance(nested, dict) else None
    return settings.get(FEATURES) or inner or [2, layers // 2, layers - 3]


def _sizes(files: HeadFiles, settings: dict, tensors: dict[str, Tensor], **more) -> LlamaConfig:
    """The configuration of a head's layers."""
    needed = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
    if missing := [name for name in needed if settings.get(name) is None]:
        raise files.wrong(f"lacks {', '.join(missing)}", "it is not that of such a head")
    more |= {"attention_bias": settings.get("qkv_bias", settings.get("attention_bias", False)),
             "own_embedding": "embed_tokens.weight" in tensors}
    present = {name: value for name, value in {**settings, **more}.items() if value is not None}
    files.check_counts(present, *needed, "num_key_value_heads", "num_hidden_layers", "draft_vocab_size")
    return files.config({"num_hidden_layers": 1, **settings, **more})


def _drafting(files: HeadFiles, config: LlamaConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with `tokens` in place of d2t int64[K] (token = index + d2t[index]) and t2d bool[V], and the rows of
    the output layer in their order. ValueError where the two maps name different tokens.
    """
    offsets, known = tensors.get("d2t"), tensors.get("t2d")
    tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    if offsets is not None and offsets.is_floating_point():
        raise ValueError(f"the tensors of {files.where} are not those of its config.json (of another kind of number: "
                         f"d2t {offsets.dtype} for torch.int64); {AGAIN}")
    size = getattr(config, "draft_vocab_size", None) or (config.vocab_size if offsets is None else len(offsets))
    if size == config.vocab_size and (offsets is None or not offsets.any()):
        config.draft_vocab_size = None
        return tensors
    config.draft_vocab_size = size
    if offsets is None or "lm_head.weight" not in tensors:
        raise ValueError(f"{files.where} drafts {size} of {config.vocab_size} tokens, but has no d2t or no lm_head; "
                         f"{AGAIN}")
    tokens, order = (torch.arange(len(offsets)) + offsets.long()).sort()
    if known is not None and not torch.equal(known.nonzero().flatten(), tokens):
        raise ValueError(f"d2t and t2d of {files.where} name different tokens; {AGAIN}")
    ordered = {name: tensors[name][order] for name in ("lm_head.weight", "markov.head.weight") if name in tensors}
    return {**tensors, **ordered, "tokens": tokens}


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
