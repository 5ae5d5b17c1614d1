"""The arguments of `generate`: checks, the prompts without padding, and the levels that a tree may have."""

import math
from numbers import Integral, Real
from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.attention.registration import check_attention, takes_chains
from lib.drafters.drafter import Drafter
from lib.trees.growth import Growth
from lib.trees.names import CHAIN, form_of
from lib.trees.tree import Tree
from lib.verify.rules import RULES

DEEPEST = 64  # levels that any draft may have
SHORT_CHAIN = "chain:4"


def unpadded(target, input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; the mask is 0 at padding.

    ValueError without a mask where some rows, not all, begin or end with the target's padding token; where the target
    names none, tokens that end its texts count as padding.
    """
    is_batch = isinstance(input_ids, Tensor) and input_ids.dim() == 2 and input_ids.numel()
    if not is_batch or input_ids.is_floating_point():
        raise ValueError(f"input_ids is {_kind(input_ids)}; give int64[B, T], one prompt of at least a token per row")
    if attention_mask is None:
        generation, config = getattr(target, "generation_config", None), getattr(target, "config", None)
        sources = (generation, "pad_token_id"), (config, "pad_token_id"), (generation, "eos_token_id")
        padding = next(filter(None, (token_set(getattr(source, name, None)) for source, name in sources)), frozenset())
        for verb, tokens in ("begins", input_ids[:, 0].tolist()), ("ends", input_ids[:, -1].tolist()):
            padded = [row for row, token in enumerate(tokens) if token in padding]
            if 0 < len(padded) < len(tokens):
                raise ValueError(f"row {padded[0]} of input_ids {verb} with token {tokens[padded[0]]}, the target's "
                                 "padding, and others do not; pass `attention_mask`; all ones if these are text")
        attention_mask = torch.ones_like(input_ids)
    if getattr(attention_mask, "shape", None) != input_ids.shape:
        raise ValueError(f"attention_mask is {_kind(attention_mask)}; give one entry for each token of input_ids")
    return [ids[mask].cpu().long() for ids, mask in zip(input_ids, attention_mask.bool())]


def token_set(eos_token_id: int | Iterable[int] | Tensor | None) -> frozenset[int]:
    """The tokens that end a text, without numbers below 0, by which configurations say that there is none."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    eos_token_id = -1 if eos_token_id is None else eos_token_id
    tokens = list(eos_token_id) if isinstance(eos_token_id, Iterable) else [eos_token_id]
    if not all(isinstance(token, Integral) for token in tokens):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; give the number of a token, or several")
    return frozenset(int(token) for token in tokens if token >= 0)


def check(target, drafter, prompts: list[Tensor], shape: Tree | Growth, rule: str, temperature: float, limit: int,
          generator) -> float:
    """The positions that text and tree may take: the shorter window of target and drafter; infinite without a window.

    ValueError for a target, drafter, prompt, shape, rule, temperature or limit that `generate` cannot use, and where
    the longest text does not fit one of the windows.
    """
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter is {_kind(drafter)}, not a Drafter; give one of lib.drafters.make('model', pair)")
    if not callable(target) or not hasattr(target, "config"):
        raise ValueError(f"target is {_kind(target)}; give a model, such as lib.forward.load_pair(NAME).target")
    check_attention(target)
    config = target.config.get_text_config()
    vocabulary = config.vocab_size
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
        if len(unknown := prompt[(prompt < 0) | (prompt >= vocabulary)]):
            raise ValueError(f"prompt {row} has token {unknown[0]}, the target knows 0 to {vocabulary - 1}; take the "
                             "target's own tokenizer, and an attention_mask that is 0 at padding")
    is_chain = isinstance(shape, Tree) and shape.is_path
    requirements = [
        (isinstance(limit, Integral) and limit >= 0, f"max_new_tokens is {limit!r}; give 0 or more"),
        ((drafter.knows or 0) <= vocabulary, f"the drafter knows {drafter.knows} tokens, the target {vocabulary}; take "
         "one of its family, by lib.drafters.make('model', pair) if the others are padding, which leaves them out"),
        (rule in RULES, f"rule is {rule!r}; choose one of {', '.join(RULES)}"),
        (isinstance(temperature, Real) and temperature >= 0, f"temperature is {temperature!r}; give 0 or more"),
        ((rule == "greedy") == (temperature == 0), f"rule {rule!r} at temperature {temperature}: greedy goes with "
         "temperature 0, the others with more"),
        (not temperature or isinstance(generator, torch.Generator), f"temperature is {temperature} but generator is "
         f"{generator!r}; pass a torch.Generator, so that a run can be repeated"),
        (is_chain or not takes_chains(config), f"shape is a tree of {shape.budget} nodes, but this target takes "
         f"chains: {config.model_type} has layers with a state of one text; give a chain, such as {SHORT_CHAIN!r}")]
    if reason := next((reason for is_met, reason in requirements if not is_met), ""):
        raise ValueError(reason)
    longest = max(map(len, prompts)) + max(0, limit - 1)  # the last token is written and not read
    windows = {"model": getattr(config, "max_position_embeddings", None), "drafter": drafter.window}
    for owner, window in windows.items():
        if reason := window_refusal(window, longest, owner):
            raise ValueError(reason)
    return min(filter(None, windows.values()), default=math.inf)


def window_refusal(window: int | None, longest: int, owner: str = "drafter") -> str:
    """Why a model with this window cannot read texts of up to `longest` tokens; empty where it can."""
    if not window or longest <= window:
        return ""
    return (f"prompt and new tokens need {longest} positions, the {owner}'s window has {window}; shorten the prompt or "
            f"max_new_tokens, or take a {owner} with a longer window")


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (str, Real)) else f"a {type(value).__name__}"


def checkable(target, names: Sequence[str]) -> list[str]:
    """The names of shapes and growth rules that a target can check: all; where it takes chains, the chains, or a short
    one if there is none.
    """
    if not takes_chains(target.config):
        return list(names)
    return [name for name in names if form_of(name) == CHAIN] or [SHORT_CHAIN][: len(names)]
