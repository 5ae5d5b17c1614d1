"""Names and claims that the study of the advice takes from here until it has moved."""

from lib.trees.growth.registry import CHAIN, GROWN, TREE, form_of as form  # noqa: F401

# kind of text (its "creative writing" is this study's story) -> speedup with EAGLE, speedup with n-gram look-up
BY_TASK = {"code": ("2-3", "1.5-2"), "translation": ("2", "1.2"), "summary": ("1.8", "1.1"), "story": ("1.5", "1.0")}
CALLED = {"coding": "code", "summarization": "summary", "writing": "story"}  # the same kinds among chat prompts
# parameters of target and drafter -> (acceptance rate, speedup, memory beyond the target's)
BY_PAIR = {"7B/160M": (0.78, 2.1, 0.12), "70B/1B": (0.65, 1.5, 0.18)}
