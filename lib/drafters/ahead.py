"""What a head says of known texts, for replay: ranks and probabilities by round start and depth ahead."""

from typing import Callable, Iterable, Sequence

import torch
from torch import Tensor

# (hidden states [1, T - 1, H] a layer of a text without its last token, text int64[T], start) ->
# logits [n, V] of d + 1 tokens ahead of each of the n = T - 1 - start roots, for d = 0, 1, ...
Speak = Callable[[Sequence[Tensor], Tensor, int], Iterable[Tensor]]


@torch.inference_mode()
def read(target, speak: Speak, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
    """Ranks int32[N, L, D] and probabilities float32[N, L, D] of the true tokens, D = depth, L the most roots of a
    text.

    texts[i] int64[T]; its roots are the tokens from starts[i] (at least 1) to the last but one. Entry [i, t, d] is of
    the token d + 1 places behind root t, among what the head says where a round starts at t and follows the text: rank
    0 its favourite, of equals the lower index first. Where the text has ended: -1 and 0. Depths that the head does not
    speak of: beyond every token's rank, and 0.
    """
    beyond = target.config.get_text_config().vocab_size
    most = max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
    ranks = torch.full((len(texts), most, depth), -1, dtype=torch.int32)
    probs = torch.zeros(len(texts), most, depth)
    for row, (text, start) in enumerate(zip(texts, starts)):
        count = len(text) - 1 - start
        if count < 1:
            continue
        for d in range(depth):
            ranks[row, : max(0, count - d), d] = beyond
        hidden = target(text[None, :-1].to(target.device), output_hidden_states=True, logits_to_keep=1).hidden_states
        for d, logits in zip(range(min(depth, count)), speak(hidden, text, start)):
            said = text[start + d + 1 :].to(logits.device)
            scores = logits[: len(said)].float() if logits.dtype != torch.float64 else logits[: len(said)]
            ranks[row, : len(said), d] = rank_of(scores, said).int().cpu()
            probs[row, : len(said), d] = scores.softmax(-1).gather(1, said[:, None])[:, 0].float().cpu()
    return ranks, probs


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank of tokens int64[S] in scores [S, V]: how many score higher, or as high with a lower index. int64[S]."""
    own = scores.gather(1, tokens[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < tokens[:, None]
    return (scores > own).sum(1) + ((scores == own) & lower).sum(1)
