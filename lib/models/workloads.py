"""Prompts of a given length: of the shipped texts, or of a folder of text files, one after another.

Costs and acceptance change with the length of the text, and random tokens have neither the repetition nor the experts
of real ones.
"""

from pathlib import Path

import torch

from lib.models import dialogue, prompts


def of_length(tokenizer, length: int, first: int = 1, texts: dict[str, list[str]] | None = None) -> prompts.PromptSet:
    """`first` prompts of each kind with `length` tokens of text, and those of the chat template where there is one.

    texts: by kind, joined in their order; by default the shipped ones. A kind that is too short for all prompts has
    fewer. ValueError where no kind is long enough.
    """
    names, kinds, ids, longest = [], [], [], 0
    for kind, parts in (texts or shipped()).items():
        tokens = torch.tensor([token for part in parts for token in tokenizer(
            part + "\n\n", add_special_tokens=False, split_special_tokens=True)["input_ids"]], dtype=torch.long)
        longest = max(longest, len(tokens))
        for place, piece in enumerate(tokens.split(length)[:first]):
            if len(piece) == length:
                names.append(f"{kind}-{length}-{place}")
                kinds.append(kind)
                ids.append(_asked(piece, tokenizer))
    if not ids:
        raise ValueError(f"prompts of {length} tokens cannot be made: the longest kind of text has {longest} tokens; "
                         "give a smaller length, or a folder with more text")
    return prompts.PromptSet(tuple(names), tuple(kinds), tuple(ids))


def shipped() -> dict[str, list[str]]:
    """The shipped plain texts by kind."""
    texts: dict[str, list[str]] = {}
    for row in prompts.rows(prompts.FAMILY):
        texts.setdefault(row.kind, []).append(row.dialogue()[-1]["content"])
    return texts


def of_folder(folder: Path) -> dict[str, list[str]]:
    """The texts of a folder's files by their suffixes; see `prompts.texts_in`."""
    texts: dict[str, list[str]] = {}
    for path, text in prompts.texts_in(folder):
        texts.setdefault(path.suffix[1:].lower(), []).append(text)
    return texts


def _asked(tokens: torch.Tensor, tokenizer) -> torch.Tensor:
    """The tokens as a prompt, within the chat template where there is one."""
    if not dialogue.has_template(tokenizer):
        return torch.cat([dialogue.plain("", tokenizer), tokens])
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return dialogue.tokenise(dialogue.of_user(text), tokenizer)
