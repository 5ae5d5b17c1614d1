"""Where a caller has a say in a loop: before a token is chosen, when a round is decided, when tokens are written."""

from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify.draft import Draft

Decision = tuple[list[int], int]  # of a row in a round: its accepted nodes, root excluded, and its bonus token
# Told after a round: the rows that ran, their drafts, and what was decided of each.
Observer = Callable[[list[int], list[Draft], list[Decision]], None]


@dataclass(frozen=True)
class Hooks:
    """What a caller may add to a loop; each may be left out.

    adjust(row, contexts, logits): logits [m, V] of m nodes of a row, changed by what stands before each node's next
    token: contexts[i] holds the row's generated tokens and node i's own path, root and node included.
    revise(drafts, decisions): the decisions of a round, perhaps shortened.
    stop(row, written): whether the row ends with these generated tokens; asked after each of them.
    emit(row, tokens): the tokens that a row has just been given, at least one.
    """

    adjust: Callable[[int, list[list[int]], Tensor], Tensor] | None = None
    revise: Callable[[list[Draft], list[Decision]], list[Decision]] | None = None
    stop: Callable[[int, list[int]], bool] | None = None
    emit: Callable[[int, list[int]], None] | None = None
