"""Pairs of target and drafter by name: which there are, how they are loaded, and what is wrong where they cannot be."""

from lib.models.checks import DTYPES, PairError
from lib.models.load import Pair, check_pairs, load_pair, load_pairs
from lib.models.registry import FAMILY, PAIRS, PRESETS, SHIPPED, Source, sources

__all__ = ["DTYPES", "FAMILY", "PAIRS", "PRESETS", "SHIPPED", "Pair", "PairError", "Source", "check_pairs", "load_pair",
           "load_pairs", "sources"]
