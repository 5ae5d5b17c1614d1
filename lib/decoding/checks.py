"""What a call of `generate` must hold, and its prompts without their padding."""

from typing import Iterable

import torch
from torch import Tensor


def unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; padding is where the mask is 0."""
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids is {tuple(input_ids.shape)}; give int64[B, T], one prompt a row")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask is {tuple(attention_mask.shape)} for input_ids {tuple(input_ids.shape)}; give one entry "
            "a token"
        )
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    return [ids[kept].cpu() for ids, kept in zip(input_ids, keep)]


def token_set(eos_token_id: int | Iterable[int] | None) -> frozenset[int]:
    """The tokens that end a text."""
    if eos_token_id is None:
        return frozenset()
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else map(int, eos_token_id))


def check(target, prompts: list[Tensor], shape, rule: str, temperature: float, limit: int, generator) -> None:
    """ValueError where the prompts, the rule, the temperature or the lengths cannot be decoded with."""
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
    if limit < 0:
        raise ValueError(f"max_new_tokens is {limit}; give 0 or more")
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; give 0 (greedy) or more")
    if (rule == "greedy") != (temperature == 0):
        raise ValueError(
            f"rule {rule!r} at temperature {temperature}: greedy goes with temperature 0, the others with more"
        )
    if temperature and generator is None:
        raise ValueError(
            f"temperature is {temperature} but generator is None; pass a torch.Generator, for a run to be repeatable"
        )
    window = getattr(target.config, "max_position_embeddings", None)
    needed = max(map(len, prompts), default=0) + limit + getattr(shape, "max_depth", 0)
    if window and needed > window:
        raise ValueError(
            f"prompt, new tokens and tree depth need {needed} positions, the model's window has {window}; "
            "shorten the prompt, max_new_tokens or the tree"
        )
