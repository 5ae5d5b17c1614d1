"""Heads: small modules that read the target's hidden states, and the files that hold them.

Start at `store` (files of this project) and `published` (files of others); `eagle` and `marginals` are the modules.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    eagle=("Eagle3Head", "EagleHead", "FeatureHead"),
    marginals=("BlockHead", "MedusaHeads"),
    store=("KINDS", "check_shipped", "load", "save", "settings", "shipped"),
)
