"""llama.cpp on the GGUF file of a target, as one more way to continue a prompt, where `llama-cpp-python` is installed.

The package is optional: `pip install llama-cpp-python` compiles it for this processor, in about ten minutes.
"""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from lib.cost.ways import Continued, Run, until_end
from lib.models.registry import sources

LLAMA = "llama.cpp"


def file_of(name: str) -> Path | None:
    """The GGUF file that the target of a pair's name is read from; None for other targets, and without the package."""
    target = sources(name)[0]
    return Path(target.where) if target.is_gguf and find_spec("llama_cpp") is not None else None


def llama(file: Path, eos: Sequence[int], new_tokens: int, window: int,
          clock: Callable[[], float] = time.perf_counter) -> Run:
    """llama.cpp's plain greedy decoding of one prompt at a time, in the file's own number format, with as many threads
    as PyTorch has.

    eos: tokens that end the text. window: tokens of prompt and answer together, at most.
    """
    model = _model(file, window)

    def run(prompts: Sequence[Tensor]) -> Continued:
        """Continues one prompt int64[T]."""
        (prompt,) = prompts
        tokens, prefilled = [], float("nan")
        for token in model.generate(prompt.tolist(), temp=0.0, repeat_penalty=1.0):
            prefilled = clock() if not tokens else prefilled
            tokens.append(token)
            if len(tokens) == new_tokens or token in eos:
                break
        return Continued([until_end(tokens, eos)], [], prefilled)

    return run


def passes(file: Path, tokens: Sequence[int], prefix: int) -> Callable[[int], object]:
    """llama.cpp's forward pass over the next tokens after a prefix, with all their logits, as a function of their
    number.
    """
    model = _model(file, len(tokens), logits_all=True)
    model.eval(tokens[:prefix])

    def run(count: int) -> None:
        """One forward pass over so many tokens."""
        model.n_tokens = prefix  # what follows is dropped and written again
        model.eval(tokens[prefix : prefix + count])

    return run


def _model(file: Path, window: int, **settings):
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    return Llama(str(file), n_ctx=window, n_threads=threads, n_threads_batch=threads, verbose=False, **settings)
