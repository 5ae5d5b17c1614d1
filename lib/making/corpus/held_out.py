"""Cuts the held-out prompts of the shipped family: generated ones as text, real ones as recipes."""

from random import Random
from typing import Callable, Iterator

from lib.making.corpus import mixture
from lib.making.corpus.lexicon import HELD_OUT
from lib.making.corpus.sources import sources
from lib.models.held_out import REAL_KINDS, part_of
from lib.models.source_text import Source

TOKENS = (144, 272)  # a prompt's length: long enough to condition on, short enough that a continuation fits the window


def rows(count: Callable[[str], int], per_kind: int, seed: int = 0) -> Iterator[dict]:
    """Prompts in Spec-Bench's form, so many a kind; `count` says how many tokens a text has."""
    rng = Random(f"prompts/{seed}")
    found = [source for source in sources() if source.held_out and source.package != "python"]
    for kind in mixture.KINDS:
        make = _real(found, kind, rng, count) if kind in REAL_KINDS else _generated(kind, rng, count)
        for number in range(per_kind):
            yield {"question_id": f"{kind}-{number:02d}", "category": kind, **next(make)}


def _generated(kind: str, rng: Random, count: Callable[[str], int]) -> Iterator[dict]:
    while True:
        text = mixture.GENERATORS[kind](rng, HELD_OUT)
        asked = text.find("Summary:") + len("Summary:")  # a summary is asked for once the whole article is read
        end = asked + 1 if kind == "summary" else int(len(text) * rng.uniform(0.5, 0.65))
        prompt = _cut(text[:end], count)
        if prompt and (kind != "summary" or len(prompt) >= asked):
            yield {"turns": [prompt]}


def _real(found: list[Source], kind: str, rng: Random, count: Callable[[str], int]) -> Iterator[dict]:
    part = "docstrings" if kind == "prose" else "file"
    for source in rng.sample(found, len(found)):
        text = part_of(source.text, part)
        start = text.find("\n", rng.randint(0, max(0, len(text) - 2500))) + 1
        prompt = _cut(text[start : start + 1200], count)
        if prompt and len(text) > start + len(prompt) + 600:
            yield {"source": {"package": source.package, "path": source.path, "sha256": source.digest, "part": part,
                              "start": start, "end": start + len(prompt)}}


def _cut(text: str, count: Callable[[str], int]) -> str | None:
    """The longest part of the text, ended before a space, within the limits of length; None where there is none."""
    while count(text) > TOKENS[1]:
        text = text[: int(len(text) * 0.95)]
    text = text[: max(text.rfind(" "), text.rfind("\n"))].rstrip()
    return text if count(text) >= TOKENS[0] else None
