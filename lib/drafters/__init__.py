"""Drafters: whatever proposes a tree of tokens. One protocol, one file a drafter, one registry."""

from lib.drafters.adaptive import AdaptiveDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.confident import ConfidentDrafter
from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.early_exit import EarlyExitDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.merged import MergedDrafter, Sharing
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter
from lib.drafters.recycling import RecyclingDrafter
from lib.drafters.registry import DRAFTERS, Kind, make
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter

__all__ = ["DRAFTERS", "AdaptiveDrafter", "CombinedDrafter", "ConfidentDrafter", "Drafter", "EarlyExitDrafter", "Kind",
           "LanguageModelDrafter", "LookupDrafter", "MergedDrafter", "OracleDrafter", "PlainDrafter", "RandomDrafter",
           "RecyclingDrafter", "Sharing", "SuffixAutomatonDrafter", "make"]
