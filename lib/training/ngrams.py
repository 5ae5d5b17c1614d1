"""Tables of n-grams of a target, its favourite token after a few tokens: `python -m lib training ngrams --target T`.

They are counted in the answers of text that the target wrote (see `own_text`), without a forward pass: the next token of
a greedy answer is its favourite, that of a sampled one often is, and twice the text is worth more.
"""

from pathlib import Path

from lib.drafters.heads.files import NGRAMS
from lib.drafters.text_drafters import save_tables
from lib.drafters.text_index import NgramTables, count_tables
from lib.forward.load import load_pair
from lib.training import own_text


def make(target_name: str, folder: Path) -> NgramTables:
    """Counts the tables of a target that has written text into folder/heads/TARGET/ngrams. ValueError without text."""
    name = Path(target_name).name
    dialogues, pair = own_text.written(name), load_pair(target_name, dtype="auto")
    before, between = own_text.template(pair.tokenizer)
    prompts, answers = [[*before, *row.turn, *between] for row in dialogues], [row.answer for row in dialogues]
    tables = count_tables(prompts, answers, pair.vocabulary)
    save_tables(tables, folder / "heads" / name / NGRAMS,
                {"tokens": sum(map(len, prompts + answers)), "entries": [*map(len, tables.orders)]})
    return tables
