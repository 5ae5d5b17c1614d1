"""The mixture of texts: the kinds and their shares, the documents of a split, and the held-out prompts.

Real text is the source code and docstrings of the installed standard library and packages, without tests and
near-copies, split by file; generators write the other kinds.
"""

import re
from random import Random
from typing import Callable, Iterator

from lib.training.corpus import arithmetic, english, translation
from lib.training.corpus.words import HELD_OUT, TRAIN, Lexicon, is_held_out
from lib.models.held_out import REAL_KINDS, Source, docstrings, files, part_of, read

GENERATORS: dict[str, Callable[[Random, Lexicon], str]] = {
    "translation": translation.document,
    "questions": english.questions,
    "summary": english.summary,
    "arithmetic": arithmetic.document,
    "dialogue": english.dialogue,
    "story": english.story,
}
KINDS = (*REAL_KINDS, *GENERATORS)
# Share of the training tokens. Real text has the larger half; of the generated kinds the regular ones need the least.
SHARES = {"code": 0.38, "prose": 0.20, "translation": 0.10, "questions": 0.07, "summary": 0.07, "arithmetic": 0.06,
          "dialogue": 0.05, "story": 0.07}
# Packages with permissive licences that the requirements bring, most general first: of near-copies the first stays.
PACKAGES = """
numpy pandas matplotlib networkx sympy torch transformers fonttools Pygments huggingface_hub setuptools ipython mpmath
pytest prompt_toolkit rich pillow seaborn tornado jedi jupyter_server fsspec bleach anyio Jinja2 packaging pyparsing
babel urllib3 beautifulsoup4 jupyter_client psutil ipykernel python-dateutil traitlets nbconvert parso ipywidgets
PyYAML
""".split()
FILES_HELD_OUT_ONE_IN = 25
SEEN_LINES_ALLOWED = {"train": 0.5, "held_out": 0.2}
PROMPT_TOKENS = (144, 272)  # of a held-out prompt: a context, and room for a continuation in the window


def generated(kind: str, held_out: bool, seed: int, characters: int) -> Iterator[str]:
    """Documents of a generated kind, of at least `characters` in total, from the split's words and rules."""
    rng = Random(f"{kind}/{held_out}/{seed}")
    lexicon = HELD_OUT if held_out else TRAIN
    written = 0
    while written < characters:
        document = GENERATORS[kind](rng, lexicon)
        written += len(document)
        yield document


def real(source_files: list[Source], kind: str, held_out: bool) -> Iterator[str]:
    """Documents of a real kind: whole files, or the new docstrings of a file."""
    seen: set[str] = set()
    for source in source_files:
        if source.held_out != held_out:
            continue
        if kind == "code":
            yield source.text
            continue
        fresh = [doc for doc in docstrings(source.text) if doc not in seen]
        seen.update(fresh)
        if fresh:
            yield "\n\n".join(fresh)


def sources(packages: tuple[str, ...] = ("python", *PACKAGES)) -> list[Source]:
    """All files of the packages without near-copies; a held-out file is compared with all training files."""
    read_in = [(package, name, text) for package in packages for name, path in files(package) if (text := read(path))]
    split = {True: [], False: []}
    for package, name, text in read_in:
        split[is_held_out("file", package, name, one_in=FILES_HELD_OUT_ONE_IN)].append((package, name, text))
    seen: set[int] = set()
    kept = []
    for held_out in (False, True):
        allowed = SEEN_LINES_ALLOWED["held_out" if held_out else "train"]
        for package, name, text in split[held_out]:
            shingles = _shingles(text)
            if shingles and len(shingles & seen) <= allowed * len(shingles):
                kept.append(Source(package, name, text, held_out))
                seen |= shingles
    return kept


def _shingles(text: str, lines: int = 3) -> set[int]:
    kept = [stripped for line in text.splitlines() if len(stripped := re.sub(r"\s+", " ", line.strip())) > 8]
    return {hash(tuple(kept[i : i + lines])) for i in range(max(1, len(kept) - lines + 1))} if kept else set()


def prompts(count: Callable[[str], int], per_kind: int, seed: int = 0) -> Iterator[dict]:
    """Held-out prompts in Spec-Bench's form, `per_kind` of each kind: generated ones as text, real ones as recipes.

    count(text): the number of its tokens.
    """
    rng = Random(f"prompts/{seed}")
    held_out = [source for source in sources() if source.held_out and source.package != "python"]
    for kind in KINDS:
        make = _real_prompts(held_out, kind, rng, count) if kind in REAL_KINDS else _generated_prompts(kind, rng, count)
        for number in range(per_kind):
            yield {"question_id": f"{kind}-{number:02d}", "category": kind, **next(make)}


def _generated_prompts(kind: str, rng: Random, count: Callable[[str], int]) -> Iterator[dict]:
    while True:
        text = GENERATORS[kind](rng, HELD_OUT)
        question = text.find("Summary:") + len("Summary:")  # of a summary: it follows the whole article
        end = question + 1 if kind == "summary" else int(len(text) * rng.uniform(0.5, 0.65))
        prompt = _cut(text[:end], count)
        if prompt and (kind != "summary" or len(prompt) >= question):
            yield {"turns": [prompt]}


def _real_prompts(held_out: list[Source], kind: str, rng: Random, count: Callable[[str], int]) -> Iterator[dict]:
    part = "docstrings" if kind == "prose" else "file"
    for source in rng.sample(held_out, len(held_out)):
        text = part_of(source.text, part)
        start = text.find("\n", rng.randint(0, max(0, len(text) - 2500))) + 1
        prompt = _cut(text[start : start + 1200], count)
        if prompt and len(text) > start + len(prompt) + 600:
            yield {"source": {"package": source.package, "path": source.path, "sha256": source.digest, "part": part,
                              "start": start, "end": start + len(prompt)}}


def _cut(text: str, count: Callable[[str], int]) -> str | None:
    """The longest beginning of the text that ends before a space, of `PROMPT_TOKENS` tokens; None if there is none."""
    while count(text) > PROMPT_TOKENS[1]:
        text = text[: int(len(text) * 0.95)]
    text = text[: max(text.rfind(" "), text.rfind("\n"))].rstrip()
    return text if count(text) >= PROMPT_TOKENS[0] else None
