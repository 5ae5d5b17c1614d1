"""Where serving engines find a drafter's weights."""

import json
import re
from pathlib import Path

from lib.models.registry import SHIPPED

FOLDER, GGUF = "folder or hub id", "GGUF file"
HUB_ID = r"[\w.-]+(/[\w.-]+)?"


def places(entrant) -> dict[str, str]:
    """The places of the weights that a `candidates.Entrant` drafts with, by the form in which engines read them.

    Empty where no engine reads them: a model that was made in memory, and a head in this project's own format.
    """
    if entrant.spec.partition(":")[0] == "model":
        model = entrant.pair.draft_model
        held = {FOLDER: model.name_or_path, GGUF: getattr(model, "gguf_file", "")}
    else:
        held = {FOLDER: _published(getattr(entrant.drafter, "name_or_path", ""))}
    return {form: _shown(place) for form, place in held.items()
            if place and (Path(place).exists() or re.fullmatch(HUB_ID, place))}


def _published(folder: str) -> str:
    """The folder of a head, if its config.json is that of a published layout; else nothing."""
    file = Path(folder) / "config.json"
    return folder if folder and file.is_file() and "kind" not in json.loads(file.read_text()) else ""


def _shown(place: str) -> str:
    """A place, of a model that ships from the repository's root on."""
    root = SHIPPED.parents[1]
    return str(Path(place).relative_to(root)) if Path(place).is_relative_to(root) else place
