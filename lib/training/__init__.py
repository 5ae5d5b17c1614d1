"""Making draft models, heads, n-gram tables and their text: `python -m lib training COMMAND`. Start at `command`;
`conditioning` compares heads that learned alike.
"""
