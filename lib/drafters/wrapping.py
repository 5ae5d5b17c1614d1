"""What a drafter that stands before another one passes on from it."""

from lib.drafters.protocol import Drafter


class Wrapping:
    """Answers the loop's questions with those of `drafter`, the one behind it."""

    drafter: Drafter

    @property
    def wants_hidden_states(self) -> bool:
        """Whether the drafter behind it reads the target's hidden states."""
        return getattr(self.drafter, "wants_hidden_states", False)

    @property
    def window(self) -> int | None:
        """Positions that the drafter behind it has; None without a limit."""
        return getattr(self.drafter, "window", None)

    @property
    def knows(self) -> int | None:
        """Tokens that the drafter behind it may draft; None where it does not say."""
        return getattr(self.drafter, "knows", None)

    @property
    def calls(self) -> int:
        """Forwards of the drafter behind it."""
        return self.drafter.calls

    @property
    def cache_bytes(self) -> int:
        """Bytes that the drafter behind it holds."""
        return self.drafter.cache_bytes
