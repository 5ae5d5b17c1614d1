"""Drafters: whatever proposes a tree of tokens. One protocol, one file a drafter."""

from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.protocol import Drafter

__all__ = ["Drafter", "LanguageModelDrafter", "LookupDrafter", "MergedDrafter", "OracleDrafter", "PlainDrafter", "RandomDrafter"]
