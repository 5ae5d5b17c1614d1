"""Heads: small modules that read the target's hidden states (`eagle3`, `marginals`), and `files` that hold them."""

from lib.drafters.heads.files import KINDS, load, save
