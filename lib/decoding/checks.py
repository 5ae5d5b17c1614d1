"""What a call of `generate` must hold, and its prompts without their padding."""

from numbers import Integral
from typing import Iterable

import torch
from torch import Tensor

from lib.attention.switch import check_attention
from lib.verify.rules import RULES

ASKED = ("start", "propose", "commit", "select", "calls", "cache_bytes")  # of a drafter; some hold bytes once started


def unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; padding is where the mask is 0."""
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        raise ValueError(f"input_ids is {_kind(input_ids)}; give int64[B, T], one prompt a row")
    if attention_mask is not None and getattr(attention_mask, "shape", None) != input_ids.shape:
        raise ValueError(
            f"attention_mask is {_kind(attention_mask)} for input_ids {tuple(input_ids.shape)}; give one entry a token"
        )
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    return [ids[kept].cpu().long() for ids, kept in zip(input_ids, keep)]


def token_set(eos_token_id: int | Iterable[int] | Tensor | None) -> frozenset[int]:
    """The tokens that end a text; numbers below 0, which configurations have for none, end nothing."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    if eos_token_id is None:
        return frozenset()
    alone = isinstance(eos_token_id, str) or not isinstance(eos_token_id, Iterable)
    tokens = [eos_token_id] if alone else list(eos_token_id)
    if not all(isinstance(token, Integral) for token in tokens):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; give a token's number, or several")
    return frozenset(int(token) for token in tokens if token >= 0)


def check(target, drafter, prompts: list[Tensor], rule: str, temperature: float, limit: int, generator) -> None:
    """ValueError where the models, the prompts, the rule, the temperature or the limit cannot be decoded with."""
    missing = [name for name in ASKED if not (hasattr(drafter, name) or name in dir(drafter))]
    if missing:
        raise ValueError(
            f"drafter is a {type(drafter).__name__}, which has no {', '.join(missing)}; give one of lib.drafters: "
            "LanguageModelDrafter(model), or make(NAME)"
        )
    check_attention(target)
    if not isinstance(limit, Integral) or limit < 0:
        raise ValueError(f"max_new_tokens is {limit}; give 0 or more")
    vocabulary = target.config.get_text_config().vocab_size
    _check_prompts(prompts, vocabulary)
    if (getattr(drafter, "knows", None) or 0) > vocabulary:
        raise ValueError(
            f"the drafter knows {drafter.knows} tokens, the target {vocabulary}; if those beyond are padding, make the "
            f"drafter with vocabulary={vocabulary}, else take one of the target's family"
        )
    _check_rule(rule, temperature, generator)


def _kind(value) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _check_prompts(prompts: list[Tensor], vocabulary: int) -> None:
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
        strange = prompt[(prompt < 0) | (prompt >= vocabulary)].tolist()
        if strange:
            raise ValueError(
                f"prompt {row} has token {strange[0]}, the target knows 0 to {vocabulary - 1}; take the target's own "
                "tokenizer, and an attention_mask where numbers stand for padding"
            )


def _check_rule(rule: str, temperature: float, generator) -> None:
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}; choose one of {', '.join(RULES)}")
    if not temperature >= 0:
        raise ValueError(f"temperature is {temperature}; give 0 (greedy) or more")
    if (rule == "greedy") != (temperature == 0):
        raise ValueError(
            f"rule {rule!r} at temperature {temperature}: greedy goes with temperature 0, the others with more"
        )
    if temperature and generator is None:
        raise ValueError(
            f"temperature is {temperature} but generator is None; pass a torch.Generator, for a run to be repeatable"
        )
