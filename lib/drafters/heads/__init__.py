"""Heads: small modules that read the target's hidden states, and the files that hold them.

Start at `published` (`load`) and `store` (the files of this project); `eagle3` and `marginals` are the modules.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    eagle3=("Eagle3Head",),
    marginals=("BlockHead", "MedusaHeads"),
    published=("load",),
    store=("KINDS", "check_folder_of", "folder_of", "made_for", "save", "settings"),
)
