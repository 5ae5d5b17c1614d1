"""Names that the speed study takes from here until it has moved."""

from lib.measure.drafters import heads_of, model_bytes as weights  # noqa: F401
