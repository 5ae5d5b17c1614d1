"""What other studies still read of the acceptance tables: the rows that headlines rest on, and their lengths."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.replay.acceptance import CONTINUATION, REAL_TEXT

GROWN = ("sparse", "optimal", "frequent")  # families grown from data; the others are fixed in advance
SETTING = ["pair", "protocol", "temperature", "family", "budget"]


def clean(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of text before a loop, with the column `pair`."""
    kept = rows[rows["stretch"] == "before"] if "stretch" in rows else rows
    return kept.assign(pair=kept["target"] + "/" + kept["drafter"]) if "pair" not in kept else kept


def protocol_of(rows: pd.DataFrame, pair: str) -> str:
    """The protocol of a pair's headlines: real-text starts where the run has them, as for base models."""
    return REAL_TEXT if REAL_TEXT in set(rows.loc[rows["pair"] == pair, "protocol"]) else CONTINUATION


def headline(rows: pd.DataFrame, pair: str, temperature: float = 0.0) -> pd.DataFrame:
    """The rows that headlines rest on: one pair, the protocol of its headlines, one temperature (0: greedy)."""
    own = rows[(rows["pair"] == pair) & (rows["temperature"] == temperature)]
    return own[own["protocol"] == protocol_of(rows, pair)]


def lengths(rows: pd.DataFrame, generator: np.random.Generator, by: Sequence[str] = SETTING) -> pd.DataFrame:
    """Acceptance length with its interval for each setting."""
    return stats.summarise(rows, by, "accepted", "rounds", generator)
