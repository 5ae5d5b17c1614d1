"""The arguments of `generate`: checks, the prompts without padding, and the levels that a tree may have."""

import math
from numbers import Integral, Real
from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.attention.registration import check_attention, takes_chains
from lib.drafters.drafter import Drafter, levels_of
from lib.trees.growth import Growth
from lib.trees.names import CHAIN, form_of
from lib.trees.tree import Tree
from lib.verify.rules import RULES

DEEPEST = 64  # levels that any draft may have
SHORT_CHAIN = "chain:4"


def unpadded(target, input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; the mask is 0 at padding. ValueError where there is
    none and rows seem to be padded.
    """
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        raise ValueError(f"input_ids is {_kind(input_ids)}; give int64[B, T], one prompt per row")
    if attention_mask is None:
        _refuse_padding(target, input_ids)
        return [ids.cpu().long() for ids in input_ids]
    if getattr(attention_mask, "shape", None) != input_ids.shape:
        raise ValueError(f"attention_mask is {_kind(attention_mask)} for input_ids {tuple(input_ids.shape)}; give one "
                         "entry per token")
    return [ids[mask].cpu().long() for ids, mask in zip(input_ids, attention_mask.bool())]


def _refuse_padding(target, input_ids: Tensor) -> None:
    """ValueError where some rows, not all, begin or end with the target's padding token.

    Where the target names none, tokens that end its texts count as padding.
    """
    generation, config = getattr(target, "generation_config", None), getattr(target, "config", None)
    sources = (generation, "pad_token_id"), (config, "pad_token_id"), (generation, "eos_token_id")
    candidates = (token_set(getattr(source, name, None)) for source, name in sources)
    padding = next(filter(None, candidates), frozenset())
    for verb, column in (("begins", 0), ("ends", -1)) if input_ids.numel() else ():
        padded = [row for row, token in enumerate(input_ids[:, column].tolist()) if token in padding]
        if 0 < len(padded) < len(input_ids):
            token = int(input_ids[padded[0], column])
            raise ValueError(f"row {padded[0]} of input_ids {verb} with token {token}, the target's padding, and "
                             "others do not; pass `attention_mask`; all ones if these are text")


def token_set(eos_token_id: int | Iterable[int] | Tensor | None) -> frozenset[int]:
    """The tokens that end a text, without numbers below 0, by which configurations say that there is none."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    if eos_token_id is None:
        return frozenset()
    single = isinstance(eos_token_id, str) or not isinstance(eos_token_id, Iterable)
    tokens = [eos_token_id] if single else list(eos_token_id)
    if not all(isinstance(token, Integral) for token in tokens):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; give the number of a token, or several")
    return frozenset(int(token) for token in tokens if token >= 0)


def check(target, drafter, prompts: list[Tensor], shape: Tree | Growth, rule: str, temperature: float, limit: int,
          generator) -> None:
    """ValueError for a target, drafter, prompt, shape, rule, temperature or limit that `generate` cannot use."""
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter is {_kind(drafter)}, not a Drafter; give one that lib.drafters.make(NAME, pair) "
                         "makes, such as make('model', pair)")
    if not callable(target) or not hasattr(target, "config"):
        raise ValueError(f"target is {_kind(target)}; give a model, such as lib.forward.load_pair(NAME).target")
    check_attention(target)
    if not isinstance(limit, Integral) or limit < 0:
        raise ValueError(f"max_new_tokens is {limit!r}; give 0 or more")
    vocabulary = target.config.get_text_config().vocab_size
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
        unknown = prompt[(prompt < 0) | (prompt >= vocabulary)].tolist()
        if unknown:
            raise ValueError(f"prompt {row} has token {unknown[0]}, the target knows 0 to {vocabulary - 1}; take the "
                             "target's own tokenizer, and an attention_mask that is 0 at padding")
    if (drafter.knows or 0) > vocabulary:
        raise ValueError(
            f"the drafter knows {drafter.knows} tokens, the target {vocabulary}; if the others are padding, make it by "
            "lib.drafters.make('model', pair), which leaves them out, else take one of the target's family")
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}; choose one of {', '.join(RULES)}")
    if not isinstance(temperature, Real) or not temperature >= 0:
        raise ValueError(f"temperature is {temperature!r}; give 0 (greedy) or more")
    if (rule == "greedy") != (temperature == 0):
        raise ValueError(
            f"rule {rule!r} at temperature {temperature}: greedy goes with temperature 0, the others with more")
    if temperature and not isinstance(generator, torch.Generator):
        raise ValueError(f"temperature is {temperature} but generator is {generator!r}; pass a torch.Generator, so "
                         "that a run can be repeated")
    if takes_chains(target.config) and not (isinstance(shape, Tree) and shape.is_path):
        raise ValueError(f"shape is a tree of {shape.budget} nodes, but this target takes chains: "
                         f"{target.config.model_type} has layers with a state of one text; give a chain, such as "
                         "'chain:4'")


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (str, Real)) else f"a {type(value).__name__}"


def checkable(target, names: Sequence[str]) -> list[str]:
    """The shapes and growth rules of these names that a target can check: all, or where it takes chains those that are
    chains, and a short one if there is none.
    """
    if not takes_chains(target.config):
        return list(names)
    return [name for name in names if form_of(name) == CHAIN] or ([SHORT_CHAIN] if names else [])


def positions(target, drafter: Drafter, longest: int) -> float:
    """The positions that text and tree may take: the shorter window of target and drafter; infinite without a window.

    longest: tokens of the longest text that is read. ValueError where it does not fit one of the windows.
    """
    window = getattr(target.config.get_text_config(), "max_position_embeddings", None) or math.inf
    if longest > window:
        raise ValueError(f"prompt and new tokens need {longest} positions, the model's window has {window}; shorten "
                         "the prompt or max_new_tokens")
    if reason := window_refusal(drafter.window, longest):
        raise ValueError(reason)
    return min(window, drafter.window or math.inf)


def window_refusal(window: int | None, longest: int) -> str:
    """Why a drafter with this window cannot draft in texts of up to `longest` tokens; empty where it can."""
    if not window or longest <= window:
        return ""
    return (f"prompt and new tokens need {longest} positions, the drafter's window has {window}; shorten the "
            "prompt or max_new_tokens, or take a drafter with a longer window")


def first_levels(shape: Tree | Growth, most: float) -> Tree | Growth:
    """The shape, or where it is deeper its first `most` levels."""
    if shape.max_depth <= most:
        return shape
    return levels_of(shape, most)[0] if isinstance(shape, Tree) else shape.at_most(most)
