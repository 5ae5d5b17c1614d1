"""The outputs of heads, computed plainly from a row's whole text: no cache, no batch, attention written out."""

import numpy as np
import torch
from torch import Tensor

from lib.drafters.heads.eagle3 import Eagle3Head, continued
from lib.drafters.heads.layers import embed
from lib.drafters.heads.marginals import MedusaHeads
from lib.trees import ROOT, growth


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention by its formula, heads one by one."""
    group, length = query.shape[1] // key.shape[1], query.shape[2]
    out = []
    for h in range(query.shape[1]):
        scores = query[0, h] @ key[0, h // group].T / query.shape[-1] ** 0.5
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        out.append(scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value[0, h // group])
    return torch.stack(out, dim=1)[None]


def features_of(head, target, text: list[int]) -> Tensor:
    """The head's features [1, T, H] of a text, from a forward pass of the target over all of it."""
    return head.read(target(torch.tensor([text]), output_hidden_states=True).hidden_states)


def logits_after(head, target, text: list[int], path: list[int]) -> Tensor | None:
    """A head's logits float[V] after a committed text and a drafted path: a whole forward pass per token; None beyond
    the head's depth, and minus infinity for tokens that it does not draft.
    """
    if isinstance(head, Eagle3Head):
        logits = eagle_logits(head, target, text, path)
    elif len(path) >= head.depth:
        return None
    else:
        logits = depth_logits(head, target, text, len(path))
    if (markov := getattr(head, "markov_head", None)) is not None:
        before, known = [*text, *path][-1], range(len(logits)) if head.tokens is None else head.tokens.tolist()
        row = known.index(before) if before in known else len(known)
        logits[list(known)] += markov.markov_w1.weight[row] @ markov.markov_w2.weight.T
    if head.tokens is not None:
        logits[[token for token in range(len(logits)) if token not in head.tokens]] = float("-inf")
    return logits


def depth_logits(head, target, text: list[int], depth: int) -> Tensor:
    """The logits float[V] of a head with one distribution per depth, `depth` + 1 tokens after a text's last one."""
    hidden = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    if isinstance(head, MedusaHeads):
        return target.lm_head(head.states(hidden[-1][0, -1])[depth])
    root = target.get_input_embeddings()(torch.tensor([text[-1:]]))
    return target.lm_head(head.states_along(head.read(hidden), root, torch.tensor([len(text) - 1]))[0, 0, depth])


def eagle_logits(head, target, text: list[int], path: list[int]) -> Tensor:
    """An EAGLE head's logits float[V], before any are left out."""
    features = features_of(head, target, text[:-1])
    for known in range(len(path) + 1):
        tokens = torch.tensor([text[1:] + path[:known]])
        places = torch.arange(tokens.shape[1])[None]
        out = continued(head, features, embed(head, target, tokens), places, attend)[:, -1:]
        features = torch.cat([features, out], dim=1)
    return by_own_layer(head, target, head.states(out)[0, 0])


def by_own_layer(head, target, state: Tensor) -> Tensor:
    """The logits float[V] of a state, by the head's own output layer if it has one."""
    if head.lm_head is None:
        return target.lm_head(state)
    logits = torch.full((head.config.vocab_size,), float("-inf"), dtype=state.dtype)
    logits[list(range(len(logits))) if head.tokens is None else head.tokens] = head.lm_head(state)
    return logits


def filled(head, target, text: list[int], shape) -> Tensor:
    """The tokens int64[m] that fill a shape after a committed text."""
    tokens = torch.tensor([text[-1]] + [0] * shape.budget)
    for node in range(shape.size):
        children = list(shape.children(node))
        if children:
            path = tokens[list(shape.path(node))[1:]].tolist()
            order = logits_after(head, target, text, path).sort(descending=True, stable=True).indices
            tokens[children] = order[torch.tensor(shape.rank[children])]
    assert tokens[ROOT] == text[-1]
    return tokens


def grown(head, target, text: list[int], rule) -> tuple:
    """The tree that a growth rule makes after a committed text, and its tokens."""
    tokens = {0: text[-1]}

    def children(candidates, nodes):
        first, rows = len(candidates.parents), []
        for node in nodes.tolist():
            path, above = [], node
            while above:
                path.insert(0, tokens[above])
                above = int(candidates.parents[above])
            best = logits_after(head, target, text, path).double().softmax(-1).sort(descending=True, stable=True)
            width = min(rule.width, len(best.values))
            tokens.update((first + len(rows) * width + rank, int(best.indices[rank])) for rank in range(width))
            rows.append(best.values[:width].numpy())
        return np.stack(rows)

    made = growth.grow(rule, children)
    return made.tree, [tokens[node] for node in made.nodes.tolist()]
