"""Which drafter to use for which text: notebook 05."""
