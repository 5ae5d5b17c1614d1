"""The unit of statistics: the turns of a conversation are one, and their prompts are named "NAME turn 2".

Apart from `stats`, so that the command reads prompts without importing pandas.
"""

import re

TURN = " turn "  # between the name of a conversation and the number of its turn


def unit(name: str) -> str:
    """The unit of a prompt by its name: the conversation of a turn, else the prompt."""
    return re.sub(rf"{TURN}\d+$", "", name)
