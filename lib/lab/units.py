"""The unit of statistics: the turns of a conversation are one, and their prompts are named "NAME turn 2"; so are the
answers to equal prompts, which are named "NAME answer 2".

Apart from `stats`, so that the command reads prompts without importing pandas.
"""

import re
from collections import Counter
from collections.abc import Sequence

TURN = " turn "  # between the name of a conversation and the number of its turn
ANSWER = " answer "  # between the name of a prompt and the number of its answer, where it has several
SUFFIX = re.compile(rf"({TURN}(\d+))?({ANSWER}\d+)?$")


def unit(name: str) -> str:
    """The unit of a prompt by its name: the conversation of a turn, else the prompt."""
    return name[: SUFFIX.search(name).start()]


def turn(name: str) -> int:
    """The number of a prompt's turn in its conversation, by its name."""
    return int(SUFFIX.search(name)[2] or 1)


def named_by_unit(names: Sequence[str], dialogues: Sequence[tuple[str, ...]],
                  prompts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """The names of answers by unit. Those whose dialogue (messages with the answer) begins with another one are turns
    of its conversation; those to equal prompts (tokens) are its answers.
    """
    answered, asked, first_of, members = {}, {}, {}, {}
    for row in sorted(range(len(names)), key=lambda row: len(dialogues[row])):
        begins = (dialogues[row][:length] for length in range(1, len(dialogues[row])))
        earlier = next((answered[messages] for messages in begins if messages in answered), row)
        earlier = asked.setdefault(prompts[row], earlier)
        first_of[row] = first = first_of.get(earlier, earlier)
        members.setdefault(first, []).append(row)
        answered.setdefault(dialogues[row], row)
    named = list(names)
    for first, rows in members.items():
        count = Counter(prompts[row] for row in rows)
        turns, answers = {prompt: turn for turn, prompt in enumerate(count, 1)}, Counter()
        for row in rows:
            answers[prompts[row]] += 1
            named[row] = (names[first] + (f"{TURN}{turns[prompts[row]]}" if len(turns) > 1 else "")
                          + (f"{ANSWER}{answers[prompts[row]]}" if count[prompts[row]] > 1 else ""))
    return tuple(named)
