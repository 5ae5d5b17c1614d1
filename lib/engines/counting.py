"""What an engine's counters say of rounds that were replayed: `driver.Decoded` has the same numbers."""

from lib.replay.exact import Walk


def counted(rounds: Walk, positions: int) -> tuple[int, int, list[int]]:
    """Drafts, draft tokens, and accepted ones at each position of a draft.

    positions: those that a draft may have. A round without draft tokens is no draft. Tokens past the length limit count,
    as in `replay.simulated.rounds`; engines count those after EOS too, so that texts have to go on behind it.
    """
    return (int((rounds.drafted > 0).sum()), int(rounds.drafted.sum()),
            [int((rounds.accepted > place).sum()) for place in range(positions)])
