"""The training text of the shipped family: installed source code and docstrings, and generated text of six kinds.

Start at `mixture`. `words` draws the words of the generators `english`, `arithmetic` and `translation` from
`language.yaml`. Text of other authors is not stored in the repository, only the recipe that finds it again.
"""
