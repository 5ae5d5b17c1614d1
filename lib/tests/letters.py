"""A tokenizer for tests that need no vocabulary."""


class Letters:
    """A tokenizer with one token per character, counted from "a", with a chat template or without."""

    added_tokens_decoder = {}

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    @staticmethod
    def ids(text: str) -> list[int]:
        """The tokens of a text."""
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids, **options) -> str:
        """The text of tokens."""
        return "".join(chr(ord("a") + int(index)) for index in ids)

    def __call__(self, text: str, **settings) -> dict[str, list[int]]:
        return {"input_ids": self.ids(text)}

    def apply_chat_template(self, messages, add_generation_prompt, tokenize, tools=(), mood="") -> str:
        """The text of messages; tools and mood are options of a template."""
        assert add_generation_prompt and not tokenize
        texts = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return mood + "<tool>" * len(tools) + texts + "<bot>"
