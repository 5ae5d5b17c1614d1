"""EAGLE's published layouts: a Llama config.json, and tensors under the names that `heads.eagle` gives its own.

The first generation has `fc`, `layers.0` without its first norm, and a copy of the target's `embed_tokens`. The third
has `fc`, `midlayer`, `norm`, `lm_head` over a draft vocabulary with its maps `d2t` and `t2d`, and sometimes
`embed_tokens`. In the form that vLLM's speculators write, `midlayer` is called `layers.0`, and the layer's sizes are
nested in `transformer_layer_config`.
"""

import re
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.eagle import Eagle3Head, EagleHead
from lib.drafters.heads.store import check_features, check_fits, fill, ready
from lib.drafters.published.files import check_counts, read

NESTED = "transformer_layer_config"
FEATURES = "eagle_aux_hidden_state_layer_ids"


def load(where, folder: Path, target) -> nn.Module:
    """An EAGLE-1 head for a target. ValueError lists what is missing, unexpected or of another shape."""
    given, tensors = read(where, folder)
    config = _config(where, given, tensors, kind="eagle", bias=given.get("bias", True))
    check_fits(where, config.hidden_size, config.vocab_size, target)
    return _filled(where, folder, EagleHead, config, tensors, target)


def load3(where, folder: Path, target) -> nn.Module:
    """An EAGLE-3 head for a target. ValueError as for `load`, for features that the target has not, and where `t2d` and
    `d2t` contradict one another.
    """
    given, tensors = read(where, folder)
    _check_parts(where, given)
    given = {**(given.get(NESTED) or {}), **given}
    tensors = _with_midlayer(where, tensors)
    config = _config(where, given, tensors, kind="eagle3", num_hidden_layers=1,  # some configs tell the target's
                     feature_layers=feature_layers(given, target.config),
                     draft_vocab_size=given.get("draft_vocab_size") or given.get("vocab_size"))
    check_fits(where, given.get("target_hidden_size") or config.hidden_size, config.vocab_size, target)
    check_features(where, config.feature_layers, target)
    if config.hidden_size != target.config.get_text_config().hidden_size:
        config.own_embedding = True  # the target's would not fit
    if config.draft_vocab_size == config.vocab_size:
        tensors.setdefault("d2t", torch.zeros(config.vocab_size, dtype=torch.long))
    head = _filled(where, folder, Eagle3Head, config, tensors, target)
    _check_map(where, tensors, config.vocab_size)
    return head


def feature_layers(given: dict, target_config) -> list[int]:
    """Which hidden states an EAGLE-3 head reads: those of its config, else the second, middle and third last.

    The default is that of EAGLE's own code: what enters layers 2, L/2 and L - 3. `eagle_config` names layers whose
    output is meant, one place further among the hidden states; the same key at the top level, as vLLM reads it, names
    those.
    """
    nested = given.get("eagle_config")
    if isinstance(nested, dict) and nested.get(FEATURES):
        return [layer + 1 for layer in nested[FEATURES]]
    layers = target_config.get_text_config().num_hidden_layers
    return given.get(FEATURES) or [2, layers // 2, layers - 3]


def _config(where, given: dict, tensors: dict[str, Tensor], **more) -> LlamaConfig:
    needed = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
    missing = [name for name in needed if given.get(name) is None]
    if missing:
        raise ValueError(f"config.json of {where} lacks {', '.join(missing)}; it is not that of an EAGLE head")
    more |= {"attention_bias": given.get("qkv_bias", given.get("attention_bias", False)),
             "own_embedding": "embed_tokens.weight" in tensors}
    said = {name: value for name, value in {**given, **more}.items() if value is not None}
    check_counts(where, said, *needed, "num_key_value_heads", "num_hidden_layers", "draft_vocab_size")
    try:
        config = LlamaConfig.from_dict({"num_hidden_layers": 1, **given, **more})
    except StrictDataclassError as error:
        raise _no_layer(where, error) from error
    if config.num_hidden_layers != 1:
        raise ValueError(f"{where} has {config.num_hidden_layers} layers; EAGLE heads of one layer are read here")
    return config


def _no_layer(where, error: Exception) -> ValueError:
    return ValueError(f"config.json of {where} is not that of a Llama layer ({' '.join(str(error).split())}); fetch "
                      "the folder again, or name another")


def _check_parts(where, given: dict) -> None:
    """ValueError where the layer's nested config is no object, or feature layers are no numbers."""
    nested, eagle = given.get(NESTED) or {}, given.get("eagle_config")
    if not isinstance(nested, dict):
        raise ValueError(f"config.json of {where} has {NESTED} {nested!r}, no object; fetch the folder again")
    for held in (nested, given, eagle if isinstance(eagle, dict) else {}):
        layers = held.get(FEATURES) or []
        if not (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
            raise ValueError(f"config.json of {where} has {FEATURES} {layers!r}, no list of whole numbers; fetch the "
                             "folder again")


def _with_midlayer(where, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the layer under its first name. ValueError where one is there under both."""
    ours = {name: re.sub(r"^layers\.0\.", "midlayer.", name) for name in tensors}
    twice = sorted(name for name, other in ours.items() if other != name and other in tensors)
    if twice:
        raise ValueError(f"{where} holds {', '.join(twice)} a second time as midlayer; keep one of the two layouts")
    return {ours[name]: tensor for name, tensor in tensors.items()}


def _filled(where, folder: Path, kind: type[nn.Module], config: LlamaConfig, tensors: dict[str, Tensor],
            target) -> nn.Module:
    try:
        head = kind(config)
    except (KeyError, TypeError) as error:  # an activation or a rotation that transformers does not know
        raise _no_layer(where, error) from error
    known = {name: tensor for name, tensor in tensors.items()
             if name != "t2d" and not name.endswith("rotary_emb.inv_freq")}  # what follows from the rest
    fill(where, head, known)
    return ready(head, folder, target)


def _check_map(where, tensors: dict[str, Tensor], vocabulary: int) -> None:
    """d2t int64[draft] and t2d bool[V] must name the same tokens, each once."""
    if "d2t" not in tensors:
        return
    tokens = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    known = torch.zeros(vocabulary, dtype=torch.bool)
    within = bool(((tokens >= 0) & (tokens < vocabulary)).all())
    if within:
        known[tokens] = True
    if not within or int(known.sum()) != len(tokens) or not torch.equal(known, tensors.get("t2d", known).bool()):
        raise ValueError(f"the draft vocabulary of {where} is no part of the target's {vocabulary} tokens, or its d2t "
                         "and t2d differ; fetch the folder again, or take the head of this target")
