"""What a call of `generate` must hold, and its prompts without their padding."""

from numbers import Integral
from typing import Iterable

import torch
from torch import Tensor

from lib.attention_switch import check_attention
from lib.verify import RULES

ASKED = ("start", "propose", "commit", "select")  # of a drafter


def unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; padding is where the mask is 0."""
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        found = type(input_ids).__name__
        if isinstance(input_ids, Tensor):
            found = f"{input_ids.dtype} {tuple(input_ids.shape)}"
        raise ValueError(f"input_ids is {found}; give int64[B, T], one prompt a row")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask is {tuple(attention_mask.shape)} for input_ids {tuple(input_ids.shape)}; give one entry "
            "a token"
        )
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    return [ids[kept].cpu().long() for ids, kept in zip(input_ids, keep)]


def token_set(eos_token_id: int | Iterable[int] | Tensor | None) -> frozenset[int]:
    """The tokens that end a text; numbers below 0, which configurations have for none, end nothing."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    several = () if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, Integral) else eos_token_id
    if isinstance(several, str) or not all(isinstance(token, Integral) for token in several):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; give a token's number, or several")
    return frozenset(int(token) for token in several if token >= 0)


def check(target, drafter, prompts: list[Tensor], shape, rule: str, temperature: float, limit: int, generator) -> None:
    """ValueError where the models, the prompts, the rule, the temperature or the lengths cannot be decoded with."""
    missing = [name for name in ASKED if not hasattr(drafter, name)]
    if missing:
        raise ValueError(
            f"drafter is a {type(drafter).__name__}, which has no {', '.join(missing)}; give one of lib.drafters: "
            "LanguageModelDrafter(model), or make(NAME)"
        )
    check_attention(target)
    if not isinstance(limit, Integral) or limit < 0:
        raise ValueError(f"max_new_tokens is {limit}; give 0 or more")
    _check_prompts(prompts, target.config.get_text_config().vocab_size)
    _check_rule(rule, temperature, generator)
    rounds = limit - 1 + getattr(shape, "max_depth", 0) if limit > 1 else 0  # the first token takes a prefill alone
    needed = max(map(len, prompts), default=0) + rounds
    ours = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    for whose, window in (("model", ours), ("drafter", getattr(drafter, "window", None))):
        if window and needed > window:
            raise ValueError(
                f"prompt, new tokens and tree depth need {needed} positions, the {whose}'s window has {window}; "
                "shorten the prompt, max_new_tokens or the tree"
            )


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
