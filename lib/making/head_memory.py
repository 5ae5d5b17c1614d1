"""What training a head takes in memory, with all depths' logits alive together and with one depth's at a time."""

from typing import Sequence

import pandas as pd
import torch

from lib.drafters import heads
from lib.lab.counted_bytes import CountedBytes
from lib.making import apart, losses

WAYS = {"together": apart.backward_together, "apart": apart.backward_apart}


def peaks(target, kinds: Sequence[str], *, rows: int, length: int, seed: int = 0) -> pd.DataFrame:
    """Peak bytes of one step's losses and their backward, beside weights and the lesson itself: a row a kind and way.

    A fresh head of each kind learns random windows of rows x length tokens on the target.
    """
    found = []
    for kind in kinds:
        for way, backward in WAYS.items():
            generator = torch.Generator().manual_seed(seed)
            config = heads.settings(kind, target.config)
            head = heads.KINDS[kind](config).to(target.device)
            tokens = torch.randint(config.vocab_size, (rows, length + 1), generator=generator).to(target.device)
            lesson = losses.LESSONS[kind](head, target, tokens, generator)
            with CountedBytes() as counted:
                backward(lesson.states, lesson.loss(target.get_output_embeddings()))
            found.append(dict(kind=kind, way=way, depths=len(lesson.states), rows=rows, length=length,
                              logit_bytes=lesson.states[0].shape[:-1].numel() * config.vocab_size * 4,
                              peak_bytes=counted.peak))
    return pd.DataFrame(found)
