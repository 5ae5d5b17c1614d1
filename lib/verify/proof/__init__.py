"""Verification rules by enumeration: laws of what they emit, on small and on hard languages, and what bounds them."""
