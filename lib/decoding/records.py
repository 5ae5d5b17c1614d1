"""What a loop gives and takes: a record of each round, the generated tokens, and the hooks of its caller."""

from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify.draft import Draft

Decision = tuple[list[int], int]  # of a row in a round: its accepted nodes, root excluded, and its bonus token
# Called after each round with the rows that ran, their drafts, and the decision of each.
Observer = Callable[[list[int], list[Draft], list[Decision]], None]


@dataclass(frozen=True)
class Hooks:
    """Functions by which a caller may change a loop; each may be left out.

    adjust(row, contexts, logits): changes the logits [m, V] of m nodes of a row; contexts[i] holds the tokens before
    node i's next token: those generated in the row and those of the node's path, root and node included.
    stop(row, written): whether the row ends with these generated tokens; called after each of them.
    emit(row, tokens): receives the tokens newly written to a row, at least one.
    """

    adjust: Callable[[int, list[list[int]], Tensor], Tensor] | None = None
    stop: Callable[[int, list[int]], bool] | None = None
    emit: Callable[[int, list[int]], None] | None = None


@dataclass(frozen=True)
class Round:
    """One row in one round.

    position: tokens generated before the round, its root included. drafted: n nodes; accepted: the a of them on the
    accepted path; ranks: that path by rank. open_end: the path ended at a node that had children, so the rule rejected
    them all. EOS and a stopping hook end a round as it stands; the length limit does not: `accepted` counts the tokens
    past it too, which are not returned, because leaving out or shortening the rounds that it cuts would be a bias.
    Seconds are those of the whole batch; model_seconds: the part of them spent in forward passes of target and drafter.
    cache_bytes: bytes of the caches of target and drafter. past_window: whether nothing was drafted because the row's
    text has outgrown the drafter's window.
    """

    row: int
    position: int
    drafted: int
    accepted: int
    ranks: tuple[int, ...]
    open_end: bool
    draft_calls: int
    target_calls: int
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    cache_bytes: int
    model_seconds: float = float("nan")
    past_window: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of the whole round of the batch."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds


@dataclass(frozen=True)
class Generation:
    """The result of a call.

    sequences: int64[B, T + new], the input and the generated tokens, padded on the right. rounds: in their order.
    new_tokens: each row's generated tokens, without padding.
    """

    sequences: Tensor
    rounds: list[Round]
    new_tokens: list[list[int]]
