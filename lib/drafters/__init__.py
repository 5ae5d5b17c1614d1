"""Drafters: whatever proposes a tree of tokens. One protocol, one file a drafter, one registry."""

from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.merged import MergedDrafter, Sharing
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter
from lib.drafters.registry import DRAFTERS, Kind, make

__all__ = ["DRAFTERS", "Drafter", "Kind", "LanguageModelDrafter", "LookupDrafter", "MergedDrafter", "OracleDrafter",
           "PlainDrafter", "RandomDrafter", "Sharing", "make"]
