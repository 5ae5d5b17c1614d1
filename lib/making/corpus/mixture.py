"""The kinds of text, how much of each the family sees, and the documents of a split."""

from random import Random
from typing import Callable, Iterator

from lib.making.corpus import arithmetic, dialogue, questions, sources, translation
from lib.making.corpus.lexicon import HELD_OUT, TRAIN, Lexicon
from lib.models.held_out import REAL_KINDS

GENERATORS: dict[str, Callable[[Random, Lexicon], str]] = {
    "translation": translation.document,
    "questions": questions.questions,
    "summary": questions.summary,
    "arithmetic": arithmetic.document,
    "dialogue": dialogue.dialogue,
    "story": dialogue.story,
}
KINDS = (*REAL_KINDS, *GENERATORS)
# Share of the training tokens. Real text has the larger half; of the generated kinds the regular ones need the least.
SHARES = {
    "code": 0.38,
    "prose": 0.20,
    "translation": 0.10,
    "questions": 0.07,
    "summary": 0.07,
    "arithmetic": 0.06,
    "dialogue": 0.05,
    "story": 0.07,
}


def generated(kind: str, held_out: bool, seed: int, characters: int) -> Iterator[str]:
    """Documents of a generated kind until so many characters are written; the split's lexemes and rules, then the
    seed.
    """
    rng = Random(f"{kind}/{held_out}/{seed}")
    lexicon = HELD_OUT if held_out else TRAIN
    written = 0
    while written < characters:
        document = GENERATORS[kind](rng, lexicon)
        written += len(document)
        yield document


def real(found: list[sources.Source], kind: str, held_out: bool) -> Iterator[str]:
    """Documents of a real kind: whole files, or the distinct docstrings of a file joined."""
    seen: set[str] = set()
    for source in found:
        if source.held_out != held_out:
            continue
        if kind == "code":
            yield source.text
            continue
        fresh = [doc for doc in sources.docstrings(source.text) if doc not in seen]
        seen.update(fresh)
        if fresh:
            yield "\n\n".join(fresh)
