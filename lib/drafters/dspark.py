"""DSpark (arXiv 2607.05147): one forward pass gives logits for every depth, and a small product adds to each node's
what its parent's token changes. So one pass serves chains and static trees, and a tree that grows by any rule over one
distribution per node: parent-conditioned trees (PCTree, arXiv 2608.02123).
"""

from typing import Iterable, Sequence

from torch import Tensor

from lib.drafters.heads.marginals import BlockHead
from lib.drafters.marginals import BlockDrafter
from lib.lab.processor import one_thread

TRUSTED = ("probabilities", "confidence")


class DSparkDrafter(BlockDrafter):
    """A block head with a bias from the token before. Nodes of a shape deeper than its block are not drafted.

    proposal, temperature: as for `LanguageModelDrafter`. trust: by what trees grow: the head's probabilities, or with
    "confidence" its estimate of how likely the target accepts a node's best child, which the other children share the
    rest of.
    """

    def __init__(self, target, head: BlockHead, *, trust: str = TRUSTED[0], proposal: str = "top_k",
                 temperature: float = 1.0):
        if trust not in TRUSTED:
            raise ValueError(f"trust is {trust!r}; choose one of {', '.join(TRUSTED)}")
        if trust == TRUSTED[1] and head.confidence is None:
            raise ValueError(f"trust is {trust!r}, but the head has no confidence; leave it out")
        super().__init__(target, head, proposal=proposal, temperature=temperature)
        self.trust = trust

    @one_thread()
    def _children(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        return logits[:, depth, None] + self.head.bias(tokens.to(logits.device))

    @one_thread()
    def _growing(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """With "confidence" the logits of the best children are moved to where their probability is the confidence."""
        own = self._children(logits, depth, tokens)
        if self.trust == TRUSTED[0]:
            return own
        states = self.states[:, depth, None].expand(-1, tokens.shape[1], -1)
        sure = self.head.sure(states, tokens.to(own.device)) / self.head.temperatures[depth]
        best = own.argmax(-1, keepdim=True)
        rest = own.scatter(-1, best, float("-inf")).logsumexp(-1, keepdim=True)
        return own.scatter(-1, best, rest + sure[..., None].to(rest.dtype))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        for ahead, logits in enumerate(super()._ahead(hidden, text, start, depth)):
            before = text[start + ahead : -1].to(logits.device)
            yield logits[: len(before)] + self.head.bias(before)
