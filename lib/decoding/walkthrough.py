"""One prompt decoded round by round: each round's tree and tokens, its accepted path, and the text so far."""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Iterator, Sequence

import torch
from torch import Tensor

from lib.attention.registration import takes_chains, tree_forward
from lib.decoding.loop import generate, stack
from lib.models.cache import TreeCache
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft
from lib.verify.warping import warp

PROMPT, DRAFT, TARGET = "prompt", "draft", "target"  # the writer of a piece of the text
UNFINISHED = "\ufffd"  # the decoder's sign for a character whose last bytes are missing
Observed = tuple[Draft, list[int], int]  # of a round: draft, accepted nodes, bonus token


@dataclass(frozen=True)
class Step:
    """One round as it is shown, and the running totals up to and including it."""

    number: int  # this is round `number` of `rounds`
    rounds: int
    tree: Tree
    tokens: tuple[str, ...]  # the text of each node, the root's first
    # The drafter's and the target's probability of each node after its parent (the root's is 1), the target's at
    # temperature 1 for greedy decoding. None for a drafter that is no language model and a target that takes chains.
    probabilities: tuple[float, ...] | None
    target_probabilities: tuple[float, ...] | None
    accepted: tuple[int, ...]  # nodes of the accepted path, root excluded
    bonus: str  # the text of the token that the target adds
    text: tuple[tuple[str, str], ...]  # (text, writer) pieces: the prompt, then one for each token
    fresh: int  # pieces at the end of `text` that are this round's; fewer than its tokens where the text ends
    drafted_tokens: int  # this and the next two: of the rounds so far, without prefill
    accepted_tokens: int
    seconds: float

    @property
    def parents(self) -> list[int]:
        """The parent of each node, and of the bonus token, which follows the accepted path."""
        return [*self.tree.parents.tolist(), self.accepted[-1] if self.accepted else ROOT]

    @property
    def roles(self) -> list[str]:
        """The role of each node, "root", "accepted" or "rejected", and the bonus token's."""
        drafted = ("accepted" if node in self.accepted else "rejected" for node in range(1, self.tree.size))
        return ["root", *drafted, "bonus"]

    @property
    def rate(self) -> float | None:
        """Accepted over draft tokens so far; None before a round has draft tokens."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def speed(self) -> float:
        """Tokens per second of the rounds so far."""
        return (self.accepted_tokens + self.number) / self.seconds

    @property
    def length(self) -> float:
        """Mean accepted length so far."""
        return self.accepted_tokens / self.number


def walk(pair, drafter, prompt: Tensor, shape: str | Tree | Growth, *, rule: str = "greedy", temperature: float = 0.0,
         new_tokens: int = 32, generator: torch.Generator | None = None) -> list[Step]:
    """The rounds in which a pair decodes prompt int64[T] with a shape or growth rule, as steps.

    pair: anything with target, tokenizer and eos_token_ids, see `models.load_pair`. rule: see `verify.RULES`; above
    temperature 0 one that samples, and a generator is needed. The list is empty if the first token, the prefill's, ends
    the text. ValueError as `generate` gives it.
    """
    # decode
    observed: list[Observed] = []
    done = generate(pair.target, drafter, prompt[None], shape=shape, rule=rule, temperature=temperature,
                    max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids, generator=generator,
                    observe=lambda _, drafts, decisions: observed.append((drafts[0], *decisions[0])))
    # the text, token by token
    tokenizer, prompt_ids, written = pair.tokenizer, prompt.tolist(), done.new_tokens[0]
    writers = [TARGET] + [writer for _, accepted, _ in observed for writer in (*[DRAFT] * len(accepted), TARGET)]
    pieces = [(_decode(tokenizer, prompt_ids), PROMPT), *zip(added_texts(tokenizer, prompt_ids, written), writers)]
    ends = [*(record.position for record in done.rounds[1:]), len(written)]  # tokens written at the end of each round
    # the probabilities of nodes
    target = None if takes_chains(pair.target.config) else pair.target
    drafter_probs = _node_probs(getattr(drafter, "model", None), getattr(drafter, "temperature", 1.0), prompt, observed)
    target_probs = _node_probs(target, temperature or 1.0, prompt, observed)
    # the steps
    steps = []
    for number, (draft, accepted, bonus) in enumerate(observed, 1):
        so_far, end, tokens = done.rounds[:number], ends[number - 1], draft.token_list
        parent_tokens = [None, *(tokens[parent] for parent in draft.tree.parents[1:])]
        steps.append(Step(
            number=number, rounds=len(observed), tree=draft.tree,
            tokens=tuple(_text_after(tokenizer, *edge) for edge in zip(parent_tokens, tokens)),
            probabilities=next(drafter_probs), target_probabilities=next(target_probs), accepted=tuple(accepted),
            bonus=_text_after(tokenizer, tokens[accepted[-1] if accepted else ROOT], bonus),
            text=tuple(pieces[: 1 + end]), fresh=end - so_far[-1].position,
            drafted_tokens=sum(record.drafted for record in so_far),
            accepted_tokens=sum(record.accepted for record in so_far),
            seconds=sum(record.seconds for record in so_far)))
    return steps


@torch.inference_mode()
def _node_probs(model, temperature: float, prompt: Tensor,
                observed: Sequence[Observed]) -> Iterator[tuple[float, ...] | None]:
    """A model's probability of each node, round by round, from one forward pass over each draft; None without model."""
    if model is None:
        yield from (None for _ in observed)
        return
    cache = TreeCache()
    depth = torch.arange(len(prompt), device=model.device)
    tree_forward(model, prompt[None].to(model.device), depth, None, cache, logits_to_keep=1)
    cache.set_lengths(torch.tensor([len(prompt)]))
    for draft, accepted, _ in observed:
        logits = tree_forward(model, *stack([draft], model.device), cache).logits[0]
        probs = warp(logits, temperature).cpu()
        cache.commit([[ROOT, *accepted]])
        yield 1.0, *probs[draft.tree.parents[1:].tolist(), draft.tokens[1:]].tolist()


def added_texts(tokenizer, before: list[int], new: list[int]) -> list[str]:
    """The text that each new token adds; the bytes of a character come with the token that completes it."""
    context = before[-8:]  # enough for what a tokenizer does at the start of a text, such as dropping a space
    texts = [_decode(tokenizer, context + new[:end]) for end in range(len(new) + 1)]
    complete = accumulate((text.rstrip(UNFINISHED) for text in texts[:-1]), partial(max, key=len))
    ends = [*map(len, complete), len(texts[-1])]
    return [texts[-1][start:end] for start, end in zip(ends, ends[1:])]


def _text_after(tokenizer, before: int | None, token: int) -> str:
    """A token's text after another token, where a tokenizer keeps the space that it drops at the start of a text."""
    if before is not None:
        first, both = _decode(tokenizer, [before]), _decode(tokenizer, [before, token])
        if both.startswith(first) and both != first:
            return both[len(first):]
    return _decode(tokenizer, [token])


def _decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
