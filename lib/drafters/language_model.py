"""A language model that fills a shape or grows a tree, one forward a level, with tree attention and its own cache."""

from functools import cached_property
from typing import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.operator import tree_forward
from lib.attention.switch import check_attention
from lib.drafters import native_fill, uncommitted
from lib.drafters.fill_plan import Level, plan
from lib.drafters.filling import Filling
from lib.drafters.growing import Growing, by_node, level_block
from lib.lab.forward_clock import forward
from lib.models.cache import TreeCache
from lib.models.fused import fused
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class LanguageModelDrafter:
    """Drafts with a causal language model (attn_implementation "tree").

    proposal: "top_k" (children are the most likely tokens), "iid" or "without_replacement" (samples at `temperature`).
    vocabulary: how many tokens the target knows, where the model has more (padding). keep_probs: whether "top_k" drafts
    carry the distributions, at `temperature`, that their children were chosen from; sampled ones always do.

    The cache holds what was forwarded: the prompt, then of each accepted path the nodes that had children. A leaf is
    never forwarded, so the last accepted node may be missing; it waits with the bonus token in the row's tail, and the
    next round's first forward takes the whole tail. `levels`: forwards that each row's last draft took, had it been
    alone; `calls` counts those of the batch, which goes on as long as its deepest row.
    """

    def __init__(self, model, *, proposal: str = "top_k", temperature: float = 1.0, vocabulary: int | None = None,
                 keep_probs: bool = False):
        if proposal != "top_k" and temperature <= 0:
            raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")
        self.model, self.proposal, self.temperature = model, proposal, temperature
        self.vocabulary, self.keep_probs = vocabulary, keep_probs
        self.calls = 0
        self.cache = TreeCache()

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held."""
        return self.cache.bytes

    @cached_property  # asked for in every round, and transformers takes its time
    def window(self) -> int | None:
        """Positions that the model has; None without a limit."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def knows(self) -> int:
        """Tokens that it may draft."""
        own = self.model.config.get_text_config().vocab_size
        return min(self.vocabulary or own, own)

    @torch.no_grad()
    def start(self, prompts: Sequence[Tensor]) -> None:
        """Prefills the prompts int64[T] in one right-padded forward."""
        check_attention(self.model)
        self.cache, self.blocks = TreeCache(), fused(self.model)
        said = self.model.get_output_embeddings().out_features
        self.choices = min(self.vocabulary or said, said)  # tokens to choose from
        tokens = pad_sequence(list(prompts), batch_first=True).to(self.model.device)
        self._check_window(tokens.shape[1])
        depth = torch.arange(tokens.shape[1], device=tokens.device)
        tree_forward(self.model, tokens, depth, None, self.cache, logits_to_keep=1)
        self.calls += 1
        self.cache.set_lengths(torch.tensor([len(prompt) for prompt in prompts]))
        self.tails: list[list[int]] = [[] for _ in prompts]  # committed tokens that the cache lacks, the root last
        self.drafts: list[Draft] = []
        self.levels = [0] * len(prompts)
        self.places: list[dict[int, int]] = [{} for _ in prompts]  # node -> place among the round's forwarded nodes

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """A static shape filled, or a tree grown by a rule, for every row, with one forward a level.

        With samples, repeated draws are one node and the tree is smaller; rows grow trees of their own.
        """
        if not isinstance(shape, Tree):
            self.drafts, self.places = self._grow(shape)
        elif getattr(self.blocks, "fills", False) and native_fill.suits(self, shape, self.choices):
            self.drafts, self.places = self._fill_at_once(shape)
        else:
            self.drafts, self.places = self._fill(shape, draws)
        return self.drafts

    def _fill_at_once(self, shape: Tree) -> tuple[list[Draft], list[dict[int, int]]]:
        """The likeliest children, all levels in one call."""
        tokens = self._tail_tokens(shape.max_depth)
        levels = native_fill.levels(shape, self.waiting)
        with forward():
            filled = self.blocks.fill(tokens, self.waiting.depth, self.waiting.mask, self.cache, levels, self.choices)
        self.calls += shape.max_depth
        self.levels = [shape.max_depth] * len(self.tails)
        return [Draft(shape, row, "top_k") for row in filled], [plan(shape).place] * len(self.tails)

    def _fill(self, shape: Tree, draws: Draws) -> tuple[list[Draft], list[dict[int, int]]]:
        roots, planned = [tail[-1] for tail in self.tails], plan(shape)
        filling = Filling(shape, roots, self.proposal, self.temperature, self.keep_probs)
        if shape.budget:
            filling.grow([ROOT], self._forward_tails(shape.max_depth), draws)
        for level in planned.levels:
            filling.grow(level.nodes, self._forward_planned(filling, level), draws)
        drafts, slots = filling.drafts()
        self.levels = [shape.max_depth] * len(roots)
        return drafts, [{node: planned.place[slot] for node, slot in enumerate(own) if slot in planned.place}
                        for own in slots]

    def _grow(self, rule: Growth) -> tuple[list[Draft], list[dict[int, int]]]:
        self._check_growth(rule)
        rows = [Growing(rule, tail[-1], self.temperature, self.keep_probs) for tail in self.tails]
        depth = forwarded = 0
        while any(map(len, levels := [row.next_level() for row in rows])):
            if depth == 0:
                logits = self._forward_tails(rule.max_depth)
            else:
                tokens, sees = level_block(rows, levels, forwarded)
                logits = self._forward_level(tokens, depth, sees)
                forwarded += tokens.shape[1]
            for row, nodes, own in zip(rows, levels, logits):
                if len(nodes):
                    row.grow(nodes, own[: len(nodes)])
            depth += 1
        self.levels = [row.levels for row in rows]
        drafts, places = zip(*(row.draft() for row in rows))
        return list(drafts), list(places)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Keeps the accepted nodes that were forwarded; the others, and the bonus token, wait for the next round."""
        self.advance(accepted, [[token] for token in bonus])

    def commit_of(self, drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int],
                  target_outputs=None) -> None:
        """Commits a round in which these drafts were verified, in some rows not its own, or for which it made none:
        of its own it keeps what lies on the accepted path.
        """
        kept = [draft.tokens_of(nodes) for draft, nodes in zip(drafts, accepted)]
        own = [draft.along(tokens) for draft, tokens in zip(self.drafts, kept)] or [[] for _ in kept]
        self.advance(own, [tokens[len(nodes):] + [token] for tokens, nodes, token in zip(kept, own, bonus)])

    def advance(self, accepted: list[list[int]], following: list[list[int]]) -> None:
        """As `commit`, with any number of tokens behind the accepted nodes, the last of them the new root."""
        forwarded, kept = bool(self.cache.pending), []
        for row, nodes in enumerate(accepted):
            held = [self.waiting.width + self.places[row][node] for node in nodes if node in self.places[row]]
            late = self.drafts[row].tokens_of(nodes[len(held):]) if len(held) < len(nodes) else []
            if forwarded:
                kept.append([*range(self.waiting.width - len(self.tails[row]), self.waiting.width), *held])
                self.tails[row] = []
            self.tails[row] += late + following[row]
        if forwarded:
            self.cache.commit(kept)
        self.drafts = []

    def select(self, rows: list[int]) -> None:
        """Lets the other rows leave the cache."""
        self.cache.select(torch.tensor(rows))
        self.tails = [self.tails[row] for row in rows]

    def _forward_tails(self, levels: int) -> Tensor:
        """The roots' logits [B, 1, V], behind all that the cache lacks; levels: as many as the tree may get."""
        tokens = self._tail_tokens(levels)
        return self._forward(tokens, self.waiting.depth, self.waiting.mask, logits_to_keep=1)

    def _tail_tokens(self, levels: int) -> Tensor:
        """The tokens int64[B, W] that the cache lacks, right-aligned so that every root has the same slot.

        levels: as many as the tree may get; the last of them is never forwarded.
        """
        self.waiting = uncommitted.layout(tuple(map(len, self.tails)))
        width = self.waiting.width
        texts = (held + len(tail) for held, tail in zip(self.cache.rows.as_list, self.tails))
        self._check_window(max(texts) + levels - 1)
        return torch.tensor([[0] * (width - len(tail)) + tail for tail in self.tails])

    def _forward_planned(self, filling: Filling, level: Level) -> Tensor:
        """The logits [B, k, V] of a level of a static shape, the same nodes in every row."""
        depth, mask = uncommitted.above(self.waiting, level)
        return self._forward(filling.tokens[:, level.slots], depth, mask)

    def _forward_level(self, tokens: Tensor, depth: int, sees: Tensor) -> Tensor:
        """The logits [B, k, V] of nodes int64[B, k] of one depth, which see the tail and, of the nodes forwarded behind
        it and of themselves, what `sees` bool[B, k, forwarded + k] says.
        """
        return self._forward(tokens, *uncommitted.level(self.waiting, depth, sees))

    def _forward(self, tokens: Tensor, depth: Tensor, mask: Tensor, **kwargs) -> Tensor:
        device = self.blocks.device
        self.calls += 1
        out = tree_forward(self.blocks, tokens.to(device), depth.to(device), mask.to(device), self.cache, **kwargs)
        return out.logits[..., : self.vocabulary]

    def _check_growth(self, rule: Growth) -> None:
        by_node(rule)
        if self.proposal != "top_k" or self.temperature <= 0:
            raise ValueError(f"{rule.name!r} takes the likeliest children by probability; the drafter's proposal is "
                             f"{self.proposal!r}, its temperature {self.temperature}: make one with 'top_k' and more "
                             "than 0, or give a static shape")

    def _check_window(self, needed: int) -> None:
        if self.window and needed > self.window:
            raise ValueError(f"the drafter needs {needed} positions, its window has {self.window}; shorten the prompt, "
                             "max_new_tokens or the tree, or take a drafter with a larger window")
