"""Heads: small modules that read the target's hidden states, and the files that hold them.

Start at `files` (`load`, `save`, and where heads stand); `eagle3` and `marginals` are the modules.
"""

from lib.drafters.heads.files import KINDS, check_folder_of, folder_of, load, made_for, save
