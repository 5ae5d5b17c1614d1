"""Heads: small modules that read the target's hidden states, and the files that hold them."""

from lib.drafters.heads.block import BlockHead
from lib.drafters.heads.eagle import Eagle3Head, EagleHead, FeatureHead
from lib.drafters.heads.medusa import MedusaHeads
from lib.drafters.heads.store import KINDS, check_shipped, load, save, settings, shipped

__all__ = ["KINDS", "BlockHead", "Eagle3Head", "EagleHead", "FeatureHead", "MedusaHeads", "check_shipped", "load",
           "save", "settings", "shipped"]
