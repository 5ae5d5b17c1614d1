"""One prompt decoded round by round: each round's tree and tokens, its accepted path, and the text so far."""

from dataclasses import dataclass
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
Seen = tuple[Draft, list[int], int]  # an observed round: draft, accepted nodes, bonus token


@dataclass(frozen=True)
class Step:
    """One round as it is shown, and the running totals up to and including it.

    tokens: the text of each node, the root's first.
    probabilities, target_probabilities: the drafter's and the target's probability of each node after its parent (the
        root's is 1), the target's at temperature 1 for greedy decoding; None for a drafter that is not a language
        model, and for a target that takes chains alone.
    accepted: nodes of the accepted path, root excluded.
    bonus: the text of the token that the target adds.
    seconds: of the rounds so far, without prefill.
    text: (text, writer) pieces, the prompt and then one for each token; the last `fresh` are this round's, which has
        more of them where EOS or the length limit ends the text.
    """

    number: int
    of: int
    tree: Tree
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...] | None
    target_probabilities: tuple[float, ...] | None
    accepted: tuple[int, ...]
    bonus: str
    text: tuple[tuple[str, str], ...]
    fresh: int
    drafted_tokens: int
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
    seen: list[Seen] = []

    def observe(rows, drafts, decided):
        seen.append((drafts[0], *decided[0]))

    done = generate(pair.target, drafter, prompt[None], shape=shape, rule=rule, temperature=temperature,
                    max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids, generator=generator, observe=observe)
    tokenizer, ids, written = pair.tokenizer, prompt.tolist(), done.new_tokens[0]
    writers = [TARGET] + [writer for _, accepted, _ in seen for writer in (*[DRAFT] * len(accepted), TARGET)]
    pieces = [(_decode(tokenizer, ids), PROMPT), *zip(added_texts(tokenizer, ids, written), writers)]
    ends = [*(later.position for later in done.rounds[1:]), len(written)]  # tokens written at the end of each round
    steps, drafted_tokens, accepted_tokens, seconds = [], 0, 0, 0.0
    known = None if takes_chains(pair.target.config) else pair.target
    believed = zip(_beliefs(getattr(drafter, "model", None), getattr(drafter, "temperature", 1.0), prompt, seen),
                   _beliefs(known, temperature or 1.0, prompt, seen))
    for one, (draft, accepted, bonus), (chances, wanted), end in zip(done.rounds, seen, believed, ends):
        drafted_tokens, accepted_tokens = drafted_tokens + one.drafted, accepted_tokens + one.accepted
        seconds += one.seconds
        tokens = draft.token_list
        above = [None, *(tokens[parent] for parent in draft.tree.parents[1:])]
        steps.append(Step(
            number=len(steps) + 1, of=len(done.rounds), tree=draft.tree, probabilities=chances,
            target_probabilities=wanted,
            accepted=tuple(accepted), tokens=tuple(_text_after(tokenizer, *both) for both in zip(above, tokens)),
            bonus=_text_after(tokenizer, tokens[accepted[-1] if accepted else ROOT], bonus),
            text=tuple(pieces[: 1 + end]), fresh=end - one.position, drafted_tokens=drafted_tokens,
            accepted_tokens=accepted_tokens, seconds=seconds))
    return steps


@torch.inference_mode()
def _beliefs(model, temperature: float, prompt: Tensor, seen: Sequence[Seen]) -> Iterator[tuple[float, ...] | None]:
    """A model's probability of each node, round by round, from one forward pass over each draft."""
    if model is None:
        yield from (None for _ in seen)
        return
    cache = TreeCache()
    depth = torch.arange(len(prompt), device=model.device)
    tree_forward(model, prompt[None].to(model.device), depth, None, cache, logits_to_keep=1)
    cache.set_lengths(torch.tensor([len(prompt)]))
    for draft, accepted, _ in seen:
        logits = tree_forward(model, *stack([draft], model.device), cache).logits[0]
        probs = warp(logits, temperature).cpu()
        cache.commit([[ROOT, *accepted]])
        yield 1.0, *probs[draft.tree.parents[1:].tolist(), draft.tokens[1:]].tolist()


def added_texts(tokenizer, before: list[int], new: list[int]) -> list[str]:
    """The text that each new token adds; the bytes of a character come with the token that completes it."""
    context = before[-8:]  # enough for what a tokenizer does at the start of a text, such as dropping a space
    whole = [_decode(tokenizer, context + new[:end]) for end in range(len(new) + 1)]
    settled = accumulate((text.rstrip(UNFINISHED) for text in whole[:-1]), lambda old, now: max(old, now, key=len))
    ends = [len(text) for text in settled] + [len(whole[-1])]
    return [whole[-1][start:end] for start, end in zip(ends, ends[1:])]


def _text_after(tokenizer, before: int | None, token: int) -> str:
    """A token's text after another token, where a tokenizer keeps the space that it drops at the start of a text."""
    if before is not None:
        alone, both = _decode(tokenizer, [before]), _decode(tokenizer, [before, token])
        if both.startswith(alone) and both != alone:
            return both[len(alone):]
    return _decode(tokenizer, [token])


def _decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
