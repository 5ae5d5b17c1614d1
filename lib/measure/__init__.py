"""Measurements: one file a study, whose function `measure` writes the tables from which a notebook draws."""
