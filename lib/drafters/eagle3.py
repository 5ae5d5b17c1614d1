"""EAGLE-3: a one-layer head drafts by continuing features of the target (Li et al. 2025)."""

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor, nn

from lib.drafters.drafter import added_tokens
from lib.drafters.filling import Filling
from lib.drafters.head_drafter import HeadDrafter, padded
from lib.drafters.heads.eagle3 import Eagle3Head
from lib.drafters.heads.layers import CachedLayers, embed
from lib.drafters.levels import native_levels
from lib.forward.native import Levels, NativeBlocks
from lib.kernels.build import library, served
from lib.kernels.products import NAMES, start_of
from lib.models.cache import TreeCache
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class Fusion(ctypes.Structure):
    """The struct of the same name in `fill.h`."""

    _fields_ = [("embedded_norm", c_void_p), ("state_norm", c_void_p), ("normed_residual", c_int64)]


class HeadFill(NativeBlocks):
    """A head with an output layer and an embedding, which fills a static tree in one call of C++ (`fill.h`). Make it
    anew when weights change. CannotServe as `NativeBlocks`.
    """

    def __init__(self, head: Eagle3Head, output: nn.Module, embedding: nn.Module):
        layer = head.midlayer
        super().__init__([layer], layer.self_attn.rotary, head.norm, output, embedding)
        self.fusion = Fusion(*map(start_of, (layer.input_layernorm.weight, layer.hidden_norm.weight)),
                             head.normed_residual)
        self.run_head = getattr(library(), f"fill_head_{NAMES[self.like.dtype]}")

    def fill_after(self, states: Tensor, roots: Sequence[int], cache: TreeCache, levels: Levels, choices: int,
                   names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree after roots, from the head's states [B, H] there, in one call.
        Other arguments, and the cache afterwards: as for `NativeBlocks.fill`.
        """
        batch, states = len(states), states.contiguous()
        call = self._call(cache, batch, nodes=0, ahead=levels.forwarded)
        filled = torch.empty(batch, levels.size, dtype=torch.long)
        filled[:, 0] = torch.tensor(roots)
        logits = self.like.new_empty(batch, levels.widest, call.vocabulary.out)
        call.inputs, call.logits, call.names = map(start_of, (states, logits, names))
        unknown = self.run_head(ctypes.byref(call), ctypes.byref(self.fusion), levels.structs,
                                *map(c_int64, (len(levels.structs), levels.size, choices)), c_void_p(start_of(filled)))
        if unknown >= 0:
            raise IndexError(f"token {filled.flatten()[unknown]} is none of the embedding's {call.embedding.out}; "
                             "take the head of this target")
        return filled


class Eagle3Drafter(HeadDrafter):
    """Drafts with an EAGLE-3 head.

    Its cache holds one entry for each token after a text's first, made of the target's feature of the token before it.
    Entries of newly committed tokens wait for the next round, whose first forward pass takes them all and ends in the
    root's; the entries of a tree are forgotten, since its features were the head's guesses.
    """

    idle_passes, per_row = 1, ("features", "waiting")

    def _renew_layers(self) -> None:
        embedding = self.head.embed_tokens or self.target.get_input_embeddings()
        self.layer = CachedLayers([self.head.midlayer])
        self.native_fill = served(HeadFill, self.head, self.output, embedding)

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """As `LanguageModelDrafter.propose`, with one forward pass of the head per level."""
        roots = [row[-1] for row in self.waiting]
        self.outputs = self._forward_waiting()[:, None]  # [B, 1 + forwarded nodes, H], the root's first
        if (isinstance(shape, Tree) and self.native_fill is not None and self.proposal == "top_k"
                and not self.with_probs and shape.budget and shape.rank.max() < self.output.out_features):
            self.calls += shape.max_depth - 1  # besides that of the roots
            names = None if self.reduced is None else self.reduced.tokens
            filled = self.native_fill.fill_after(self.outputs[:, 0], roots, self.cache, native_levels(shape),
                                                 self.output.out_features, names)
            self.drafts = [Draft(shape, row, "top_k") for row in filled]
            return self.drafts
        filling = Filling(shape, roots, self.proposal, self.temperature, self.with_probs, self.reduced)
        while (level := filling.next_level()) is not None:
            new = self.outputs
            if level.depth:
                tokens = filling.tokens_of(level)
                above = level.above.expand(tokens.shape)[..., None].to(new.device)
                offsets = torch.full(tokens.shape[1:], level.depth - 1)
                new = self._forward(self.outputs.take_along_dim(above, 1), tokens, offsets, level.sees)
                self.outputs = torch.cat([self.outputs, new], dim=1)
            filling.grow(level, self.output(self.head.norm(new)), draws)
        self.drafts, _ = filling.drafts()
        return self.drafts

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Forgets the tree; entries of the accepted nodes wait. After a round without a draft, the entries that still
        wait are forwarded; in the first call, those of the prompts without the roots.
        """
        features = self.head.read(target_outputs.hidden_states)
        if self.prompts is None:
            if not self.drafts:
                self._forward_waiting()
            self.cache.forget()
            slots = [[ROOT, *nodes] for nodes in accepted]
            self.waiting = added_tokens(drafts or self.drafts, accepted, bonus)
        else:
            lengths = [len(prompt) - 1 for prompt in self.prompts]
            if max(lengths):
                tokens = padded([prompt[1:].tolist() for prompt in self.prompts])
                self._forward(features[:, :-1], tokens, torch.arange(max(lengths)), None)
                self.cache.set_lengths(torch.tensor(lengths))
            slots, self.waiting, self.prompts = [[length] for length in lengths], [[token] for token in bonus], None
        self.features = features.take_along_dim(padded(slots).to(features.device)[..., None], 1)
        self.drafts = []

    def _forward_waiting(self) -> Tensor:
        """Commits the waiting entries to the cache; the head's output at each row's last one, [B, H]."""
        tokens, last = padded(self.waiting), torch.tensor([len(row) - 1 for row in self.waiting])
        out = self._forward(self.features[:, : tokens.shape[1]], tokens, torch.arange(tokens.shape[1]), None)
        self.cache.commit([list(range(len(row))) for row in self.waiting])
        return out[torch.arange(len(out)), last]

    def _forward(self, features: Tensor, tokens: Tensor, offsets: Tensor, sees: Tensor | None) -> Tensor:
        self.calls += 1
        device = features.device
        x, read = self.head.enter(features, embed(self.head, self.target, tokens.to(device)))
        return self.layer(x, offsets.to(device), self.cache, None if sees is None else sees.to(device), read)
