"""What a trace is asked for, checked before anything is computed: prompts and their names, and the models."""

from typing import Mapping, Sequence

import torch
from torch import Tensor

from lib.attention.switch import check_attention


def check_prompts(target, prompts: Sequence[Tensor], names: Sequence[str], kinds: Sequence[str]) -> None:
    """ValueError where there is no prompt, one that the target cannot read, or not a name and a kind for each."""
    if not len(prompts):
        raise ValueError("there is no prompt: give at least one")
    if len(names) != len(prompts) or len(kinds) != len(prompts):
        raise ValueError(f"{len(names)} names and {len(kinds)} kinds for {len(prompts)} prompts: give each one of both")
    known = target.config.get_text_config().vocab_size
    for row, prompt in enumerate(prompts):
        if prompt.dim() != 1 or not len(prompt):
            raise ValueError(f"prompt {row} has shape {tuple(prompt.shape)}: give int64[T], at least one token")
        strange = prompt[(prompt < 0) | (prompt >= known)].tolist()
        if strange:
            raise ValueError(f"prompt {row} has token {strange[0]}, the target knows 0 to {known - 1}: take the "
                             "target's own tokenizer")


def check_recording(models: Mapping[str, object], prompts: Sequence[Tensor], new_tokens: int, temperature: float,
                    generator: torch.Generator | None, rows: int) -> None:
    """ValueError where the continuations asked for cannot be written: models by name, the target among them."""
    if new_tokens < 0 or rows < 1:
        raise ValueError(f"max_new_tokens is {new_tokens} and rows {rows}: give at least 0, and 1 row a batch")
    if temperature and generator is None:
        raise ValueError(f"temperature is {temperature} but generator is None: pass a torch.Generator, for a trace to "
                         "be repeatable")
    needed = max(map(len, prompts)) + new_tokens  # the last token is said and not read
    for name, model in models.items():
        window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if window and needed > window:
            raise ValueError(f"the longest prompt and its continuation need {needed} positions, the window of {name} "
                             f"has {window}: shorten the prompt or max_new_tokens")


def language_models(drafters: Mapping[str, object]) -> dict[str, object]:
    """Of the drafters of a trace those that are models themselves, and do not read ahead."""
    return {name: drafter for name, drafter in drafters.items() if not hasattr(drafter, "read_ahead")}


def check_models(target, drafters: Mapping[str, object]) -> None:
    """ValueError for models without tree attention, for a drafter that does not know all of the target's tokens, and
    for drafters that are no models and do not read ahead: a trace does not decide what they propose.
    """
    models = language_models(drafters)
    for name, drafter in models.items():
        if not callable(drafter):
            raise ValueError(
                f"drafter {name!r} is a {type(drafter).__name__}, of which no trace can be recorded; give a language "
                "model itself, such as pair.draft_model, or a drafter that has read_ahead"
            )
    for model in (target, *models.values()):
        check_attention(model)
    known = {name: model.config.get_text_config().vocab_size for name, model in {"": target, **models}.items()}
    for name in models:
        if known[name] < known[""]:
            raise ValueError(f"drafter {name!r} knows {known[name]} tokens, the target {known['']}: load both with "
                             "lib.models.load_pair, which cuts the target's padding")
