"""A tokenizer for tests that need no vocabulary."""


class Letters:
    """A tokenizer with one token per letter, for texts that a test can read."""

    @staticmethod
    def ids(text: str) -> list[int]:
        """The tokens of a text."""
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids, **options) -> str:
        """The text of tokens."""
        return "".join(chr(ord("a") + int(index)) for index in ids)

    def __call__(self, text: str, **settings) -> dict[str, list[int]]:
        return {"input_ids": self.ids(text)}
