"""A file per study: a function `measure(store, *, device, ...)` that loads models by name and writes the tables."""
