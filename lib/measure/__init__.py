"""One file a study: tables from models, without prose or plots."""

import lib.studies  # noqa: F401 (declares the tables)
