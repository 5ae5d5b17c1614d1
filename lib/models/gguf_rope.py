"""How a GGUF file scales its rotary embedding, in the words of transformers' configuration."""

from math import log, pi
from pathlib import Path
from typing import Mapping

import numpy as np

from lib.models.checks import PairError

FACTORS = "rope_freqs"
OTHER_FACTORS = ("rope_factors_long", "rope_factors_short")  # LongRoPE's
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192  # Llama 3's bounds of low and high frequencies, and its window before scaling
ALIKE = 1e-5  # relative
YARN_KEYS = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def is_factors(name: str) -> bool:
    """Whether a tensor holds factors of the rotary embedding's wavelengths."""
    return name.removesuffix(".weight").rpartition(".")[2] in (FACTORS, *OTHER_FACTORS)


def take_scaling(path: Path, metadata: Mapping[str, object], factors: Mapping[str, np.ndarray], config) -> None:
    """Writes a file's base and scaling of the rotary embedding into the configuration that transformers read from it.

    factors: float32 [head_dim / 2] by the names of tensors with `is_factors`. PairError for scaling that is not read.
    """
    prefix = f"{metadata.get('general.architecture')}.rope."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    scaling, rotary = _scaling(path, given, config), getattr(config, "rope_parameters", None) or {}
    rotary = rotary.get("full_attention", rotary)
    if "rope_theta" in rotary:
        rotary["rope_theta"] = given.get("freq_base", rotary["rope_theta"])
    for name, values in factors.items():
        if not (values == 1).all():
            if scaling or "rope_theta" not in rotary or not (scaling := _llama3(name, values, rotary["rope_theta"])):
                raise _refused(path, f"tensor {name}, whose factors are not Llama 3's")
    if scaling and "rope_theta" not in rotary:
        raise _refused(path, f"{prefix}scaling, which a {config.model_type} of transformers has not")
    rotary.update(scaling)


def _scaling(path: Path, given: Mapping[str, object], config) -> dict[str, object]:
    """Linear scaling, or YaRN (Peng et al. 2023, eq. 17 to 22); empty without."""
    said = {key.removeprefix("scaling."): value for key, value in given.items() if key.startswith("scaling.")}
    kind, factor = said.pop("type", "linear"), said.pop("factor", 0.0) or given.get("scale_linear", 0.0) or 1.0
    window, attention = said.pop("original_context_length", None), said.pop("attn_factor", 1.0)
    said.pop("finetuned", None)
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {"original_max_position_embeddings": window or config.max_position_embeddings,
                    "attention_factor": attention * (1 + 0.1 * log(max(factor, 1.0)))}
        scaling |= {word: said.pop(key) for key, word in YARN_KEYS.items() if key in said}
        attention = 1.0
    if kind not in ("none", "linear", "yarn"):
        raise _refused(path, f"rope.scaling.type {kind!r:.40}")
    left = said | ({"attn_factor": attention} if attention != 1 else {})
    if left and kind != "none":
        raise _refused(path, ", ".join(f"rope.scaling.{key} {value!r:.40}" for key, value in left.items()))
    return {} if kind == "none" or kind == "linear" and factor == 1 else scaling


def _llama3(name: str, factors: np.ndarray, base: float) -> dict[str, object]:
    """Llama 3's parameters where recomputing them gives these factors; otherwise empty.

    Grattafiori et al. 2024: wavelengths above ORIGINAL / LOW are multiplied by one factor, those below ORIGINAL / HIGH
    by 1, and frequencies between them are interpolated.
    """
    turns = ORIGINAL / (2 * pi) * base ** -(np.arange(len(factors)) / len(factors))
    smooth, factor = np.clip((turns - LOW) / (HIGH - LOW), 0, 1), float(factors.max())
    if FACTORS not in name or not np.allclose(factors * ((1 - smooth) / factor + smooth), 1, rtol=0, atol=ALIKE):
        return {}
    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
            "original_max_position_embeddings": ORIGINAL}


def _refused(path: Path, what: str) -> PairError:
    return PairError(f"{path} scales its rotary embedding by {what}, which is not read here; take the model as "
                     "safetensors")
