"""What a drafter offers to be recorded where its proposal depends on where the round started."""

from typing import Protocol, Sequence

import numpy as np
from torch import Tensor


class ReadsAhead(Protocol):
    """A drafter with heads or features: from the root alone it speaks of several tokens ahead."""

    def read_ahead(
        self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int
    ) -> tuple[Tensor, Tensor]:
        """What the drafter thinks of each row's own continuation: ranks int32[N, L, depth], probs float32[N, L, depth].

        texts int64[T_i]: prompts and what followed; starts: where the first root stands in each. A row has n_i = T_i -
        1 - starts[i] transitions, L = max(1, the most of them). Entry [i, t, d]: of a round whose root is token
        starts[i] + t, the rank and probability of the token d + 1 behind the root among the candidates d + 1 ahead,
        given the true path; -1 and 0 behind a row's end. The root has no hidden state of the target yet, as live.
        """


def ahead_of(
    drafter: ReadsAhead, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """`read_ahead`, its answer checked: ValueError where the shape is another, or a rank stands behind a row's end."""
    ranks, probs = (values.cpu().numpy() for values in drafter.read_ahead(target, texts, starts, depth))
    counts = np.array([len(text) - 1 - start for text, start in zip(texts, starts)])
    wanted = (len(texts), max(1, int(counts.max(initial=0))), depth)
    if ranks.shape != wanted or probs.shape != wanted:
        raise ValueError(
            f"read_ahead of {type(drafter).__name__} gave ranks {ranks.shape} and probs {probs.shape} where "
            f"[rows, transitions, depth] are {wanted}; see lib.replay.ahead.ReadsAhead"
        )
    behind = np.add.outer(np.arange(wanted[1]), np.arange(depth))[None] >= counts[:, None, None]
    if ((ranks < 0) != behind).any():
        raise ValueError(
            f"read_ahead of {type(drafter).__name__} must give rank -1 behind a row's end and there alone; a candidate "
            "that the drafter cannot propose has a rank larger than all that it can"
        )
    return ranks.astype(np.int32), probs.astype(np.float32)
