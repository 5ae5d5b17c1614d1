"""EAGLE-3: a one-layer head drafts by continuing features of the target (Li et al. 2025)."""

from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import added_tokens
from lib.drafters.filling import Filling
from lib.drafters.head_drafter import HeadDrafter, hidden_states
from lib.drafters.heads.eagle3 import unroll
from lib.drafters.heads.layers import CachedLayers, embed
from lib.drafters.heads.native_fill import head_fill
from lib.drafters.levels import Level, native_levels
from lib.lab.timing import forward
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


def padded(rows: list[list[int]], width: int) -> Tensor:
    """Rows of at most `width` numbers as int64[B, width], padded with zeros on the right."""
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


class Eagle3Drafter(HeadDrafter):
    """Drafts with an EAGLE-3 head, with one forward pass of the head per level.

    The head's cache holds one entry for each token after a text's first, made of the target's own feature of the token
    before it. Entries of newly committed tokens wait for the next round, whose first forward pass takes them all and
    ends in the root's; the entries of a tree are forgotten, since its features were the head's guesses.
    """

    idle_passes = 1

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]; their features come with the first `commit`."""
        super().start(prompts)
        self.prompts: list[Tensor] | None = list(prompts)

    def _renew_layers(self) -> None:
        embedding = self.head.embed_tokens
        self.layer = CachedLayers([self.head.layer], self.head.output_norm)
        self.filling = head_fill(self.head, self.output,
                                 self.target.get_input_embeddings() if embedding is None else embedding)

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row a static shape filled, or a tree grown by a rule, with one forward pass per level.

        With samples, repeated draws are one node and the tree is smaller; each row grows its own tree.
        """
        roots = [row[-1] for row in self.waiting]
        self.outputs = self._forward_waiting()[:, None]  # [B, 1 + forwarded nodes, H]: the root's, then by place
        if (isinstance(shape, Tree) and self.filling is not None and self.proposal == "top_k" and not self.with_probs
                and shape.budget and shape.rank.max() < self.output.out_features):
            self.calls += shape.max_depth - 1  # besides that of the roots
            names = None if self.reduced is None else self.reduced.tokens
            with forward():
                filled = self.filling.fill_after(self.outputs[:, 0], roots, self.cache, native_levels(shape),
                                                 self.output.out_features, names)
            self.drafts = [Draft(shape, row, "top_k") for row in filled]
            return self.drafts
        filling = Filling(shape, roots, self.proposal, self.temperature, self.with_probs, self.reduced)
        while (level := filling.next_level()) is not None:
            if level.depth == 0:
                logits = self._logits(self.outputs)
            else:
                logits = self._forward_level(level, filling.tokens_of(level))
            filling.grow(level, logits, draws)
        self.drafts, _ = filling.drafts()
        return self.drafts

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Forgets the tree, and keeps features and tokens of the accepted nodes; in the first call of the prompts. In a
        round without a draft of its own the entries that waited are forwarded now.
        """
        with forward():
            features = self.head.read(hidden_states(target_outputs))
        if self.prompts is None:
            if not self.drafts:
                self._forward_waiting()
            self.cache.forget()
            added = added_tokens(drafts or self.drafts, accepted, bonus)
            self._wait(features, [[ROOT, *nodes] for nodes in accepted], added)
            self.drafts = []
            return
        texts = [[*prompt[1:].tolist(), token] for prompt, token in zip(self.prompts, bonus)]
        self._wait(features, [list(range(len(tokens))) for tokens in texts], texts)
        self._forward_prompts()
        self.prompts = None

    def select(self, rows: list[int]) -> None:
        """As `Drafter.select`, for the cache and the entries that wait."""
        self.cache.select(torch.tensor(rows))
        self.features, self.waiting = self.features[rows], [self.waiting[row] for row in rows]

    def _wait(self, features: Tensor, slots: list[list[int]], tokens: list[list[int]]) -> None:
        """Entries for the next forward pass: features [B, W, H] at these slots, right-padded, and the next tokens."""
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

    def _forward_level(self, level: Level, tokens: Tensor) -> Tensor:
        """The logits [B, k, V], or of the head's tokens [B, k, K], of the nodes of a level, tokens int64[B, k], which
        continue the outputs at their parents.
        """
        above = level.above.expand(tokens.shape)[..., None].to(self.outputs.device)
        features = self.outputs.take_along_dim(above, 1)
        out = self._forward(features, tokens, torch.full(tokens.shape[1:], level.depth - 1), level.sees)
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
            return self.output(self.head.states(features))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        features = self.head.read(hidden)
        following = torch.cat([text[1:], text.new_zeros(depth)])[None].to(features.device)
        for out in unroll(self.head, self.target, features, following, depth):
            yield self._logits(out[0, start - 1 : len(text) - 2])
