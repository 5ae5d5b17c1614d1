"""Weights as engines read them: a folder in transformers' layout, whatever a name's source is.

Weights keep the values that this project's own loop decodes with, so that texts and counts can be compared: those of a
GGUF file are dequantised once (`gguf_files.converted`).
"""

import os
import shutil
from pathlib import Path

from lib.engines.environments import HOME
from lib.models import gguf_files
from lib.models.registry import Source

WEIGHTS = HOME / "weights"  # what is made for engines; safe to delete
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def folder(source: Source, target: Source | None = None) -> Path:
    """The folder of a model with its tokenizer. target: of a draft model, whose tokenizer stands in where its folder has
    none. ValueError for a model that is not on this machine.
    """
    if source.is_gguf:
        return gguf_files.converted(Path(source.where))
    if not source.is_folder:
        raise ValueError(f"{source} is not a folder or a GGUF file on this machine; engines here read no other: save "
                         "the model in a folder, and give that")
    own = Path(source.where)
    if target is None or (own / TOKENIZER[0]).exists():
        return own
    made = WEIGHTS / f"{source.short}-with-tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for file in [*own.iterdir(), *(folder(target) / name for name in TOKENIZER)]:
        if file.is_file():
            os.symlink(file.resolve(), made / file.name)
    return made
