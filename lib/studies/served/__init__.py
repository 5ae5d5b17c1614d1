"""Which tree to use where the target is served elsewhere, from its logged answers: notebook 08."""
