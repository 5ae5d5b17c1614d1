"""One prompt decoded round by round: each round's tree and tokens, its accepted path, and the text so far."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Iterator, Sequence

import torch
from torch import Tensor

from lib.attention.registration import takes_chains, tree_forward
from lib.decoding.loop import generate, stack
from lib.decoding.records import Generation
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
    # Of each node after its parent, by drafter and target (at temperature 1 for greedy decoding); the root's is 1. None
    # for a drafter that is no language model, and for a target that takes chains.
    probabilities: tuple[float, ...] | None
    target_probabilities: tuple[float, ...] | None
    accepted: tuple[int, ...]  # nodes of the accepted path, root excluded
    bonus: str  # the text of the token that the target adds
    text: tuple[tuple[str, str], ...]  # (text, writer) pieces: the prompt, then one for each token
    fresh: int  # pieces at the end of `text` that are this round's; fewer than its tokens where the text ends
    so_far: Generation  # the rounds up to this one

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
    def written(self) -> int:
        """Tokens of the rounds so far, those past the limit included."""
        return self.so_far.accepted + self.number

    @property
    def seconds(self) -> float:
        """Seconds of the rounds so far, without prefill."""
        return sum(record.seconds for record in self.so_far.rounds)


def walk(pair, drafter, prompt: Tensor, shape: str | Tree | Growth, *, rule: str = "greedy", temperature: float = 0.0,
         new_tokens: int = 32, generator: torch.Generator | None = None) -> list[Step]:
    """The rounds in which a pair decodes prompt int64[T] with a shape or growth rule, as steps.

    pair: anything with target, tokenizer and eos_token_ids. rule, temperature, generator: as for `generate`, as are
    errors. The list is empty if the first token, the prefill's, ends the text.
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
        tokens, end = draft.token_list, ends[number - 1]
        before = [tokens[parent] for parent in (*draft.tree.parents[1:], accepted[-1] if accepted else ROOT)]
        texts = [added_texts(tokenizer, [first], [token])[0] for first, token in zip(before, [*tokens[1:], bonus])]
        steps.append(Step(
            number, len(observed), draft.tree, (_decode(tokenizer, tokens[:1]), *texts[:-1]), next(drafter_probs),
            next(target_probs), tuple(accepted), bonus=texts[-1], text=tuple(pieces[: 1 + end]),
            fresh=end - done.rounds[number - 1].position, so_far=replace(done, rounds=done.rounds[:number])))
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


def _decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
