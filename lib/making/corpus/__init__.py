"""The text that the shipped family learns from: installed source code and its docstrings, and eight written generators.

`sources` reads what every installation already has; `words`, `lexicon` and the generators make the rest; `mixture` puts
them together. Nothing of others is stored in the repository, only the recipe by which it is read again.
"""
