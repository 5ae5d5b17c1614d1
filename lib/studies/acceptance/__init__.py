"""The schema of the acceptance tables, which `lib.measure.acceptance` writes."""
