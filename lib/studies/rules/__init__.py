"""Which verification rules are lossless, and what each is worth: notebook 04."""
