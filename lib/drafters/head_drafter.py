"""The base of drafters with a trained head, which reads the target's hidden states."""

from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import Drafter
from lib.drafters.filling import check_proposal, rank_of
from lib.drafters.heads import files
from lib.drafters.heads.files import check_folder_of
from lib.drafters.registry import name_of
from lib.forward.packed import pack, weights_of
from lib.forward.passes import forward_pass
from lib.forward.reduced import ReducedOutput, rows_of
from lib.models.cache import TreeCache
from lib.verify.draft import Draft


class HeadDrafter(Drafter):
    """A head on a target. A kind also defines `_ahead`, from which `read_ahead` takes ranks and probabilities.

    proposal, temperature: as for `LanguageModelDrafter`.
    output: the head's own output layer, else the target's, or its rows for the tokens that the head drafts. reduced:
    an output layer of these tokens; None where the head drafts all. cache: of the head's layers, if it keeps keys and
    values.
    """

    wants_hidden_states = True

    def __init__(self, target, head, *, proposal: str = "top_k", temperature: float = 1.0):
        check_proposal(proposal, temperature)
        self.target, self.head, self.proposal, self.temperature = target, head, proposal, temperature
        self.calls, self.name_or_path, self.cache = 0, getattr(head, "name_or_path", ""), TreeCache()
        self.reduced: ReducedOutput | None = None
        self.made_of_target: tuple | None = None  # the weights that `reduced` was made of
        self.made_of: tuple | None = None  # and those that the head's layers were made of
        self._renew_output()

    @classmethod
    def of(cls, pair, *, folder=None, proposal: str = "top_k", temperature: float = 1.0) -> "HeadDrafter":
        """The drafter of the head in a folder or hub id; without one, of the head that ships for the pair's target."""
        kind = name_of(cls)
        folder = check_folder_of(pair.target_name, kind) if folder is None else folder
        return cls(pair.target, files.load(kind, folder, pair.target), proposal=proposal, temperature=temperature)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch with an empty cache; the hidden states of the prompts come with the first `commit`."""
        self._renew_output()
        if (made_of := (weights_of(self.head), self.made_of_target)) != self.made_of:  # else the layers are still valid
            self.made_of = made_of
            self._renew_layers()
        self.cache = TreeCache()
        self.drafts: list[Draft] = []

    def _renew_output(self) -> None:
        """Takes the output layer anew, for a target whose weights have changed."""
        layer, tokens = self.head.lm_head, self.head.tokens
        if tokens is None:
            self.output = forward_pass(self.target).output if layer is None else layer
        elif (made_of := weights_of(self.target)) != self.made_of_target:
            whole, self.made_of_target = self.target.get_output_embeddings(), made_of
            rows = rows_of(whole, tokens) if layer is None else layer
            self.reduced = pack(ReducedOutput(rows, tokens, whole.out_features))
            self.output = self.reduced.rows

    def _renew_layers(self) -> None:
        """Takes the head's layers anew, for a kind that runs them over a cache."""

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        """For d = 0, 1, ... the logits [n, V], or of its own tokens [n, K], of the tokens d + 1 after each root, those
        that start rounds in `text`.

        hidden: [1, T - 1, H] per layer, of text int64[T] without its last token; its n = T - 1 - start roots are the
        tokens from `start` to the last but one.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define _ahead")

    @torch.inference_mode()
    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """As `Drafter.read_ahead`; at depths for which the head has no distribution ranks are V and probabilities 0."""
        beyond = target.config.get_text_config().vocab_size
        most = max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
        ranks = torch.full((len(texts), most, depth), -1, dtype=torch.int32)
        probs = torch.zeros(len(texts), most, depth)
        for row, (text, start) in enumerate(zip(texts, starts)):
            count = len(text) - 1 - start
            if count < 1:
                continue
            for d in range(depth):
                ranks[row, : max(0, count - d), d] = beyond
            tokens = text[None, :-1].to(target.device)
            hidden = target(tokens, output_hidden_states=True, logits_to_keep=1).hidden_states
            for d, logits in zip(range(min(depth, count)), self._ahead(hidden, text, start, depth)):
                logits = logits if self.reduced is None else self.reduced.spread(logits, float("-inf"))
                true = text[start + d + 1 :].to(logits.device)
                scores = logits[: len(true)].to(torch.promote_types(logits.dtype, torch.float32))
                ranks[row, : len(true), d] = rank_of(scores, true).int().cpu()
                probs[row, : len(true), d] = scores.softmax(-1).gather(1, true[:, None])[:, 0].float().cpu()
        return ranks, probs


def hidden_states(target_outputs) -> Sequence[Tensor]:
    """The hidden states that the loop passes to `commit`. ValueError where it passes none."""
    states = getattr(target_outputs, "hidden_states", None)
    if states is None:
        raise ValueError("the drafter reads the target's hidden states, but `commit` was given none; call the target "
                         "with output_hidden_states=True where `drafter.wants_hidden_states`, its prefill included")
    return states
