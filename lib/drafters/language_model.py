"""A language model that fills a static shape, one forward a level, through tree attention and a cache of its own."""

from typing import Sequence

import torch
from torch import Tensor

from lib.attention import tree_forward
from lib.cache import TreeCache
from lib.drafters import proposals
from lib.drafters.slots import Level, Plan, plan
from lib.tree import ROOT, Tree
from lib.verify import Draft, Draws, warp


class LanguageModelDrafter:
    """Drafts with a causal language model (attn_implementation "tree").

    proposal: "top_k" (children are the most likely tokens), "iid" or "without_replacement" (samples at `temperature`).
    vocabulary: how many tokens the target knows, where the model has more (padding).
    """

    def __init__(self, model, *, proposal: str = "top_k", temperature: float = 1.0, vocabulary: int | None = None):
        if proposal != "top_k" and temperature <= 0:
            raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")
        self.model, self.proposal, self.temperature, self.vocabulary = model, proposal, temperature, vocabulary
        self.calls = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held."""
        return self.cache.bytes

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Prefills the prompts int64[T] in one right-padded forward."""
        self.cache = TreeCache()
        tokens = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True).to(self.model.device)
        depth = torch.arange(tokens.shape[1], device=tokens.device)
        tree_forward(self.model, tokens, depth, None, self.cache, logits_to_keep=1)
        self.calls += 1
        self.cache.set_lengths(torch.tensor([len(prompt) for prompt in prompts]))
        self.tails: list[list[int]] = [[] for _ in prompts]  # committed tokens that the cache does not hold; the root is the last
        self.shape = Tree([-1])
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape filled for every row; with samples, repeated draws are one node and the tree is smaller."""
        self.shape, steps = shape, plan(shape)
        if not shape.budget:
            self.drafts = [Draft(shape, torch.tensor(tail[-1:]), self.proposal, torch.zeros(1, 1)) for tail in self.tails]
            return self.drafts
        filling = _Filling(shape, [tail[-1] for tail in self.tails], self.proposal, self.temperature)
        filling.grow([ROOT], self._forward_tails(), draws)
        for level in steps.levels:
            filling.grow(level.nodes, self._forward_level(level, filling.tokens), draws)
        self.drafts, self.slots = filling.drafts()
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Keeps the accepted nodes that were forwarded; the others, and the bonus token, wait for the next round."""
        self.advance(accepted, [[token] for token in bonus])

    def advance(self, accepted: list[list[int]], following: list[list[int]]) -> None:
        """As `commit`, with any number of tokens behind the accepted nodes, the last of them the new root."""
        place = plan(self.shape).place
        kept = []
        for row, nodes in enumerate(accepted):
            slots = [self.slots[row][node] for node in nodes]
            forwarded = [place[slot] for slot in slots if slot in place]
            late = self.drafts[row].tokens[nodes[len(forwarded):]].tolist() if nodes else []
            held = range(self.width - len(self.tails[row]), self.width) if self.cache.pending else ()
            kept.append([*held, *(self.width + index for index in forwarded)])
            self.tails[row] = ([] if self.cache.pending else self.tails[row]) + late + following[row]
        if self.cache.pending:
            counts = torch.tensor([len(slots) for slots in kept])
            self.cache.keep(torch.nn.utils.rnn.pad_sequence([torch.tensor(slots) for slots in kept], batch_first=True), counts)

    def select(self, rows: list[int]) -> None:
        """Lets the other rows leave the cache."""
        self.cache.select(torch.tensor(rows))
        self.tails = [self.tails[row] for row in rows]

    def _forward_tails(self) -> Tensor:
        """The tokens that the cache lacks, right-aligned so that every root has the same slot; the root's logits [B, 1, V]."""
        self.width = max(map(len, self.tails))
        lengths = torch.tensor([len(tail) for tail in self.tails])
        tokens = torch.tensor([[0] * (self.width - len(tail)) + tail for tail in self.tails])
        depth = (torch.arange(self.width) - (self.width - lengths[:, None])).clamp_min(0)
        self.offsets = lengths - 1  # the root's distance from the cache's end
        real = torch.arange(self.width) >= self.width - lengths[:, None]
        self.visible = real  # bool[B, width]: what is no padding
        mask = torch.ones(self.width, self.width, dtype=torch.bool).tril() & real[:, None] | torch.eye(self.width, dtype=torch.bool)
        return self._forward(tokens, depth, mask, logits_to_keep=1)

    def _forward_level(self, level: Level, tokens: Tensor) -> Tensor:
        """The logits [B, k, V] of a level's nodes, which see the tail, their ancestors and themselves."""
        nodes = list(level.nodes)
        rows = len(self.tails)
        depth = self.offsets[:, None] + int(self.shape.depth[nodes[0]])
        sees = torch.cat([self.visible[:, None].expand(-1, len(nodes), -1), level.sees.expand(rows, -1, -1)], dim=-1)
        return self._forward(tokens[:, nodes], depth.expand(-1, len(nodes)), sees)

    def _forward(self, tokens: Tensor, depth: Tensor, mask: Tensor, **kwargs) -> Tensor:
        device = self.model.device
        self.calls += 1
        mask = mask[0] if len(mask) == 1 else mask
        logits = tree_forward(self.model, tokens.to(device), depth.to(device), mask.to(device), self.cache, **kwargs).logits
        return logits[..., : self.vocabulary].cpu()


class _Filling:
    """A shape while it is filled: tokens int64[B, m] by slot (a node of the shape), and what was drawn where."""

    def __init__(self, shape: Tree, roots: list[int], proposal: str, temperature: float):
        self.shape, self.proposal, self.temperature = shape, proposal, temperature
        self.tokens = torch.zeros(len(roots), shape.size, dtype=torch.long)
        self.tokens[:, ROOT] = torch.tensor(roots)
        self.probs: list[dict[int, Tensor]] = [{} for _ in roots]
        self.counts: list[dict[int, int]] = [{ROOT: 1} for _ in roots]  # slots that hold a node, and its times drawn

    def grow(self, slots: Sequence[int], logits: Tensor, draws: Draws) -> None:
        """Gives these slots their children, from logits [B, len(slots), V]."""
        if self.proposal == "top_k":
            self._best(slots, logits)
            return
        probs = warp(logits, self.temperature)
        for row in range(len(probs)):
            for index, slot in enumerate(slots):
                if slot in self.counts[row]:
                    self._sample(row, slot, probs[row, index], draws)

    def drafts(self) -> tuple[list[Draft], list[list[int]]]:
        """The drafts, and for each the slot of every node."""
        if self.proposal == "top_k":
            every = list(range(self.shape.size))
            return [Draft(self.shape, tokens, "top_k") for tokens in self.tokens], [every] * len(self.tokens)
        pairs = [self._compact(row) for row in range(len(self.tokens))]
        return [draft for draft, _ in pairs], [slots for _, slots in pairs]

    def _best(self, slots: Sequence[int], logits: Tensor) -> None:
        children = [list(self.shape.children(slot)) for slot in slots]
        most = max(int(self.shape.rank[nodes].max()) for nodes in children) + 1
        best = proposals.top_tokens(logits.flatten(0, 1), most).view(*logits.shape[:2], -1)
        for index, nodes in enumerate(children):
            self.tokens[:, nodes] = best[:, index, torch.tensor(self.shape.rank[nodes])]

    def _sample(self, row: int, slot: int, probs: Tensor, draws: Draws) -> None:
        children = self.shape.children(slot)
        self.probs[row][slot] = probs
        if self.proposal == "iid":
            tokens, counts = proposals.independent(probs, len(children), draws)
        else:
            tokens = proposals.distinct(probs, len(children), draws)
            counts = [1] * len(tokens)
        for child, token, count in zip(children, tokens, counts):
            self.tokens[row, child] = token
            self.counts[row][child] = count

    def _compact(self, row: int) -> tuple[Draft, list[int]]:
        slots = sorted(self.counts[row])
        node = {slot: index for index, slot in enumerate(slots)}
        tree = Tree([-1] + [node[int(self.shape.parents[slot])] for slot in slots[1:]])
        vocabulary = next(iter(self.probs[row].values())).shape[-1]
        probs = torch.zeros(len(slots), vocabulary, dtype=next(iter(self.probs[row].values())).dtype)
        for slot, drawn_from in self.probs[row].items():
            probs[node[slot]] = drawn_from
        counts = torch.tensor([self.counts[row][slot] for slot in slots])
        return Draft(tree, self.tokens[row, slots], self.proposal, probs, counts), slots
