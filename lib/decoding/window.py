"""Texts that come near a window's end: the last token is said and not read, and no tree reaches beyond the window."""

from typing import Sequence

from torch import Tensor

from lib.drafters.first_levels import levels
from lib.drafters.wrapping import Wrapping
from lib.trees.growth.candidates import Growth
from lib.trees.growth.shallower import at_most
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


def within_window(target, drafter, shape: Tree | Growth, prompts: Sequence[Tensor], limit: int):
    """The drafter, or where a tree might reach beyond a window one that ends it there.

    limit: new tokens a row. ValueError where the text itself is longer than the window of the target or the drafter.
    """
    text = max(map(len, prompts), default=0) + max(0, limit - 1)
    ours = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    windows = {"model": ours, "drafter": getattr(drafter, "window", None)}
    for whose, window in windows.items():
        if window and text > window:
            raise ValueError(
                f"prompt and new tokens need {text} positions, the {whose}'s window has {window}; shorten the prompt "
                "or max_new_tokens"
            )
    window = min((window for window in windows.values() if window), default=None)
    deepest = getattr(shape, "max_depth", shape.budget)  # a rule over depths does not say how many there are
    return WithinWindow(drafter, window) if window and text + deepest > window else drafter


class WithinWindow(Wrapping):
    """Drafts what another does, in trees no deeper than the window has positions left behind the longest row."""

    def __init__(self, drafter, window: int):
        self.drafter, self.positions = drafter, window

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts the drafter on the prompts int64[T]."""
        self.drafter.start(prompts)
        self.lengths = [len(prompt) for prompt in prompts]

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """The drafter's drafts of as many levels as there is room for."""
        room = self.positions - max(self.lengths)
        static = isinstance(shape, Tree)
        fitting = levels(shape, min(room, shape.max_depth))[0] if static else at_most(shape, room)
        return self.drafter.propose(fitting, draws)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Counts what was kept, and passes it on."""
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        self.drafter.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.lengths = [self.lengths[row] for row in rows]
        self.drafter.select(rows)
