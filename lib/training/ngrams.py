"""Tables of n-grams of a target, its favourite token after a few tokens: `python -m lib training ngrams --target T`.

They are counted in text that the target wrote (see `own_text`), without a forward pass: the next token of a greedy
answer is its favourite, that of a sampled one often is, and twice the text is worth more.
"""

from pathlib import Path
from typing import Sequence

import numpy as np

from lib.drafters.heads.files import NGRAMS
from lib.drafters.text_drafters import save_tables
from lib.drafters.text_index import ENTRIES, NgramTables, count_tables
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
    parts = text.cut(round((1 - HELD_OUT_SHARE) * len(text)))
    training, held_out = (part.stream(*own_text.template(pair.tokenizer)) for part in parts)
    tokens, places = training[0].tolist(), written(training[1], (own_text.SAMPLED, own_text.GREEDY))
    tables = count_tables(tokens, places, ENTRIES, pair.vocabulary)
    greedy = own_text.GREEDY if (held_out[1] == own_text.GREEDY).any() else own_text.SAMPLED
    share = agreement(tables, held_out[0].tolist(), written(held_out[1], (greedy,)))
    save_tables(tables, folder / "heads" / name / NGRAMS,
                {"tokens": len(tokens), "entries": [*map(len, tables.orders)],
                 "held_out_named": {"answers": round(share, 3)}})
    return tables


def written(writers: np.ndarray, by: Sequence[int]) -> list[int]:
    """The indices in `Dialogues.stream` of tokens that one of these wrote, after the longest context."""
    places = np.flatnonzero(np.isin(writers, by))
    return places[places >= len(ENTRIES)].tolist()


def agreement(tables: NgramTables, tokens: Sequence[int], places: Sequence[int]) -> float:
    """The share of places whose token is the one that the tables give."""
    contexts = (tuple(tokens[place - len(tables.orders) : place]) for place in places)
    return float(np.mean([tables.next_token(context) == tokens[place] for context, place in zip(contexts, places)]))
