"""The loop: draft a tree, verify it in one forward of the target, commit what agrees; one record a round.

`generate` decodes any number of rows, each with its own prompt length, tree, accepted length and end. `continuations`
is plain decoding in the same loop: a tree that is a root alone.
"""

import time
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lib.attention import tree_forward
from lib.cache import TreeCache
from lib.shapes import parse
from lib.tree import Tree
from lib.verify import Draft, GeneratorDraws, verify, warp

# Told after a round: the rows that ran, their drafts, and of each its accepted nodes and bonus token.
Observer = Callable[[list[int], list[Draft], list[tuple[list[int], int]]], None]


@dataclass(frozen=True)
class Round:
    """What one row did in one round.

    `position` counts the tokens generated before the round, its root included. `ranks` is the accepted path by rank;
    `drafted` = n nodes, `accepted` = a of them on the path. `open_end`: the path ended at a node that had children,
    so the rule rejected them all. `cut`: EOS or the length limit shortened the round, which therefore belongs in no
    mean. Seconds are those of the whole batch's round; `cache_bytes` those of the target's and the drafter's caches.
    """

    row: int
    position: int
    drafted: int
    accepted: int
    ranks: tuple[int, ...]
    open_end: bool
    cut: bool
    draft_calls: int
    target_calls: int
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    cache_bytes: int


@dataclass(frozen=True)
class Generation:
    """`sequences` int64[B, T + new]: the input, then what was generated, padded behind its end; `rounds` in their
    order.

    `new_tokens` holds each row's generated tokens unpadded.
    """

    sequences: Tensor
    rounds: list[Round]
    new_tokens: list[list[int]]


class NoDrafter:
    """Drafts nothing: speculation without speculation, which is plain decoding."""

    calls = 0
    cache_bytes = 0

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Takes prompts int64[T] and forgets them."""

    def propose(self, shape: Tree, draws) -> list[Draft]:
        """The roots alone."""
        return [Draft(Tree([-1]), torch.tensor([root]), "top_k", None) for root in self.roots]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """The bonus tokens become the roots."""
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.roots = [self.roots[row] for row in rows]


@torch.inference_mode()
def generate(
    target,
    drafter,
    input_ids: Tensor,
    *,
    shape: str | Tree,
    rule: str = "greedy",
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    observe: Observer | None = None,
) -> Generation:
    """Decodes input_ids int64[B, T] by speculation with draft trees.

    target: a transformers model with attn_implementation "tree". drafter: see `lib.drafters`. shape: a name, a
    `Tree`, or a growth rule that the drafter knows. attention_mask bool or int [B, T] marks padding, on either side.
    Temperature 0 is greedy and takes the rule "greedy"; above it, `generator` is needed. observe: called after every
    round with the rows that ran, their drafts, and what was decided of each. ValueError names what cannot be.
    """
    prompts = _prompts(input_ids, attention_mask)
    shape = parse(shape) if isinstance(shape, (str, Tree)) else shape
    _check(target, prompts, shape, rule, temperature, max_new_tokens, generator)
    loop = _Loop(
        target,
        drafter,
        shape,
        rule,
        (temperature, top_k, top_p),
        max_new_tokens,
        _ids(eos_token_id),
        generator,
        observe,
    )
    loop.run(prompts)
    width = max(map(len, loop.written), default=0)
    padding = next(iter(sorted(loop.eos)), 0)
    new = torch.tensor([row + [padding] * (width - len(row)) for row in loop.written], dtype=torch.long).reshape(
        len(prompts), width
    )
    return Generation(torch.cat([input_ids.cpu(), new], dim=1), loop.rounds, loop.written)


def continuations(
    target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    rows: int = 32,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], in batches of so many rows."""
    written: list[list[int]] = []
    for padded, mask in in_batches(prompts, rows):
        done = generate(
            target,
            NoDrafter(),
            padded,
            attention_mask=mask,
            shape=Tree([-1]),
            rule="naive" if temperature else "greedy",
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            generator=generator,
        )
        written += done.new_tokens
    return written


def in_batches(prompts: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts int64[T] right-padded in batches of so many rows: tokens int64[B, T] and their mask bool[B, T]."""
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        yield padded, torch.arange(padded.shape[1])[None] < torch.tensor([len(prompt) for prompt in batch])[:, None]


class _Loop:
    """The state of a batch while it is decoded; `alive` maps the rows still running to the rows asked for."""

    def __init__(self, target, drafter, shape, rule, warping, limit, eos, generator, observe):
        self.target, self.drafter, self.shape, self.rule = target, drafter, shape, rule
        self.warping, self.limit, self.eos = warping, limit, eos
        self.draws, self.observe = GeneratorDraws(generator), observe
        self.cache = TreeCache()
        self.rounds: list[Round] = []

    def run(self, prompts: list[Tensor]) -> None:
        """Prefill, then rounds until every row has ended."""
        self.alive = list(range(len(prompts)))
        self.written: list[list[int]] = [[] for _ in prompts]
        if not self.limit:
            return
        roots = self.prefill(prompts)
        self.drafter.start(prompts)
        self.drafter.commit([[] for _ in roots], roots)
        for row, root in zip(self.alive, roots):
            self.written[row].append(root)
        self.retire()
        while self.alive:
            self.round()

    def prefill(self, prompts: list[Tensor]) -> list[int]:
        """The first roots: the target's own next token behind each prompt."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(self.target.device)
        last, where = torch.unique(lengths - 1, return_inverse=True)
        out = tree_forward(
            self.target,
            tokens,
            torch.arange(tokens.shape[1], device=tokens.device),
            None,
            self.cache,
            logits_to_keep=last.to(tokens.device),
        )
        self.cache.set_lengths(lengths)
        probs = warp(out.logits[torch.arange(len(prompts)), where], *self.warping)
        return [self.draws.categorical(row) for row in probs]

    def round(self) -> None:
        """One draft and one forward of the target for every row that still runs."""
        clock = [time.perf_counter()]
        calls = self.drafter.calls
        drafts = self.drafter.propose(self.shape, self.draws)
        clock.append(time.perf_counter())
        outputs = tree_forward(self.target, *stack(drafts, self.target.device), self.cache)
        decided = [
            verify(self.rule, draft, warp(outputs.logits[i, : draft.tree.size], *self.warping), self.draws)
            for i, draft in enumerate(drafts)
        ]
        clock.append(time.perf_counter())
        kept = [[0, *accepted] for accepted, _ in decided]
        counts = torch.tensor([len(nodes) for nodes in kept])
        self.cache.keep(
            torch.nn.utils.rnn.pad_sequence([torch.tensor(nodes) for nodes in kept], batch_first=True), counts
        )
        self.drafter.commit([accepted for accepted, _ in decided], [bonus for _, bonus in decided], outputs)
        clock.append(time.perf_counter())
        spent = [after - before for before, after in zip(clock, clock[1:])]
        held = self.cache.bytes + self.drafter.cache_bytes
        for row, draft, (accepted, bonus) in zip(self.alive, drafts, decided):
            self.rounds.append(self.write(row, draft, accepted, bonus, self.drafter.calls - calls, spent, held))
        if self.observe:
            self.observe(self.alive, drafts, decided)
        self.retire()

    def write(
        self, row: int, draft: Draft, accepted: list[int], bonus: int, calls: int, spent: list[float], held: int
    ) -> Round:
        """Appends what the round emits to the row, up to EOS or the limit, and returns its record."""
        emitted = [*draft.tokens[accepted].tolist(), bonus]
        position = len(self.written[row])
        room = self.limit - position
        ends = [i + 1 for i, token in enumerate(emitted) if token in self.eos]
        length = min([len(emitted), room, *ends])
        self.written[row] += emitted[:length]
        counted = accepted[:length]
        last = accepted[-1] if accepted else 0
        return Round(
            row,
            position,
            draft.tree.budget,
            len(counted),
            tuple(int(draft.tree.rank[node]) for node in counted),
            bool(draft.tree.children(last)),
            length < len(emitted),
            calls,
            1,
            *spent,
            held,
        )

    def retire(self) -> None:
        """Lets finished rows leave the caches."""
        running = [
            i
            for i, row in enumerate(self.alive)
            if len(self.written[row]) < self.limit and self.written[row][-1] not in self.eos
        ]
        if len(running) == len(self.alive):
            return
        self.alive = [self.alive[i] for i in running]
        if running:
            self.cache.select(torch.tensor(running))
            self.drafter.select(running)


def stack(drafts: list[Draft], device) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' trees as one batch: tokens int64[B, m], depth int64[B, m], mask bool[B, m, m]; padding sees itself
    alone.

    Where all rows have the same tree, depth is [m] and the mask [m, m].
    """
    trees = [draft.tree for draft in drafts]
    if all(tree is trees[0] for tree in trees[1:]):
        tokens = torch.stack([draft.tokens for draft in drafts])
        return (
            tokens.to(device),
            torch.tensor(trees[0].depth, device=device),
            torch.tensor(trees[0].mask, device=device),
        )
    size = max(tree.size for tree in trees)
    tokens, depth = torch.zeros(2, len(trees), size, dtype=torch.long)
    mask = torch.eye(size, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, draft in enumerate(drafts):
        m = draft.tree.size
        tokens[row, :m] = draft.tokens
        depth[row, :m] = torch.tensor(draft.tree.depth)
        mask[row, :m, :m] = torch.tensor(draft.tree.mask)
    return tokens.to(device), depth.to(device), mask.to(device)


def _prompts(input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids is {tuple(input_ids.shape)}; give int64[B, T], one prompt a row")
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    return [ids[kept].cpu() for ids, kept in zip(input_ids, keep)]


def _ids(eos_token_id: int | Iterable[int] | None) -> frozenset[int]:
    if eos_token_id is None:
        return frozenset()
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)


def _check(target, prompts: list[Tensor], shape, rule: str, temperature: float, limit: int, generator) -> None:
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
    if limit < 0:
        raise ValueError(f"max_new_tokens is {limit}; give 0 or more")
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; give 0 (greedy) or more")
    if (rule == "greedy") != (temperature == 0):
        raise ValueError(
            f"rule {rule!r} at temperature {temperature}: greedy goes with temperature 0, the others with more"
        )
    if temperature and generator is None:
        raise ValueError(
            f"temperature is {temperature} but generator is None; pass a torch.Generator, for a run to be repeatable"
        )
    window = getattr(target.config, "max_position_embeddings", None)
    needed = max(map(len, prompts), default=0) + limit + getattr(shape, "max_depth", 0)
    if window and needed > window:
        raise ValueError(
            f"prompt, new tokens and tree depth need {needed} positions, the model's window has {window}; "
            "shorten the prompt, max_new_tokens or the tree"
        )
