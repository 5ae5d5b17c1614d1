"""What decoding tells of itself: a record of every round, and what was generated."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Round:
    """What one row did in one round.

    `position` counts the tokens generated before the round, its root included. `ranks` is the accepted path by rank;
    `drafted` = n nodes, `accepted` = a of them on the path. `open_end`: the path ended at a node that had children,
    so the rule rejected them all. `cut`: EOS, the length limit or a stopping hook shortened the round, which therefore
    belongs in no mean. Seconds are those of the whole batch's round, `model_seconds` the part of them that was spent
    in forwards of target and drafter; `cache_bytes` those of the target's and the drafter's caches.
    """

    row: int
    position: int
    drafted: int
    accepted: int
    ranks: tuple[int, ...]
    open_end: bool
    cut: bool
    draft_calls: int
    target_calls: int
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    cache_bytes: int
    model_seconds: float = float("nan")

    @property
    def seconds(self) -> float:
        """The whole round of the whole batch."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds


@dataclass(frozen=True)
class Generation:
    """`sequences` int64[B, T + new]: the input, then what was generated, padded behind its end; `rounds` in their
    order.

    `new_tokens` holds each row's generated tokens unpadded.
    """

    sequences: Tensor
    rounds: list[Round]
    new_tokens: list[list[int]]
