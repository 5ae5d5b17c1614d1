"""Rules once more as their papers print them, slow and plain: the oracles of those in `lib.verify`."""

import torch

from lib.verify import Draft


def multi_step(draft: Draft, target, draws):
    """SpecInfer, Alg. 2, one list of draws with repeats."""
    tokens, node, accepted = draft.tokens.tolist(), 0, []
    while True:
        p, left = target[node], [
            child for child in draft.tree.children(node) for _ in range(draft.times_drawn()[child])
        ]
        while left:
            place = int(draws.categorical(torch.ones(len(left), dtype=torch.float64))) if len(left) > 1 else 0
            child = left.pop(place)
            x = tokens[child]
            if draws.uniform() < p[x] / draft.probs[node][x]:
                break
            p = normalised((p - draft.probs[node]).clamp_min(0), p)
        else:
            return accepted, draws.categorical(p)
        accepted.append(child)
        node = child


def without_replacement(draft: Draft, target, draws):
    """Sequoia, Alg. 2, with the residual and the draft distribution normalised after every rejection."""
    tokens, node, accepted = draft.tokens.tolist(), 0, []
    while True:
        r, d, tried = target[node], draft.probs[node], []
        for child in draft.tree.children(node):
            x = tokens[child]
            if draws.uniform() < r[x] / d[x]:
                break
            r = normalised((r - d).clamp_min(0), r)
            tried.append(x)
            d = d.clone()
            d[x] = 0
            if d.sum() == 0:
                d = torch.ones_like(d)
                d[tried] = 0
            d = normalised(d, d)
        else:
            return accepted, draws.categorical(r)
        accepted.append(child)
        node = child


def k_seq(draft: Draft, target, draws):
    """SpecTr's K-SEQ (Sun et al. 2023), its scale by bisection."""
    tokens, node, accepted = draft.tokens.tolist(), 0, []
    while True:
        p, q = target[node], draft.probs[node]
        left = [child for child in draft.tree.children(node) for _ in range(draft.times_drawn()[child])]
        if not left:
            return accepted, draws.categorical(p)
        low, high, k = 1.0, float(len(left)), len(left)
        for _ in range(60):
            rho = (low + high) / 2
            b = float(torch.minimum(p / rho, q).sum())
            low, high = (rho, high) if 1 - (1 - b) ** k > rho * b else (low, rho)
        b = float(torch.minimum(p / high, q).sum())
        while left:
            place = int(draws.categorical(torch.ones(len(left), dtype=torch.float64))) if len(left) > 1 else 0
            child = left.pop(place)
            x = tokens[child]
            if draws.uniform() < p[x] / (high * q[x]):
                break
        else:
            share = (1 - (1 - b) ** k) / b if b > 0 else 1.0
            return accepted, draws.categorical(normalised((p - torch.minimum(p / high, q) * share).clamp_min(0), p))
        accepted.append(child)
        node = child


def block(draft: Draft, target, draws):
    """Block verification (Sun et al. 2024), from the first token to the last."""
    tokens, length = draft.tokens.tolist(), draft.tree.budget
    weights, kept = [1.0], 0
    for i in range(1, length + 1):
        weights.append(min(1.0, weights[-1] * float(target[i - 1][tokens[i]] / draft.probs[i - 1][tokens[i]])))
    for i in range(1, length + 1):
        h = weights[i]
        if i < length:
            gain = float((weights[i] * target[i] - draft.probs[i]).clamp_min(0).sum())
            h = gain / (gain + (1 - weights[i])) if gain > 0 else 0.0
        if draws.uniform() < h:
            kept = i
    p = target[kept]
    if kept < length:
        p = normalised((weights[kept] * p - draft.probs[kept]).clamp_min(0), p)
    return list(range(1, kept + 1)), draws.categorical(p)


def traversal(draft: Draft, target, draws):
    """Traversal verification (Weng et al. 2025): take the first leaf in depth-first order, accept its path or delete
    it; start again."""
    tree, tokens = draft.tree, draft.tokens.tolist()
    p, q = [row.clone() for row in target], [row.clone() for row in draft.probs]
    left = {node: list(tree.children(node)) for node in range(tree.size)}
    own = [
        1.0
    ] * tree.size  # the weight that a node has got by losing children; the product rule below is for the others
    lost = [False] * tree.size

    def weight(node):
        if node == 0 or lost[node]:
            return own[node]
        above = int(tree.parents[node])
        return min(1.0, weight(above) * float(p[above][tokens[node]] / q[above][tokens[node]]))

    while True:
        leaf = 0
        while left[leaf]:
            leaf = left[leaf][0]
        if leaf == 0 or draws.uniform() < weight(leaf):
            return [int(node) for node in tree.path(leaf)[1:]], draws.categorical(p[leaf])
        above = int(tree.parents[leaf])
        left[above].remove(leaf)
        gain = (weight(above) * p[above] - q[above]).clamp_min(0)
        mass, before = float(gain.sum()), weight(above)
        own[above], lost[above] = (mass / (mass + (1 - before)) if mass > 0 else 0.0), True
        p[above] = normalised(gain, p[above])
        q[above][tokens[leaf]] = 0
        if q[above].sum() == 0:
            q[above] = torch.ones_like(q[above])
            q[above][[tokens[child] for child in tree.children(above) if child not in left[above]]] = 0
        q[above] = normalised(q[above], q[above])


def normalised(mass, otherwise):
    """mass / its sum, or `otherwise` where there is none."""
    return mass / mass.sum() if mass.sum() > 0 else otherwise
