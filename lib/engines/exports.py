"""Weights as engines read them: a folder in transformers' layout, whatever a name's source is.

Weights keep the values that this project's own loop decodes with, so that texts and counts can be compared: those of a
GGUF file are dequantised once (`gguf.converted`).
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lib.drafters.registry import folder_of
from lib.engines import head_export
from lib.engines.environments import HOME
from lib.engines.methods import Setting
from lib.models import gguf

WEIGHTS = HOME / "weights"  # what is made for engines; safe to delete
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def folder(model, target=None) -> Path:
    """The folder of a model with its tokenizer; model, target: as `load_pair` gives them.

    target: of a draft model, whose tokenizer stands in where its folder has none. ValueError for a model that is in no
    folder or GGUF file on this machine.
    """
    if file := getattr(model, "gguf_file", ""):
        return gguf.converted(Path(file))
    own = Path(model.name_or_path)
    if not own.is_dir():
        raise ValueError(f"{model.name_or_path!r} is not a folder or a GGUF file on this machine; engines here read no "
                         "other: save the model in a folder, and give that")
    if target is None or (own / TOKENIZER[0]).exists():
        return own
    made = WEIGHTS / f"{own.name}-with-tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for file in [*own.iterdir(), *(folder(target) / name for name in TOKENIZER)]:
        if file.is_file():
            os.symlink(file.resolve(), made / file.name)
    return made


def with_model(method: str) -> Callable[[object], Setting]:
    """`driver.Method.setting` of a method that drafts with a pair's draft model, which it reads from a folder."""
    return lambda pair: Setting(method, drafter=str(folder(pair.draft_model, pair.target)))


def with_head(method: str, **options) -> Callable[[object], Setting]:
    """The same of a method that drafts with the EAGLE-3 head of a pair's target, in the layout of its authors."""
    return lambda pair: Setting(method, drafter=str(head_export.write(
        folder_of(pair.target_name, "eagle3"), pair.target, WEIGHTS / f"{pair.target_name}-eagle3")),
        options=options)
