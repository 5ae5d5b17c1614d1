"""A language model that fills a shape or grows a tree, one forward pass per level, with tree attention and a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lib.attention.registration import check_attention, takes_chains
from lib.drafters.drafter import Drafter, added_tokens
from lib.drafters.filling import Filling, check_proposal
from lib.drafters.levels import block, native_levels, plan, planned_block, tails
from lib.drafters.vocabulary import drafting
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.forward.reduced import narrow
from lib.models.cache import TreeCache
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class LanguageModelDrafter(Drafter):
    """Drafts with a causal language model (attn_implementation "tree"), perhaps of some tokens (`lib.forward.reduced`).

    proposal: "top_k" (children are the most likely tokens), "iid" or "without_replacement" (samples at `temperature`).
    Sampled drafts carry the distributions of their children; "top_k" drafts where `with_probs` is set.

    The cache holds what was forwarded: the prompt, then of each accepted path the nodes that had children. An accepted
    leaf waits with the bonus token in the row's tail, which the first forward pass of the next round takes whole.
    """

    per_row = ("tails",)

    def __init__(self, model, *, proposal: str = "top_k", temperature: float = 1.0):
        check_proposal(proposal, temperature)
        self.model, self.proposal, self.temperature = model, proposal, temperature
        self.narrow, self.output = narrow(model)
        self.calls, self.cache, self.chains = 0, TreeCache(), takes_chains(model.config)
        self.window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.knows = model.get_output_embeddings().out_features
        self.choices = self.narrow.get_output_embeddings().out_features  # tokens that it drafts

    @classmethod
    def of(cls, pair, *, proposal: str = "top_k", temperature: float = 1.0,
           vocabulary: int | Tensor | None = None) -> "LanguageModelDrafter":
        """The pair's draft model; vocabulary: the tokens that it drafts from (see `vocabulary.drafting`)."""
        return cls(drafting(pair.draft_model, pair, vocabulary), proposal=proposal, temperature=temperature)

    @torch.no_grad()
    def start(self, prompts: Sequence[Tensor]) -> None:
        """Prefills the prompts int64[T], as one call. ValueError where the model gives NaN."""
        check_attention(self.model)
        self.blocks = forward_pass(self.narrow)
        self.cache = prefill(forward_pass(self.narrow, "layers"), prompts).cache
        self.calls += 1
        self.tails: list[list[int]] = [[] for _ in prompts]  # committed tokens that the cache lacks, the root last
        self.drafts: list[Draft] = []
        self.levels = [0] * len(prompts)
        self.places: list[dict[int, int]] = [{} for _ in prompts]  # node -> index among the round's forwarded nodes

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row a static shape filled, or a tree grown by a rule, with one forward pass per level.

        With samples, repeated draws are one node and the tree is smaller; each row grows its own tree.
        """
        static = isinstance(shape, Tree)
        if self.chains and not (static and shape.is_path):
            raise ValueError(f"shape is a tree of {shape.budget} nodes, but the draft model "
                             f"{type(self.model).__name__} takes chains; give a chain, such as 'chain:4'")
        # Tails are right-aligned, so that every root has the same slot.
        roots, self.waiting = [tail[-1] for tail in self.tails], tails(tuple(map(len, self.tails)))
        tail_tokens = torch.tensor([[0] * (self.waiting.width - len(tail)) + tail for tail in self.tails])
        if (static and shape.budget and shape.rank.max() < self.choices and self.blocks.fills
                and self.proposal == "top_k" and not self.with_probs):  # a native call gives no probabilities
            names = None if self.output is None else self.output.tokens
            filled = self.blocks.fill(tail_tokens, self.waiting.depth, self.waiting.mask, self.cache,
                                      native_levels(shape, self.waiting), self.choices, names)
            self.calls += shape.max_depth
            self.levels, self.places = [shape.max_depth] * len(roots), [plan(shape)[1]] * len(roots)
            self.drafts = [Draft(shape, row, "top_k") for row in filled]
            return self.drafts
        filling = Filling(shape, roots, self.proposal, self.temperature, self.with_probs, self.output)
        while (level := filling.next_level()) is not None:
            if level.depth == 0:
                logits = self._forward(tail_tokens, self.waiting.depth, self.waiting.mask, logits_to_keep=1)
            else:
                make = planned_block if static else block
                logits = self._forward(filling.tokens_of(level), *make(self.waiting, level), logits_to_keep=0)
            filling.grow(level, logits, draws)
        self.levels = filling.levels
        self.drafts, self.places = filling.drafts()
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Keeps the forwarded nodes of its own draft along the kept tokens; the tokens after them wait in the tail."""
        forwarded, kept = bool(self.cache.pending), []
        for row, tokens in enumerate(added_tokens(drafts or self.drafts, accepted, bonus)):
            nodes = self.drafts[row].along(tokens[:-1]) if self.drafts else []
            slots = [self.waiting.width + self.places[row][node] for node in nodes if node in self.places[row]]
            if forwarded:
                kept.append([*range(self.waiting.width - len(self.tails[row]), self.waiting.width), *slots])
                self.tails[row] = []
            self.tails[row] += tokens[len(slots):]
        if forwarded:
            self.cache.commit(kept)
        self.drafts = []

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.cache.select(torch.tensor(rows))

    def _forward(self, tokens: Tensor, depth: Tensor, mask: Tensor, logits_to_keep: int) -> Tensor:
        device = self.blocks.device
        self.calls += 1
        return self.blocks(tokens.to(device), depth.to(device), mask.to(device), self.cache,
                           logits_to_keep=logits_to_keep).logits
