"""Which trees two models accept, and how much: notebooks 01 and 02."""
