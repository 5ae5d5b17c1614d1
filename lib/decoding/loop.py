"""The loop: draft a tree, verify it in one forward pass of the target, commit the accepted path; a record per round.
Plain decoding is the same loop with a tree that is a root alone.
"""

import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.registration import takes_chains
from lib.decoding.checks import check, check_shape, token_set, unpadded, within_limits
from lib.decoding.records import Decision, Generation, Hooks, Observer, Round
from lib.drafters.drafter import ROOT_ALONE, Drafter, LeadingChain, NoDrafter, refuse_nan
from lib.forward.passes import AUTO, ForwardPass, forward_pass
from lib.forward.prefill import prefill
from lib.lab.timing import clocked
from lib.models.recurrent import read_in_steps
from lib.trees import named
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws, GeneratorDraws
from lib.verify.rules import RULES, verify
from lib.verify.warping import best_token_list, warp

LOG = logging.getLogger(__name__)  # a line per call, of the level INFO


@torch.inference_mode()
def generate(
    target,
    drafter: Drafter,
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
    forward: str = AUTO,
    observe: Observer | None = None,
    hooks: Hooks = Hooks(),
) -> Generation:
    """Decodes input_ids int64[B, T] by speculation with draft trees.

    target: a transformers model with attn_implementation "tree". drafter: see `lib.drafters.registry.make`. shape: a
    name, a `Tree`, or a growth rule that the drafter can follow. attention_mask: bool or int [B, T], 0 at padding, on
    either side; needed where some rows, not all, begin or end with the target's padding token. temperature: 0 is
    greedy and takes the rule "greedy"; above 0, `generator` is needed. forward: the name of the target's forward pass
    (see `lib.forward`); drafters choose their own. observe: called after each round with the rows that ran, their
    drafts, and the decision of each. ValueError names the argument that cannot be used, its value and the remedy. Each
    call logs its summary.
    """
    prompts = unpadded(target, input_ids, attention_mask)
    shape = named(shape)
    check(target, drafter, prompts, rule, temperature, max_new_tokens, generator)
    check_shape(target, shape)
    if takes_chains(target.config):
        read_in_steps(target)
        drafter = LeadingChain(drafter)
    drafter = within_limits(target, drafter, shape, prompts, max_new_tokens)
    drafter.ask_probs(RULES[rule].compares)
    calls = drafter.calls
    decider = Decider(rule, (temperature, top_k, top_p), GeneratorDraws(generator), hooks)
    loop = _Loop(forward_pass(target, forward), drafter, shape, decider, max_new_tokens, token_set(eos_token_id),
                 observe)
    loop.run(prompts)
    sequences = padded(input_ids.cpu(), loop.written, min(loop.eos, default=0))
    done = Generation(sequences, loop.rounds, loop.written, loop.calls, drafter.calls - calls, loop.forward.name)
    if LOG.isEnabledFor(logging.INFO):
        LOG.info(done.summary())
    return done


def padded(input_ids: Tensor, written: list[list[int]], padding: int) -> Tensor:
    """int64[B, T + new]: the inputs and each row's generated tokens, with padding after them."""
    width = max(map(len, written), default=0)
    rows = [row + [padding] * (width - len(row)) for row in written]
    new = torch.tensor(rows, dtype=torch.long, device=input_ids.device).reshape(len(written), width)
    return torch.cat([input_ids, new], dim=1)


def in_batches(prompts: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts int64[T] right-padded in batches of `rows` rows: tokens int64[B, T] and their mask bool[B, T]."""
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        tokens = pad_sequence(batch, batch_first=True)
        yield tokens, torch.arange(tokens.shape[1])[None] < torch.tensor([len(prompt) for prompt in batch])[:, None]


def continuations(target, prompts: Sequence[Tensor], *, max_new_tokens: int, temperature: float = 0.0, rows: int = 32,
                  eos_token_id: int | Sequence[int] | None = None,
                  generator: torch.Generator | None = None) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], in batches of `rows` rows: plain decoding in the same loop,
    with a tree that is a root alone.
    """
    written: list[list[int]] = []
    for tokens, mask in in_batches(prompts, rows):
        done = generate(target, NoDrafter(), tokens, attention_mask=mask, shape=ROOT_ALONE,
                        rule="naive" if temperature else "greedy", temperature=temperature,
                        max_new_tokens=max_new_tokens, eos_token_id=eos_token_id, generator=generator)
        written += done.new_tokens
    return written


@lru_cache(maxsize=512)
def geometry(tree: Tree, device: torch.device) -> tuple[Tensor, Tensor]:
    """A tree's depth int64[m] and mask bool[m, m] on a device."""
    return torch.tensor(tree.depth, device=device), torch.tensor(tree.mask, device=device)


def stack(drafts: list[Draft], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' trees as one batch: tokens int64[B, m], depth int64[B, m], mask bool[B, m, m]; padding attends to
    itself alone.

    Where all rows have the same tree, depth is [m] and the mask [m, m].
    """
    trees = [draft.tree for draft in drafts]
    if all(tree is trees[0] or tree == trees[0] for tree in trees[1:]):
        return torch.stack([draft.tokens for draft in drafts]).to(device), *geometry(trees[0], device)
    size = max(tree.size for tree in trees)
    tokens, depth = torch.zeros(2, len(trees), size, dtype=torch.long)
    mask = torch.eye(size, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, draft in enumerate(drafts):
        m = draft.tree.size
        tokens[row, :m] = draft.tokens
        depth[row, :m], mask[row, :m, :m] = geometry(draft.tree, torch.device("cpu"))
    return tokens.to(device), depth.to(device), mask.to(device)


@dataclass(frozen=True)
class Decider:
    """A rule, the warping of the target's distribution, the draws, and the caller's hooks."""

    rule: str
    warping: tuple[float, int | None, float | None]  # temperature, top k, top p
    draws: Draws
    hooks: Hooks

    def first(self, rows: list[int], logits: Tensor) -> list[int]:
        """The first roots of these rows: the target's next token after each prompt, from logits [B, V]."""
        if self.hooks.adjust:
            logits = torch.cat([self.hooks.adjust(row, [[]], logits[i : i + 1]) for i, row in enumerate(rows)])
        if self.rule == "greedy":
            return best_token_list(logits)
        return [self.draws.categorical(probs) for probs in warp(logits, *self.warping)]

    def round(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> list[Decision]:
        """The accepted nodes and bonus token of each row, from logits [B, m, V]; written: the rows' generated tokens.

        Greedy verification needs only the best token of each node; those of all rows reach the host in one transfer.
        """
        if self.hooks.adjust:
            logits = logits.clone()
            for i, (row, draft) in enumerate(zip(rows, drafts)):
                contexts = [written[row]]  # the text up to each node
                for node in range(1, draft.tree.size):
                    contexts.append([*contexts[draft.tree.parents[node]], draft.token_list[node]])
                logits[i, : draft.tree.size] = self.hooks.adjust(row, contexts, logits[i, : draft.tree.size])
        if self.rule == "greedy":
            return [draft.follow(after.__getitem__) for draft, after in zip(drafts, best_token_list(logits))]
        probs = warp(logits, *self.warping)
        return [verify(self.rule if draft.tree.budget else "naive",  # a root alone is plain decoding for any rule
                       draft, probs[i, : draft.tree.size], self.draws) for i, draft in enumerate(drafts)]


class _Loop:
    """The state of a batch while it is decoded; `alive` maps the rows that still run to rows of the input."""

    def __init__(self, forward: ForwardPass, drafter, shape, decider: Decider, limit: int, eos: frozenset[int],
                 observe: Observer | None):
        self.forward, self.drafter, self.shape, self.decider = forward, drafter, shape, decider
        self.limit, self.eos, self.observe, self.hooks = limit, eos, observe, decider.hooks
        # Heads read the target's hidden states; the first commit brings those of the prompts.
        self.outputs = {"output_hidden_states": True} if drafter.wants_hidden_states else {}
        self.rounds: list[Round] = []
        self.calls = 0  # forward passes of the target

    def run(self, prompts: list[Tensor]) -> None:
        """Prefill, then rounds until every row has ended."""
        self.alive = list(range(len(prompts)))
        self.ended: set[int] = set()
        self.written: list[list[int]] = [[] for _ in prompts]
        if not self.limit or not prompts:
            return
        outputs = prefill(self.forward, prompts, self.drafter.wants_hidden_states)
        refuse_nan(outputs.logits, self.forward.model)
        self.cache, self.calls = outputs.cache, 1
        roots = self.decider.first(self.alive, outputs.logits)  # the target's next token after each prompt
        self.drafter.start(prompts)
        self.drafter.commit([[] for _ in roots], roots, outputs)
        del outputs  # the prompts' hidden states are not kept while rounds run
        for row, root in zip(self.alive, roots):
            self.write(row, [root])
        self.retire()
        while self.alive:
            self.round()

    def round(self) -> None:
        """One draft and one forward pass of the target for every row that still runs."""
        clock, calls = [time.perf_counter()], self.drafter.calls
        self.calls += 1
        with clocked() as models:
            drafts = self.drafter.propose(self.shape, self.decider.draws)
            clock.append(time.perf_counter())
            outputs = self.forward(*stack(drafts, self.forward.device), self.cache, **self.outputs)
            decided = self.decider.round(self.alive, self.written, drafts, outputs.logits)
            clock.append(time.perf_counter())
            self.cache.commit([[0, *accepted] for accepted, _ in decided])
            self.drafter.commit([accepted for accepted, _ in decided], [bonus for _, bonus in decided], outputs)
            clock.append(time.perf_counter())
        spent = [after - before for before, after in zip(clock, clock[1:])]
        held, calls = self.cache.bytes + self.drafter.cache_bytes, self.drafter.calls - calls
        plain = self.drafter.past_window
        for place, (row, draft, (accepted, bonus)) in enumerate(zip(self.alive, drafts, decided)):
            emitted, position = [*draft.tokens_of(accepted), bonus], len(self.written[row])
            length = self.write(row, emitted)
            counted = accepted[:length]
            ranks = tuple(int(draft.tree.rank[node]) for node in counted)
            open_end = length == len(emitted) and bool(draft.tree.children(accepted[-1] if accepted else ROOT))
            self.rounds.append(Round(row, position, draft.tree.budget, len(counted), ranks, open_end, calls, 1, *spent,
                                     held, models.seconds, place in plain))
        if self.observe:
            self.observe(self.alive, drafts, decided)
        self.retire()

    def write(self, row: int, emitted: list[int]) -> int:
        """Appends tokens to a row up to the limit, EOS or the token at which a hook stops it; returns the number of
        tokens up to EOS or the hook's, those past the limit included.
        """
        written, first = self.written[row], len(self.written[row])
        length = len(emitted)
        for place, token in enumerate(emitted):
            inside = first + place < self.limit
            if inside:
                written.append(token)
            if token in self.eos or (inside and self.hooks.stop and self.hooks.stop(row, written)):
                self.ended.add(row)
                length = place + 1
                break
        if len(written) == self.limit:
            self.ended.add(row)
        if self.hooks.emit:
            self.hooks.emit(row, written[first:])
        return length

    def retire(self) -> None:
        """Removes finished rows from the caches."""
        running = [i for i, row in enumerate(self.alive) if row not in self.ended]
        if len(running) == len(self.alive):
            return
        self.alive = [self.alive[i] for i in running]
        if running:
            self.cache.select(torch.tensor(running))
            self.drafter.select(running)
