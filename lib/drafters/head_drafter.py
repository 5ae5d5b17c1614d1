"""The base of drafters with a trained head, which reads the target's hidden states."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import Drafter
from lib.drafters.filling import check_proposal, rank_of
from lib.drafters.heads import files
from lib.drafters.registry import folder_of, name_of
from lib.forward.packed import pack, weights_of
from lib.forward.passes import forward_pass
from lib.forward.reduced import ReducedOutput, rows_of
from lib.models.cache import TreeCache
from lib.verify.draft import Draft


class HeadDrafter(Drafter):
    """A head on a target; proposal, temperature: as for `LanguageModelDrafter`.

    output: the head's own output layer, else the target's, or its rows for the tokens that the head drafts. reduced:
    an output layer of these tokens; None where the head drafts all. cache: of the head's layers, if it has some.
    """

    wants_hidden_states = True

    def __init__(self, target, head, *, proposal: str = "top_k", temperature: float = 1.0):
        check_proposal(proposal, temperature)
        self.target, self.head, self.proposal, self.temperature = target, head, proposal, temperature
        self.calls, self.name_or_path, self.cache = 0, getattr(head, "name_or_path", ""), TreeCache()
        self.reduced = self.made_of = None  # the latter: the weights of which layers and output were made
        self._renew()

    @classmethod
    def of(cls, pair, *, folder=None, proposal: str = "top_k", temperature: float = 1.0) -> "HeadDrafter":
        """The drafter of the head in a folder; without one, of the head that ships for the pair's target."""
        kind = name_of(cls)
        head = pack(files.load(kind, folder or folder_of(pair.target_name, kind), pair.target))
        return cls(pair.target, head, proposal=proposal, temperature=temperature)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch; the hidden states of the prompts int64[T] come with the first `commit`."""
        self._renew()
        self.prompts: Sequence[Tensor] | None = prompts  # until the first `commit`
        self.cache = TreeCache()
        self.cache.rows.set([0] * len(prompts), self.target.device)
        self.drafts: list[Draft] = []

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.cache.select(torch.tensor(rows))

    def _renew(self) -> None:
        """Makes the output layer, and what a kind makes of the head's layers, anew where weights have changed."""
        if (made_of := (weights_of(self.head), weights_of(self.target))) == self.made_of:
            return
        self.made_of, layer, tokens = made_of, self.head.lm_head, self.head.tokens
        if tokens is None:
            self.output = forward_pass(self.target).output if layer is None else layer
        else:
            whole = self.target.get_output_embeddings()
            rows = rows_of(whole, tokens) if layer is None else layer
            self.reduced = pack(ReducedOutput(rows, tokens, whole.out_features))
            self.output = self.reduced.rows
        self._renew_layers()

    def _renew_layers(self) -> None:
        """Of a kind that runs layers over a cache."""

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        """For d = 0, 1, ... the logits [n, V or K] of the tokens d + 1 after each root, from hidden states
        [1, T - 1, H] per layer of text int64[T] without its last token. Roots: tokens from `start` to the last but one.
        """
        tokens = torch.cat([text, text.new_zeros(depth)])[None].to(self.target.device)
        before = torch.arange(start, len(text) - 1, device=tokens.device)
        for ahead, states in enumerate(self.head.along(self.target, hidden, tokens, before, depth)):
            yield self.head.biased(self.output(states[0]), tokens[0, before + ahead])

    @torch.inference_mode()
    def read_ahead(self, hidden_states: Sequence[Sequence[Tensor]], texts: Sequence[Tensor], starts: Sequence[int],
                   depth: int) -> tuple[Tensor, Tensor]:
        """As `Drafter.read_ahead`; at depths for which the head has no distribution ranks are V and probabilities 0."""
        counts = [max(0, len(text) - 1 - start) for text, start in zip(texts, starts)]
        ranks = torch.full((len(texts), max(1, *counts), depth), -1, dtype=torch.int32)
        probs = torch.zeros(ranks.shape)
        for row, (text, start, count) in enumerate(zip(texts, starts, counts)):
            for d in range(min(depth, count)):
                ranks[row, : count - d, d] = self.target.config.get_text_config().vocab_size
            for d, logits in zip(range(min(depth, count)), self._ahead(hidden_states[row], text, start, depth)):
                logits = logits if self.reduced is None else self.reduced.spread(logits, float("-inf"))
                true = text[start + d + 1 :].to(logits.device)
                scores = logits[: len(true)].to(torch.promote_types(logits.dtype, torch.float32))
                ranks[row, : len(true), d] = rank_of(scores, true).int().cpu()
                probs[row, : len(true), d] = scores.softmax(-1).gather(1, true[:, None])[:, 0].float().cpu()
        return ranks, probs


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of numbers as int64[B, W], padded with zeros on the right."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True)
