"""EAGLE: a one-layer head drafts by continuing the target's features (Li et al. 2024; EAGLE-3: Li et al. 2025)."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.attention.backends.mask import SharedMask
from lib.drafters import ahead, native_fill, uncommitted
from lib.drafters.fill_plan import plan
from lib.drafters.filling import Filling
from lib.drafters.growing import Growing, level_block
from lib.drafters.heads.eagle import FeatureHead, embed, unroll
from lib.drafters.heads.layers import Behind
from lib.drafters.marginals import hidden_states
from lib.lab.forward_clock import forward
from lib.models.cache import TreeCache
from lib.models.fused import output_layer, weights_of
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


def padded(rows: list[list[int]], width: int) -> Tensor:
    """Rows of at most so many numbers as int64[B, width], zeros behind."""
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


class EagleDrafter:
    """Drafts with an EAGLE head of either generation, one forward of it a level.

    proposal, temperature, keep_probs: as `LanguageModelDrafter` takes them.

    The head's cache holds one entry for each token behind a text's first, made of the target's own feature of the token
    before it. Entries of a round's newly committed tokens wait for the next round, whose first forward takes them all
    and ends in the root's; what a tree adds is forgotten, since its features were the head's guesses.
    """

    wants_hidden_states = True

    def __init__(self, target, head: FeatureHead, *, proposal: str = "top_k", temperature: float = 1.0,
                 keep_probs: bool = False):
        if proposal != "top_k" and temperature <= 0:
            raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")
        self.target, self.head, self.calls = target, head, 0
        self.proposal, self.temperature, self.keep_probs = proposal, temperature, keep_probs
        self.cache, self.output = TreeCache(), output_layer(target)
        self.made_of: tuple | None = None  # the weights that `layer` and `filler` were made of

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held."""
        return self.cache.bytes

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]; their features come with the first `commit`."""
        self.output = output_layer(self.target)
        if (made_of := (weights_of(self.head), weights_of(self.target))) != self.made_of:  # else what was made holds
            self.made_of, self.layer = made_of, Behind([self.head.layer])
            self.filler = native_fill.features(self.head, self.layer, self.target)
        self.prompts: list[Tensor] | None = list(prompts)
        self.cache = TreeCache()
        self.drafts: list[Draft] = []

    @property
    def name_or_path(self) -> str:
        """The folder of the head, where it came from one."""
        return getattr(self.head, "name_or_path", "")

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """A static shape filled, or a tree grown by a rule, for every row, with one forward a level.

        With samples, repeated draws are one node and the tree is smaller; rows grow trees of their own.
        """
        static = isinstance(shape, Tree)
        if static and self.filler is not None and native_fill.suits(self, shape, self.filler.choices):
            self.drafts = self._fill_at_once(shape)
            return self.drafts
        roots = [row[-1] for row in self.waiting]
        self.outputs = self._forward_waiting()[:, None]  # [B, 1 + forwarded nodes, H]: the root's, then by place
        self.drafts = self._fill(shape, roots, draws) if static else self._grow(shape, roots)
        return self.drafts

    def _fill_at_once(self, shape: Tree) -> list[Draft]:
        """The likeliest children, all levels in one call, behind the waiting entries, right-aligned."""
        counts = [len(row) for row in self.waiting]
        waiting = uncommitted.layout(tuple(counts))
        tokens = torch.tensor([[0] * (waiting.width - len(row)) + row for row in self.waiting])
        features = self.features.take_along_dim(waiting.depth[..., None], 1)
        self.calls += shape.max_depth
        with forward():
            x, read = self.head.enter(features, embed(self.head, self.target, tokens))
            filled = self.filler.fill_behind(tokens[:, -1], x, read, waiting.depth, self.cache,
                                             SharedMask(waiting.mask), native_fill.levels(shape, waiting))
        self.cache.commit([[*range(waiting.width - count, waiting.width)] for count in counts])
        return [Draft(shape, row, "top_k") for row in filled]

    def _fill(self, shape: Tree, roots: list[int], draws: Draws) -> list[Draft]:
        planned = plan(shape)
        filling = Filling(shape, roots, self.proposal, self.temperature, self.keep_probs)
        if shape.budget:
            filling.grow([ROOT], self._logits(self.outputs), draws)
        for level in planned.levels:
            features, tokens = self.outputs[:, level.above], filling.tokens[:, level.slots]
            filling.grow(level.nodes, self._forward_level(features, tokens, level.depth, level.sees), draws)
        return filling.drafts()[0]

    def _grow(self, rule: Growth, roots: list[int]) -> list[Draft]:
        if not hasattr(rule, "expand") or self.proposal != "top_k" or self.temperature <= 0:
            raise ValueError(f"{rule.name!r} cannot grow a tree here: EAGLE gives one distribution a node, of which a "
                             f"rule takes the likeliest children; the drafter's proposal is {self.proposal!r}, its "
                             f"temperature {self.temperature}. Take a rule such as 'eagle2:4,6@32', 'top_k' and more "
                             "than 0, or a static shape")
        rows = [Growing(rule, root, self.temperature, self.keep_probs) for root in roots]
        depth = 0
        while any(map(len, levels := [row.next_level() for row in rows])):
            logits = self._logits(self.outputs) if depth == 0 else self._forward_grown(rows, levels, depth)
            for row, nodes, own in zip(rows, levels, logits):
                if len(nodes):
                    row.grow(nodes, own[: len(nodes)])
            depth += 1
        return [row.draft()[0] for row in rows]

    def _forward_grown(self, rows: list[Growing], levels: Sequence[np.ndarray], depth: int) -> Tensor:
        tokens, sees = level_block(rows, levels, self.outputs.shape[1] - 1)
        above = torch.zeros_like(tokens)
        for row, nodes, own in zip(rows, levels, above):
            parents = row.candidates.parents[nodes].tolist()
            own[: len(nodes)] = torch.tensor([1 + row.place.get(parent, -1) for parent in parents])
        features = self.outputs.take_along_dim(above[..., None].to(self.outputs.device), 1)
        return self._forward_level(features, tokens, depth, sees)

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Forgets the tree, and keeps features and tokens of what was accepted; first of all those of the prompts."""
        with forward():
            features = self.head.read(hidden_states(target_outputs))
        if self.prompts is None:
            self.cache.forget()
            said = [[*draft.tokens_of(nodes), token]
                    for draft, nodes, token in zip(self.drafts, accepted, bonus)]
            self._wait(features, [[ROOT, *nodes] for nodes in accepted], said)
            self.drafts = []
            return
        said = [[*prompt[1:].tolist(), token] for prompt, token in zip(self.prompts, bonus)]
        self._wait(features, [list(range(len(tokens))) for tokens in said], said)
        self._forward_prompts()
        self.prompts = None

    @torch.no_grad()
    def commit_of(self, drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int],
                  target_outputs=None) -> None:
        """Commits a round in which these drafts were verified in the place of its own; what waited is forwarded, if it
        made none."""
        if not self.drafts:
            self._forward_waiting()
        self.drafts = list(drafts)
        self.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Lets the other rows leave the cache."""
        self.cache.select(torch.tensor(rows))
        self.features, self.waiting = self.features[rows], [self.waiting[row] for row in rows]

    def _wait(self, features: Tensor, slots: list[list[int]], tokens: list[list[int]]) -> None:
        """Entries for the next forward: features [B, W, H] at these slots, right-padded, and the tokens behind them."""
        places = padded(slots, max(map(len, slots))).to(features.device)
        self.features, self.waiting = features.take_along_dim(places[..., None], 1), tokens

    def _forward_prompts(self) -> None:
        """Caches all but the entries of the roots, which wait alone."""
        last = torch.tensor([len(row) - 1 for row in self.waiting], device=self.features.device)
        roots = self.features[torch.arange(len(last), device=last.device), last][:, None]
        if int(last.max()):
            texts, self.waiting = self.waiting, [row[:-1] for row in self.waiting]
            self.features = self.features[:, :-1]
            self._forward_waiting()
            self.waiting = texts
        self.features, self.waiting = roots, [row[-1:] for row in self.waiting]

    def _forward_waiting(self) -> Tensor:
        """Commits the waiting entries to the cache; the head's output at each row's last one, [B, H]."""
        tokens, counts = padded(self.waiting, self.features.shape[1]), [len(row) for row in self.waiting]
        out = self._forward(self.features, tokens, torch.arange(tokens.shape[1]), None)
        self.cache.commit([list(range(count)) for count in counts])
        return out[torch.arange(len(out)), torch.tensor(counts) - 1]

    def _forward_level(self, features: Tensor, tokens: Tensor, depth: int, sees: Tensor) -> Tensor:
        """The logits [B, k, V] of nodes int64[B, k] of one depth.

        features [B, k, H]: the outputs at their parents. sees bool[k, forwarded + k] or [B, ...]: what they see beside
        the text, of the nodes forwarded before and of their own level.
        """
        out = self._forward(features, tokens, torch.full(tokens.shape[1:], depth - 1), sees)
        self.outputs = torch.cat([self.outputs, out], dim=1)
        return self._logits(out)

    def _forward(self, features: Tensor, tokens: Tensor, offsets: Tensor, sees: Tensor | None) -> Tensor:
        self.calls += 1
        device = features.device
        with forward():
            x, read = self.head.enter(features, embed(self.head, self.target, tokens.to(device)))
            sees = None if sees is None else sees.to(device)
            return self.layer(x, offsets.to(device), self.cache, sees, read)

    def _logits(self, features: Tensor) -> Tensor:
        with forward():
            return self.head.logits(self.head.states(features), self.output)

    @torch.no_grad()
    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """What the head says d + 1 tokens ahead of every root of known texts: see `lib.drafters.ahead.read`."""
        def speak(hidden: Sequence[Tensor], text: Tensor, start: int):
            features = self.head.read(hidden)
            padded = torch.cat([text[1:], text.new_zeros(depth)])[None].to(features.device)
            for out in unroll(self.head, self.target, features, padded, depth):
                yield self._logits(out[0, start - 1 : len(text) - 2])

        return ahead.read(target, speak, texts, starts, depth)
