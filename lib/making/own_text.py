"""Text that a target writes itself, which a distilled drafter should learn it on (Zhou et al. 2024, DistillSpec, on-
policy data).
"""

from pathlib import Path

import numpy as np
import torch

from lib.decoding.plain import continuations
from lib.making import data
from lib.making.corpus import mixture

PROMPT_TOKENS, NEW_TOKENS, ROWS = 96, 160, 64


def own_text(target, folder: Path, name: str, *, tokens: int, seed: int) -> np.ndarray:
    """A stream uint16[N] of training prompts, each continued by the target at temperature 1; made once under `folder`.

    `target` has attn_implementation "tree". Prompts are windows of the training streams, kinds in the mixture's shares.
    """
    path = folder / f"own-{name}.npy"
    if path.exists():
        return np.load(path, mmap_mode="r", allow_pickle=False)
    streams = data.load_streams(folder)
    count = -(-tokens // (PROMPT_TOKENS + NEW_TOKENS))
    prompts = data.windows(streams.train, mixture.SHARES, count, PROMPT_TOKENS, seed, step=0)
    written = continuations(
        target,
        list(prompts),
        max_new_tokens=NEW_TOKENS,
        temperature=1.0,
        rows=ROWS,
        eos_token_id=0,
        generator=torch.Generator().manual_seed(seed),
    )
    stream = np.concatenate(
        [np.array([*prompt.tolist(), *row, 0], dtype=np.uint16) for prompt, row in zip(prompts, written)]
    )
    np.save(path, stream, allow_pickle=False)
    return stream
