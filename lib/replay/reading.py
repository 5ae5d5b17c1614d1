"""Reading a continuation: target and drafters go over it in large teacher-forced forwards."""

from typing import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.operator import tree_forward
from lib.drafters.ahead import rank_of
from lib.replay.ahead import ahead_of
from lib.replay.chances import chances
from lib.replay.checks import check_models, check_prompts
from lib.replay.loops import loop_start
from lib.replay.prefill import prefill
from lib.replay.trace import BY_DRAFTER, EMPTY, Trace, join
from lib.verify.warping import warp

AT_ONCE = 1 << 26  # probabilities of one model that are held together
MOST_ROWS = 32
AHEAD = 8  # depths that are read of a drafter that speaks of several tokens ahead


@torch.inference_mode()
def read(
    target,
    drafters: Mapping[str, object],
    prompts: Sequence[Tensor],
    written: Sequence[Sequence[int]],
    *,
    names: Sequence[str],
    kinds: Sequence[str],
    temperature: float = 0.0,
    about: Mapping[str, object] | None = None,
    ahead: int = AHEAD,
    siblings: int = 0,
    generator: torch.Generator | None = None,
) -> Trace:
    """The trace of continuations that are there already, each at least a root.

    drafters: causal language models of the target's vocabulary with tree attention, whose proposal depends on the path
    alone, or what `ReadsAhead`, whose candidates `ahead` tokens ahead are read. siblings: up to how many sampled
    children a node may have for which `chances` are kept (see `acceptance_chances`), which takes a temperature above 0
    and a generator; 0 for none.
    """
    check_models(target, drafters)
    check_prompts(target, prompts, names, kinds)
    if len(written) != len(prompts) or not all(map(len, written)):
        raise ValueError(f"continuations of {list(map(len, written))} tokens for {len(prompts)} prompts; give one for "
                         "each, its root at least")
    if siblings and (not temperature or generator is None):
        raise ValueError(
            f"siblings is {siblings} at temperature {temperature} with generator {generator}; sampled children need a "
            "temperature above 0, and what they are worth a torch.Generator"
        )
    longest = max(map(len, written))
    rows = max(1, min(MOST_ROWS, AT_ONCE // (longest * target.config.get_text_config().vocab_size)))
    parts = []
    for first in range(0, len(written), rows):
        batch = slice(first, first + rows)
        arrays = _read(target, drafters, prompts[batch], written[batch], temperature, ahead, siblings, generator)
        parts.append(
            Trace(
                **arrays,
                prompts=tuple(names[batch]),
                kinds=tuple(kinds[batch]),
                about=dict(about or {}, temperature=temperature),
            )
        )
    return join(parts)


def branched_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]]) -> Tensor:
    """[S, V]: what a model says at every transition of the rows, row by row; prompts that begin alike are prefilled
    once, and only transitions pass the output layer.
    """
    counts = [len(row) - 1 for row in written]
    cache, _ = prefill(model, prompts)
    block = pad_sequence([torch.tensor(row[:-1] or [0]) for row in written], batch_first=True).to(model.device)
    depth = torch.arange(block.shape[1], device=block.device)
    return _flat(tree_forward(model, block, depth, None, cache).logits, [0] * len(written), counts)


def plain_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]]) -> Tensor:
    """The oracle of `branched_logits`: one forward over each row's whole text."""
    texts = [torch.cat([prompt, torch.tensor(row[:-1] or [0])]) for prompt, row in zip(prompts, written)]
    logits = model(pad_sequence(texts, batch_first=True).to(model.device)).logits
    return _flat(logits, list(map(len, prompts)), [len(row) - 1 for row in written])


def _flat(logits: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return torch.cat([row[start : start + count] for row, start, count in zip(logits, starts, counts)])


def _read(
    target, drafters, prompts, written, temperature: float, ahead: int, siblings: int, generator
) -> dict[str, object]:
    """The arrays of one batch's trace."""
    lengths = np.array([len(row) - 1 for row in written])
    width = max(1, int(lengths.max()))
    tokens = np.full((len(written), width + 1), EMPTY["tokens"], dtype=np.int32)
    for i, row in enumerate(written):
        tokens[i, : len(row)] = row
    inside = np.arange(width)[None] < lengths[:, None]

    def spread(values: Tensor, fill: float = 0, kind=np.float32) -> np.ndarray:
        array = np.full((*inside.shape, *values.shape[1:]), fill, kind)
        array[inside] = values.cpu().numpy()
        return array

    logits = branched_logits(target, prompts, written)
    wanted = warp(logits, temperature)
    thought = wanted if temperature else torch.softmax(logits, dim=-1)  # a one-hot would say nothing of confidence
    said = torch.tensor([token for row in written for token in row[1:]], dtype=torch.long, device=wanted.device)
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in BY_DRAFTER}
    for name, drafter in drafters.items():
        if hasattr(drafter, "read_ahead"):
            texts = [torch.cat([prompt, torch.tensor(row)]) for prompt, row in zip(prompts, written)]
            ranks, probs = ahead_of(drafter, target, texts, list(map(len, prompts)), ahead)
            found["ranks"][name], found["probs"][name] = ranks, probs
            continue
        scores = branched_logits(drafter, prompts, written)[:, : wanted.shape[1]].to(wanted.device)
        proposal = torch.softmax(scores / (temperature or 1.0), dim=-1)
        found["ranks"][name] = spread(rank_of(scores, said), EMPTY["ranks"], np.int32)
        found["probs"][name] = spread(_at(proposal, said))
        found["entropy"][name] = spread(_entropy(proposal))
        found["alpha"][name] = spread(torch.minimum(wanted, warp(scores, temperature)).sum(-1))
        if siblings:
            kept = chances(wanted, proposal, said, siblings, generator)
            found["chances"] |= {f"{name}|{rule}": spread(values) for rule, values in kept.items()}
    loops = np.array([loop_start(row) for row in written])
    chosen = {"target_probs": spread(_at(thought, said)), "target_entropy": spread(_entropy(thought))}
    return {"tokens": tokens, "lengths": lengths, "loops": loops, **chosen, **found}


def _entropy(probs: Tensor) -> Tensor:
    """Nats, float[S], of distributions [S, V]."""
    return -(probs * probs.clamp_min(1e-30).log()).sum(-1)


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(1, tokens[:, None])[:, 0]
