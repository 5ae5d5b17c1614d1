"""How deep a draft may be: no tree reaches past a model's window, or far past the last token still to be written."""

from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper, levels_of
from lib.trees.growth.best_first import DDTree
from lib.trees.growth.candidates import Growth
from lib.trees.growth.registry import at_most
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


def within_limits(target, drafter: Drafter, shape: Tree | Growth | DDTree, prompts: Sequence[Tensor],
                  max_new_tokens: int) -> Drafter:
    """The drafter, or where its trees may reach past a limit one that cuts them there.

    A tree reaches past the limit of new tokens if it has more levels than a row can be given after its first root: no
    round could accept it whole. Shallower trees are drafted whole in every round, the last included, so that all rounds
    of a measurement have the same tree, live and in replay. ValueError where the text itself is longer than the window
    of the target or the drafter.
    """
    text = max(map(len, prompts), default=0) + max(0, max_new_tokens - 1)  # the last token is written and not read
    windows = {"model": getattr(target.config.get_text_config(), "max_position_embeddings", None),
               "drafter": drafter.window}
    for owner, window in windows.items():
        if window and text > window:
            raise ValueError(f"prompt and new tokens need {text} positions, the {owner}'s window has {window}; shorten "
                             "the prompt or max_new_tokens")
    window = min((window for window in windows.values() if window), default=None)
    if shape.max_depth < max_new_tokens and (not window or text + shape.max_depth <= window):
        return drafter
    return WithinLimits(drafter, window, max_new_tokens)


class WithinLimits(Wrapper):
    """Another drafter's trees, no deeper than the positions left after the longest row, and than the largest number of
    tokens that a row still has to write.
    """

    def __init__(self, drafter: Drafter, window: int | None, max_new_tokens: int):
        self.drafter, self.window_size, self.max_new_tokens = drafter, window, max_new_tokens

    def start(self, prompts: Sequence[Tensor]) -> None:
        self.drafter.start(prompts)
        self.lengths = [len(prompt) for prompt in prompts]
        self.ends = [length + self.max_new_tokens for length in self.lengths]

    def propose(self, shape: Tree | Growth | DDTree, draws: Draws) -> list[Draft]:
        """The inner drafter's drafts of the levels that fit."""
        room = max(end - length for end, length in zip(self.ends, self.lengths))
        if self.window_size:
            room = min(room, self.window_size - max(self.lengths))
        static = isinstance(shape, Tree)
        fitting = levels_of(shape, min(room, shape.max_depth))[0] if static else at_most(shape, room)
        return self.drafter.propose(fitting, draws)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        self.drafter.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        self.lengths, self.ends = [self.lengths[row] for row in rows], [self.ends[row] for row in rows]
        self.drafter.select(rows)
