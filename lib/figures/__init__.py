"""Every figure, one file a subject: drawn from tables alone, in one style."""
