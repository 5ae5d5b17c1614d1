"""Tables of n-grams of a target, its favourite token after a few tokens: `python -m lib training ngrams --target T`.

They are counted in text that the target wrote (see `own_text`), without a forward pass: the next token of a greedy
answer is its favourite, that of a sampled one often is, and twice the text is worth more.
"""

from pathlib import Path
from typing import Sequence

import numpy as np

from lib.drafters import ngrams
from lib.drafters.counting import ENTRIES, Places, tables_of
from lib.drafters.heads.store import NGRAMS
from lib.drafters.ngrams import NgramTables
from lib.forward.load import load_pair
from lib.training import own_text

HELD_OUT_SHARE = 0.05  # of the rows of text


def make(target_name: str, folder: Path) -> NgramTables:
    """Counts the tables of a target that has written text into folder/heads/TARGET/ngrams.

    Its config.json also has how often the tables give the target's favourite in held-out text, or, where no greedy
    answer is held out, the token that it sampled. ValueError without such text.
    """
    name = Path(target_name).name
    own_text.check_there(name)
    pair, text = load_pair(target_name, dtype="auto"), own_text.load(own_text.path_of(name))
    training, held_out = (part.stream(*own_text.template(pair.tokenizer)) for part in text.split(HELD_OUT_SHARE))
    tables = tables_of(written(*training, (own_text.SAMPLED, own_text.GREEDY)), ENTRIES, pair.vocabulary)
    greedy = own_text.GREEDY if (held_out[1] == own_text.GREEDY).any() else own_text.SAMPLED
    share = agreement(tables, written(*held_out, (greedy,)))
    ngrams.save(tables, folder / "heads" / name / NGRAMS,
                {"tokens": len(training[0]), "entries": [*map(len, tables.orders)],
                 "held_out_named": {"answers": round(share, 3)}})
    return tables


def written(tokens: np.ndarray, writers: np.ndarray, by: Sequence[int]) -> Places:
    """The places of `Dialogues.stream` whose next token was written by one of these, after the longest context."""
    said = np.flatnonzero(np.isin(writers, by))
    said = said[said >= len(ENTRIES)]
    return Places(tokens, said - 1, tokens[said])


def agreement(tables: NgramTables, places: Places) -> float:
    """The share of places whose favourite the tables give."""
    orders = len(tables.orders)
    given = [tables.favourite([key % tables.vocabulary**n for n in range(1, orders + 1)])
             for key in places.keys(orders, tables.vocabulary).tolist()]
    return float(np.mean(given == places.said))
