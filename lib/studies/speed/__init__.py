"""Tokens per second beside the alternatives: notebook 07."""
