"""The input and output of a loop: the hooks of its caller, a record of each round, and the generated tokens."""

import math
from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify.draft import Draft

Decision = tuple[list[int], int]  # of a row in a round: its accepted nodes, root excluded, and its bonus token
# Called after each round with the rows that ran, their drafts, and the decision of each.
Observer = Callable[[list[int], list[Draft], list[Decision]], None]


@dataclass(frozen=True)
class Hooks:
    """Functions by which a caller may change a loop; each is optional.

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

    EOS and a stopping hook end a round as it stands. The length limit does not: `accepted` counts tokens past it, which
    are not returned, since leaving out or shortening the rounds that it cuts would be a bias. Calls and seconds are
    those of the whole batch.
    """

    row: int
    position: int  # tokens generated before the round, its root included
    drafted: int  # nodes n
    accepted: int  # the a of them on the accepted path
    draft_calls: int
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole round of the batch."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds


@dataclass(frozen=True)
class Generation:
    """The result of a call; forward passes are those of the whole batch, and the target's prefill counts as one."""

    sequences: Tensor  # int64[B, T + new]: the input and the generated tokens, padded on the right
    rounds: list[Round]  # in their order
    new_tokens: list[list[int]]  # each row's generated tokens, without padding
    target_calls: int = 0  # forward passes of the target
    drafter_calls: int = 0  # forward passes of the drafter
    forward: str = ""  # the name of the target's forward pass (see `lib.forward`)

    @property
    def drafted(self) -> int:
        """Draft tokens of all rounds."""
        return sum(record.drafted for record in self.rounds)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens of all rounds."""
        return sum(record.accepted for record in self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, without bonus tokens in either; NaN where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else math.nan

    @property
    def acceptance_length(self) -> float:
        """Mean accepted draft tokens per round and row, the bonus token excluded; NaN without rounds."""
        return self.accepted / len(self.rounds) if self.rounds else math.nan
