"""Reading continuations that exist: the target and the drafters compute each token's rank and probability.

Each model needs one large teacher-forced forward pass for each batch.
"""

from typing import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.registration import check_attention, tree_forward
from lib.decoding.checks import token_set
from lib.drafters.drafter import Drafter
from lib.drafters.filling import rank_of
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.replay.expectation import chances
from lib.replay.trace import BY_DRAFTER, PADDING, Trace, join, loop_start
from lib.verify.warping import warp

MOST_PROBABILITIES = 1 << 26  # of one model in memory at the same time
MOST_ROWS = 32
AHEAD = 8  # depths that are read of a drafter that proposes several tokens ahead


@torch.inference_mode()
def read(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], written: Sequence[Sequence[int]], *,
         names: Sequence[str], kinds: Sequence[str], temperature: float = 0.0,
         about: Mapping[str, object] | None = None, limit: int | None = None,
         eos_token_id: int | Sequence[int] | None = None, ahead: int = AHEAD, siblings: int = 0,
         generator: torch.Generator | None = None) -> Trace:
    """The trace of continuations that exist already, each at least a root.

    drafters: causal language models of the target's vocabulary with tree attention, whose proposal depends on the path
        alone, or drafters with `read_ahead`.
    written: the continuation of each prompt int64[T], its root first.
    names, kinds: of each prompt.
    limit: the transitions at which rounds may start (see `Trace.lengths`); None: all.
    eos_token_id: the tokens that end a text.
    ahead: how many tokens ahead `read_ahead` is read.
    siblings: the largest number of sampled children of a node for which `chances` are kept (see `expectation`), which
        needs a temperature above 0 and a generator; 0 for none.
    ValueError names the argument that does not fit.
    """
    check_models(target, drafters)
    check_prompts(target, prompts, names, kinds)
    if len(written) != len(prompts) or not all(map(len, written)):
        raise ValueError(f"continuations of {list(map(len, written))} tokens for {len(prompts)} prompts; give one for "
                         "each, with at least its root")
    if siblings and (not temperature or generator is None):
        raise ValueError(f"siblings is {siblings} at temperature {temperature} with generator {generator}; sampled "
                         "children need a temperature above 0 and a torch.Generator")
    longest, eos = max(map(len, written)), token_set(eos_token_id)
    rows = max(1, min(MOST_ROWS, MOST_PROBABILITIES // (longest * _vocabulary(target))))
    parts = []
    for first in range(0, len(written), rows):
        batch = slice(first, first + rows)
        texts = written[batch]
        arrays = _read(target, drafters, prompts[batch], texts, temperature, ahead, siblings, generator)
        before = [text if limit is None else text[: limit + 1] for text in texts]
        parts.append(Trace(**arrays, lengths=np.array([len(text) - 1 for text in before]),
                           ended=np.array([text[-1] in eos for text in texts]),
                           loops=np.array([loop_start(text) for text in before]),
                           prompts=tuple(names[batch]), kinds=tuple(kinds[batch]),
                           about=dict(about or {}, temperature=temperature)))
    return join(parts)


def check_prompts(target, prompts: Sequence[Tensor], names: Sequence[str], kinds: Sequence[str]) -> None:
    """ValueError if there is no prompt, a prompt that the target cannot read, or not one name and kind for each."""
    if not len(prompts):
        raise ValueError("there is no prompt: give at least one")
    if len(names) != len(prompts) or len(kinds) != len(prompts):
        raise ValueError(f"{len(names)} names and {len(kinds)} kinds for {len(prompts)} prompts: give one of both for "
                         "each prompt")
    size = _vocabulary(target)
    for row, prompt in enumerate(prompts):
        if prompt.dim() != 1 or not len(prompt):
            raise ValueError(f"prompt {row} has shape {tuple(prompt.shape)}: give int64[T], at least one token")
        outside = prompt[(prompt < 0) | (prompt >= size)].tolist()
        if outside:
            raise ValueError(f"prompt {row} has token {outside[0]}, the target's tokens are 0 to {size - 1}: use the "
                             "target's own tokenizer")


def check_models(target, drafters: Mapping[str, object]) -> None:
    """ValueError for a model without tree attention, a drafting model with a smaller vocabulary than the target's, and
    a drafter that is neither a model nor reads ahead, so that a trace does not determine its drafts.
    """
    models = language_models(drafters)
    for name, model in models.items():
        if isinstance(model, Drafter) or not callable(model):
            raise ValueError(
                f"drafter {name!r} is a {type(model).__name__}, which cannot be recorded in a trace; give a language "
                "model itself, such as pair.draft_model, or a drafter that defines read_ahead"
            )
    for model in (target, *models.values()):
        check_attention(model)
    for name, model in models.items():
        if _vocabulary(model) < _vocabulary(target):
            raise ValueError(f"drafter {name!r} has {_vocabulary(model)} tokens, the target {_vocabulary(target)}: "
                             "load both with lib.models.load_pair, which cuts the target's padding")


def language_models(drafters: Mapping[str, object]) -> dict[str, object]:
    """Those of a trace's drafters that do not read ahead: language models."""
    return {name: drafter for name, drafter in drafters.items() if not _reads_ahead(drafter)}


def _reads_ahead(drafter) -> bool:
    return isinstance(drafter, Drafter) and drafter.reads_ahead


def _vocabulary(model) -> int:
    return model.config.get_text_config().vocab_size


def branched_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]]) -> Tensor:
    """[S, V]: a model's logits at every transition of the rows, row by row.

    Prompts that share a beginning are prefilled once, and only transitions pass through the output layer.
    """
    counts = [len(row) - 1 for row in written]
    cache = prefill(forward_pass(model, "layers"), prompts).cache
    block = pad_sequence([torch.tensor(row[:-1] or [0]) for row in written], batch_first=True).to(model.device)
    depth = torch.arange(block.shape[1], device=block.device)
    return _flat(tree_forward(model, block, depth, None, cache).logits, [0] * len(written), counts)


def plain_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]]) -> Tensor:
    """The oracle of `branched_logits`: one forward pass over each row's whole text."""
    texts = [torch.cat([prompt, torch.tensor(row[:-1] or [0])]) for prompt, row in zip(prompts, written)]
    logits = model(pad_sequence(texts, batch_first=True).to(model.device)).logits
    return _flat(logits, list(map(len, prompts)), [len(row) - 1 for row in written])


def _flat(logits: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return torch.cat([row[start : start + count] for row, start, count in zip(logits, starts, counts)])


def _read(
    target, drafters, prompts, written, temperature: float, ahead: int, siblings: int, generator
) -> dict[str, object]:
    """The arrays of one batch's trace, without lengths and loops."""
    ends = np.array([len(row) - 1 for row in written])
    width = max(1, int(ends.max()))
    tokens = np.full((len(written), width + 1), PADDING["tokens"], dtype=np.int32)
    for i, row in enumerate(written):
        tokens[i, : len(row)] = row
    inside = np.arange(width)[None] < ends[:, None]

    def spread(values: Tensor, fill: float = 0, kind=np.float32, places: np.ndarray = inside) -> np.ndarray:
        array = np.full((*inside.shape, *values.shape[1:]), fill, kind)
        array[places] = values.cpu().numpy()
        return array

    logits = branched_logits(target, prompts, written)
    warped = warp(logits, temperature)
    target_law = warped if temperature else torch.softmax(logits, dim=-1)  # a one-hot shows no confidence
    true = torch.tensor([token for row in written for token in row[1:]], dtype=torch.long, device=warped.device)
    arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in BY_DRAFTER}
    texts = [torch.cat([prompt, torch.tensor(row)]) for prompt, row in zip(prompts, written)]
    reading = {name: drafter for name, drafter in drafters.items() if _reads_ahead(drafter)}
    for name, (ranks, probs) in _all_ahead(reading, target, texts, list(map(len, prompts)), ahead).items():
        arrays["ranks"][name], arrays["probs"][name] = ranks, probs
    for name, drafter in language_models(drafters).items():
        room, known = _held(drafter, prompts, inside)
        arrays["rooms"] |= {} if room is None else {name: room}
        held = torch.from_numpy(known[inside]).to(warped.device)
        law, token = (warped, true) if bool(held.all()) else (warped[held], true[held])
        scores = _known_logits(drafter, prompts, written, known.sum(1), warped)
        proposal = torch.softmax(scores / (temperature or 1.0), dim=-1)
        ranks = spread(rank_of(scores, token), PADDING["ranks"], np.int32, known)
        arrays["ranks"][name] = np.where(inside & ~known, warped.shape[1], ranks).astype(np.int32)
        arrays["probs"][name] = spread(_at(proposal, token), places=known)
        arrays["alpha"][name] = spread(torch.minimum(law, warp(scores, temperature)).sum(-1), places=known)
        if siblings:
            by_rule = chances(law, proposal, token, siblings, generator)
            arrays["chances"] |= {f"{name}|{rule}": spread(values, places=known) for rule, values in by_rule.items()}
    return {"tokens": tokens, "target_probs": spread(_at(target_law, true)), **arrays}


def window_of(model) -> int | None:
    """Positions that a model has; None without a limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _held(model, prompts: Sequence[Tensor], inside: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The tokens that a model's window holds after each prompt, int64[N], None without a limit; and which of the
    transitions inside the texts, bool[N, L], have all their text in it.
    """
    window = window_of(model)
    if not window:
        return None, inside
    room = np.array([window - len(prompt) for prompt in prompts], dtype=np.int64)
    return room, inside & (np.arange(inside.shape[1])[None] < room[:, None])


def _known_logits(model, prompts: Sequence[Tensor], written: Sequence[Sequence[int]], counts: np.ndarray,
                  like: Tensor) -> Tensor:
    """[S, V]: a model's logits at the first `counts` transitions of each row, of the tokens and on the device of `like`
    [.., V].
    """
    rows, window = np.flatnonzero(counts), window_of(model)
    kept = [(prompts[row], written[row][: counts[row] + 1]) for row in rows]
    longest = max((len(prompt) for prompt, _ in kept), default=0) + counts.max(initial=0)
    # A batch reads its padding too, for which a window may have no position.
    groups = [[each] for each in kept] if window and longest > window else [kept] if kept else []
    parts = [branched_logits(model, *zip(*group))[:, : like.shape[1]].to(like.device) for group in groups]
    return torch.cat(parts) if parts else like[:0]


class _OneText:
    """A target that keeps its last outputs, so that several heads need one forward pass of a text."""

    def __init__(self, target):
        self.target, self.asked, self.tokens, self.outputs = target, None, None, None

    def __getattr__(self, name: str):
        return getattr(self.target, name)

    def __call__(self, tokens: Tensor, **settings):
        if self.asked != settings or not torch.equal(tokens, self.tokens):
            self.asked, self.tokens, self.outputs = settings, tokens, self.target(tokens, **settings)
        return self.outputs


def _all_ahead(drafters: Mapping[str, Drafter], target, texts: Sequence[Tensor], starts: Sequence[int],
               depth: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`_ahead` of each drafter; text by text, since heads read the same hidden states of the target."""
    once, width = _OneText(target), max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
    found = {name: (np.full((len(texts), width, depth), PADDING["ranks"], np.int32),
                    np.zeros((len(texts), width, depth), np.float32)) for name in drafters}
    for row, (text, start) in enumerate(zip(texts, starts)):
        for name, drafter in drafters.items():
            for whole, own in zip(found[name], _ahead(drafter, once, [text], [start], depth)):
                whole[row, : own.shape[1]] = own[0]
    return found


def _ahead(drafter: Drafter, target, texts: Sequence[Tensor], starts: Sequence[int],
           depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The checked result of `read_ahead`; ValueError for a wrong shape, or for -1 elsewhere than after a row's end."""
    ranks, probs = (values.cpu().numpy() for values in drafter.read_ahead(target, texts, starts, depth))
    counts = np.array([len(text) - 1 - start for text, start in zip(texts, starts)])
    shape = (len(texts), max(1, int(counts.max(initial=0))), depth)
    if ranks.shape != shape or probs.shape != shape:
        raise ValueError(f"read_ahead of {type(drafter).__name__} gave ranks {ranks.shape} and probs {probs.shape}, "
                         f"but [rows, transitions, depth] are {shape}; see lib.drafters.drafter.Drafter.read_ahead")
    ended = np.add.outer(np.arange(shape[1]), np.arange(depth))[None] >= counts[:, None, None]
    if ((ranks < 0) != ended).any():
        raise ValueError(f"read_ahead of {type(drafter).__name__} must give rank -1 after a row's end and nowhere "
                         "else; give a token that the drafter cannot propose a rank beyond all others")
    return ranks.astype(np.int32), probs.astype(np.float32)


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(1, tokens[:, None])[:, 0]
