"""How deep a draft may be: no tree reaches past a model's window, or is far deeper than the text to be written."""

from typing import Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper, levels_of
from lib.trees.growth.rules import DDTree
from lib.trees.growth.candidates import Growth
from lib.trees.growth.registry import at_most
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

DEEPEST = 64  # levels that any draft may have


def within_limits(target, drafter: Drafter, shape: Tree | Growth | DDTree, prompts: Sequence[Tensor],
                  max_new_tokens: int) -> Drafter:
    """The drafter, or where its trees may be too deep one that cuts them.

    A shape has at most as many levels as new tokens are asked for, or DEEPEST if that is more, and the same ones in
    every round, the last included: all rounds of a measurement have the same tree, live and in replay, and a shape of
    thousands of levels costs no more than the text. Only a window ends trees earlier, near its end, where rounds
    therefore accept less: prompts whose rounds are counted leave room for the deepest tree and 1 token past the limit.
    ValueError where the text itself is longer than the window of the target or the drafter.
    """
    text = max(map(len, prompts), default=0) + max(0, max_new_tokens - 1)  # the last token is written and not read
    windows = {"model": getattr(target.config.get_text_config(), "max_position_embeddings", None),
               "drafter": drafter.window}
    for owner, window in windows.items():
        if window and text > window:
            raise ValueError(f"prompt and new tokens need {text} positions, the {owner}'s window has {window}; shorten "
                             "the prompt or max_new_tokens")
    window = min((window for window in windows.values() if window), default=None)
    most = max(max_new_tokens, DEEPEST)
    if shape.max_depth <= most and (not window or text + shape.max_depth <= window):
        return drafter
    return WithinLimits(drafter, window, most)


class WithinLimits(Wrapper):
    """Another drafter's trees, no deeper than `most` levels and the positions left after the longest row."""

    def __init__(self, drafter: Drafter, window: int | None, most: int):
        self.drafter, self.window_size, self.most = drafter, window, most

    def start(self, prompts: Sequence[Tensor]) -> None:
        self.drafter.start(prompts)
        self.lengths = [len(prompt) for prompt in prompts]

    def propose(self, shape: Tree | Growth | DDTree, draws: Draws) -> list[Draft]:
        """The inner drafter's drafts of the levels that fit."""
        room = min(self.most, self.window_size - max(self.lengths)) if self.window_size else self.most
        static = isinstance(shape, Tree)
        fitting = levels_of(shape, min(room, shape.max_depth))[0] if static else at_most(shape, room)
        return self.drafter.propose(fitting, draws)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        self.drafter.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self.drafter.select(rows)
