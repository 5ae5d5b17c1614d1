"""Heads as others publish them: Medusa's and EAGLE's layouts, from a folder or a hub id, read into ours."""

from lib.drafters import heads
from lib.drafters.published import eagle, medusa
from lib.drafters.published.files import config_of, folder_of

LAYOUTS = {"medusa": medusa.load, "eagle": eagle.load, "eagle3": eagle.load3}


def load(kind: str, where: str, target):
    """A head of a kind for a target: one of this project's, or a published one of kind medusa, eagle or eagle3.

    where: a folder, or a hub id with "@REVISION" if wanted. ValueError says what is missing, unexpected or unreadable.
    """
    folder = folder_of(where)
    if kind not in LAYOUTS or "kind" in config_of(where, folder):
        return heads.load(kind, folder, target)
    return LAYOUTS[kind](where, folder, target)
