"""Samples of several drafters merged into one tree, and SpecInfer's rule that knows who drew what."""

from dataclasses import dataclass, replace
from typing import Sequence

import torch
from torch import Tensor

from lib.trees.tree import ROOT, Tree
from lib.verify import siblings
from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws


@dataclass(frozen=True)
class Source:
    """One drafter's part of a merged draft of m nodes: probs float[m, V], what it drew a node's children from, and
    counts int64[m], how often it drew a node (0: it did not).
    """

    probs: Tensor
    counts: Tensor


@dataclass(frozen=True)
class SeveralDraft(Draft):
    """Independent samples of several drafters as one tree; `sources` keeps each drafter's proposal apart.

    Siblings are draws of different distributions, so that a rule which compares all with one q would be biased, and is
    refused; `probs` is the proposals' mean, for the eye alone.
    """

    sources: tuple[Source, ...] = ()

    def part(self, tree: Tree, nodes: list[int]) -> "SeveralDraft":
        """As of any draft, each drafter's proposal with it."""
        own = tuple(Source(source.probs[nodes], source.counts[nodes]) for source in self.sources)
        return replace(super().part(tree, nodes), sources=own)

    def proposals(self) -> Tensor:
        """Refused: there is no one distribution."""
        raise ValueError(f"the draft merges samples of {len(self.sources)} drafters, this rule compares with one; "
                         "verify with 'multi_step', which knows who drew what, or with 'naive'")


def merge_samples(drafts: Sequence[Draft]) -> SeveralDraft:
    """The union of drafts of one root, independent samples all ("iid"); common prefixes are one path."""
    if any(draft.proposal != "iid" for draft in drafts):
        raise ValueError(f"proposals are {', '.join(draft.proposal for draft in drafts)}; samples of several drafters "
                         "are merged where all are \"iid\"")
    place = {(): ROOT}
    parents, tokens, own = [-1], [int(drafts[0].tokens[ROOT])], []
    for draft in drafts:
        paths = {ROOT: ()}
        for node in range(1, draft.tree.size):
            above = paths[int(draft.tree.parents[node])]
            paths[node] = (*above, int(draft.tokens[node]))
            if paths[node] not in place:
                place[paths[node]] = len(parents)
                parents.append(place[above])
                tokens.append(paths[node][-1])
        own.append([place[paths[node]] for node in range(draft.tree.size)])
    sources = tuple(_source(draft, nodes, len(parents)) for draft, nodes in zip(drafts, own))
    counts = sum(source.counts for source in sources)
    counts[ROOT] = 1
    mean = sum(source.probs for source in sources) / len(drafts)
    return SeveralDraft(Tree(parents), torch.tensor(tokens), "iid", mean, counts, sources)


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2) for the samples of one drafter or several.

    The draws of a node's children, of all drafters and with repeats, are tried in random order: x of drafter s is
    accepted if U < p(x) / q_s(x), else p becomes the normalised (p - q_s)+. None left: emit from p.
    """
    if not isinstance(draft, SeveralDraft):
        return siblings.multi_step(draft, target_probs, draws)

    tokens = draft.tokens.tolist()

    def decide(node: int, children: tuple[int, ...]):
        p = target_probs[node]
        left = [(child, source) for source in draft.sources for child in children
                for _ in range(int(source.counts[child]))]
        while left:
            weights = torch.ones(len(left), dtype=torch.float64)
            child, source = left.pop(draws.categorical(weights) if len(left) > 1 else 0)
            q = source.probs[node].to(p)
            if draws.uniform() < p[tokens[child]] / q[tokens[child]]:  # what was drawn has q > 0
                return child, None
            p = _after_rejection(p, q)
        return None, draws.categorical(p)

    return descend(draft, target_probs, draws, decide)


def _after_rejection(p: Tensor, q: Tensor) -> Tensor:
    """The normalised (p - q)+; where p was q, which is never rejected, rounding alone comes here: p."""
    left = (p - q).clamp_min(0)
    mass = left.sum()
    return left / mass if mass > 0 else p


def _source(draft: Draft, nodes: list[int], size: int) -> Source:
    probs = draft.probs.new_zeros(size, draft.probs.shape[-1])
    probs[nodes] = draft.probs
    counts = torch.zeros(size, dtype=torch.long)
    counts[nodes] = torch.tensor(draft.times_drawn())
    return Source(probs, counts)
