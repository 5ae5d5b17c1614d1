"""Acceptance by shape, budget, drafter, text and temperature. Start at `measure` (rows by replay) and `findings`."""
