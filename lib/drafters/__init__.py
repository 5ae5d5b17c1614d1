"""Drafters: whatever proposes a tree of tokens. One protocol, one file a drafter, one registry."""

from lib.drafters.adaptive import AdaptiveDrafter
from lib.drafters.block import BlockDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.confident import ConfidentDrafter
from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.eagle import EagleDrafter
from lib.drafters.early_exit import EarlyExitDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.medusa import MedusaDrafter
from lib.drafters.merged import MergedDrafter, Sharing
from lib.drafters.ngrams import NgramDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter
from lib.drafters.recycling import RecyclingDrafter
from lib.drafters.registry import DRAFTERS, Kind, make, parse
from lib.drafters.suffix_automaton import SuffixAutomatonDrafter

__all__ = ["DRAFTERS", "AdaptiveDrafter", "BlockDrafter", "CombinedDrafter", "ConfidentDrafter", "Drafter",
           "EagleDrafter", "EarlyExitDrafter", "Kind", "LanguageModelDrafter", "LookupDrafter", "MedusaDrafter",
           "MergedDrafter", "NgramDrafter", "OracleDrafter", "PlainDrafter", "RandomDrafter", "RecyclingDrafter",
           "Sharing", "SuffixAutomatonDrafter", "make", "parse"]
