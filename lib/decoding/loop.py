"""The loop: draft a tree, verify it in one forward pass of the target, commit the accepted path; a record per round.
Plain decoding is the same loop with a tree that is a root alone.
"""

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.registration import takes_chains
from lib.decoding.checks import DEEPEST, check, token_set, unpadded
from lib.decoding.records import Decision, Generation, Hooks, Observer, Round
from lib.drafters.drafter import ROOT_ALONE, Drafter, FirstBranch, NoDrafter, first_levels, merge
from lib.forward.passes import AUTO, ForwardPass, forward_pass
from lib.forward.prefill import nan_error, prefill
from lib.models.recurrent import read_in_steps
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws, GeneratorDraws
from lib.verify.rules import RULES, verify
from lib.verify.warping import best_token, warp


@torch.inference_mode()
def generate(target, drafter: Drafter, input_ids: Tensor, *, shape: str | Tree | Growth, rule: str = "greedy",
             temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, max_new_tokens: int = 128,
             eos_token_id: int | Sequence[int] | None = None, attention_mask: Tensor | None = None,
             generator: torch.Generator | None = None, forward: str = AUTO, observe: Observer | None = None,
             hooks: Hooks = Hooks()) -> Generation:
    """Decodes input_ids int64[B, T] by speculation with draft trees.

    target: a transformers model with attn_implementation "tree". drafter: see `lib.drafters.registry.make`. shape: a
    name, a `Tree`, or a growth rule that the drafter can follow. attention_mask: bool or int [B, T], 0 at padding, on
    either side; needed where some rows, not all, begin or end with the target's padding token. temperature: 0 is
    greedy and takes the rule "greedy"; above 0, `generator` is needed. forward: the name of the target's forward pass
    (see `lib.forward`); drafters choose their own.

    Every round has the same tree, also where fewer tokens remain to be written, so that live rounds are those of
    replay. Trees are cut to the levels that fit only near the end of the target's or the drafter's window. A shape
    never has more levels than max_new_tokens, or DEEPEST if that is more. ValueError names the argument that cannot be
    used, its value and the remedy.
    """
    prompts, shape = unpadded(target, input_ids, attention_mask), named(shape)
    window = check(target, drafter, prompts, shape, rule, temperature, max_new_tokens, generator)
    shape = first_levels(shape, max(max_new_tokens, DEEPEST))
    if takes_chains(target.config):
        read_in_steps(target)
        drafter = FirstBranch(drafter)
    drafter.with_probs = RULES[rule].compares
    drafter_calls, eos = drafter.calls, token_set(eos_token_id)
    decider = Decider(rule, (temperature, top_k, top_p), GeneratorDraws(generator), hooks)
    loop = _Loop(forward_pass(target, forward), drafter, shape, decider, window, max_new_tokens, eos, observe)
    loop.run(prompts)
    sequences = padded(input_ids.cpu(), loop.written, min(eos, default=0))
    calls = loop.calls, drafter.calls - drafter_calls
    return Generation(sequences, loop.rounds, loop.written, *calls, loop.forward.name)


def padded(input_ids: Tensor, written: list[list[int]], padding: int) -> Tensor:
    """int64[B, T + new]: the inputs and each row's generated tokens, with padding after them."""
    rows = [torch.tensor(row, dtype=torch.long, device=input_ids.device) for row in written]
    return torch.cat([input_ids, pad_sequence(rows, batch_first=True, padding_value=padding)], dim=1)


def in_batches(prompts: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts int64[T] right-padded in batches of `rows` rows: tokens int64[B, T] and their mask bool[B, T]."""
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        masks = [torch.ones(len(prompt), dtype=torch.bool) for prompt in batch]
        yield pad_sequence(batch, batch_first=True), pad_sequence(masks, batch_first=True)


def continuations(target, prompts: Sequence[Tensor], *, max_new_tokens: int, temperature: float = 0.0, rows: int = 32,
                  eos_token_id: int | Sequence[int] | None = None,
                  generator: torch.Generator | None = None) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], by plain decoding in batches of `rows` rows."""
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
    itself alone. Where all rows have the same tree, depth is [m] and the mask [m, m].
    """
    trees = [draft.tree for draft in drafts]
    if all(tree is trees[0] or tree == trees[0] for tree in trees[1:]):
        return torch.stack([draft.tokens for draft in drafts]).to(device), *geometry(trees[0], device)
    parts = [geometry(tree, torch.device("cpu")) for tree in trees]
    tokens, depth = (pad_sequence(rows, batch_first=True)
                     for rows in ([draft.tokens for draft in drafts], [depth for depth, _ in parts]))
    mask = torch.eye(tokens.shape[1], dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, (_, visible) in enumerate(parts):
        mask[row, : len(visible), : len(visible)] = visible
    return tokens.to(device), depth.to(device), mask.to(device)


@dataclass(frozen=True)
class Decider:
    """A rule, the warping of the target's distribution, the draws, and the caller's hooks."""

    rule: str
    warping: tuple[float, int | None, float | None]  # temperature, top k, top p
    draws: Draws
    hooks: Hooks

    def decide(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> list[Decision]:
        """The accepted nodes and bonus token of each row, from logits [B, m, V]; written: the rows' new tokens.
        FloatingPointError where logits are NaN, which a node's best token, and all its probabilities, then are.
        """
        if self.hooks.adjust:
            logits = logits.clone()
            for i, (row, draft) in enumerate(zip(rows, drafts)):
                contexts = [written[row]]  # the text up to each node
                for node in range(1, draft.tree.size):
                    contexts.append([*contexts[draft.tree.parents[node]], draft.token_list[node]])
                logits[i, : draft.tree.size] = self.hooks.adjust(row, contexts, logits[i, : draft.tree.size])
        if self.rule == "greedy":  # the best tokens of all rows reach the host in one transfer
            tokens = best_token(logits)
            _refuse_nan(logits.gather(-1, tokens[..., None]))
            return [draft.follow(best.__getitem__) for draft, best in zip(drafts, tokens.tolist())]
        probs = warp(logits, *self.warping)
        _refuse_nan(probs[..., 0])
        return [verify(self.rule if draft.tree.budget else "naive",  # a root alone is plain decoding for any rule
                       draft, probs[i, : draft.tree.size], self.draws) for i, draft in enumerate(drafts)]


def _refuse_nan(values: Tensor) -> None:
    """FloatingPointError where one of these is NaN, which their sum, a single number, tells in a few microseconds."""
    if math.isnan(values.sum()):
        raise FloatingPointError


class _Loop:
    """The state of a batch while it is decoded.

    window: positions that a text and its tree may take together. limit: the most new tokens of a row. calls: forward
    passes of the target, the prefill counted as one. `run` sets the others: cache, the target's; written, each row's
    new tokens; alive, the rows of the input that still run, in the order of the caches' rows.
    """

    def __init__(self, forward: ForwardPass, drafter: Drafter, shape: Tree | Growth, decider: Decider, window: float,
                 limit: int, eos: frozenset[int], observe: Observer | None):
        self.forward, self.drafter, self.shape, self.decider = forward, drafter, shape, decider
        self.window, self.limit, self.eos, self.observe, self.hooks = window, limit, eos, observe, decider.hooks
        self.rounds: list[Round] = []
        self.ended: set[int] = set()
        self.calls = 0

    def run(self, prompts: list[Tensor]) -> None:
        """Prefill, then rounds until every row has ended."""
        self.written: list[list[int]] = [[] for _ in prompts]
        self.alive = list(range(len(prompts)))
        if not self.limit:
            return
        outputs = prefill(self.forward, prompts, self.drafter.wants_hidden_states)
        self.cache = outputs.cache
        # the first roots: the target's next token after each prompt, decided by drafts without draft tokens
        roots_alone = [merge(0, ())] * len(prompts)
        decisions, self.calls = self.decide(roots_alone, outputs.logits[:, None]), 1
        roots = [root for _, root in decisions]
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
        drafter_calls = self.drafter.calls
        # draft
        started = time.perf_counter()
        room = self.window - 1 - self.cache.rows.longest  # after the root, which is in no cache
        drafts = self.drafter.propose(first_levels(self.shape, room), self.decider.draws)
        # verify
        drafted = time.perf_counter()
        outputs = self.forward(*stack(drafts, self.forward.device), self.cache,
                               output_hidden_states=self.drafter.wants_hidden_states)
        decisions = self.decide(drafts, outputs.logits)
        # commit
        verified = time.perf_counter()
        self.cache.commit([[ROOT, *accepted] for accepted, _ in decisions])
        committed = time.perf_counter()
        self.drafter.commit([accepted for accepted, _ in decisions], [bonus for _, bonus in decisions], outputs)
        ended = time.perf_counter()
        self.calls += 1
        costs = {"draft_calls": self.drafter.calls - drafter_calls, "draft_seconds": drafted - started + ended - committed,
                 "verify_seconds": verified - drafted, "commit_seconds": committed - verified}
        for row, draft, (accepted, bonus) in zip(self.alive, drafts, decisions):
            self.record(row, draft, accepted, bonus, costs)
        if self.observe:
            self.observe(self.alive, drafts, decisions)
        self.retire()

    def decide(self, drafts: list[Draft], logits: Tensor) -> list[Decision]:
        """The decision of each row that still runs. ValueError with the round, counted from 1, where logits are NaN."""
        try:
            return self.decider.decide(self.alive, self.written, drafts, logits)
        except FloatingPointError:
            raise nan_error(self.forward.model, f"in round {self.calls}") from None

    def record(self, row: int, draft: Draft, accepted: list[int], bonus: int, costs: dict[str, float]) -> None:
        """Writes the tokens of a row's round and keeps its record, with the costs of the whole batch."""
        position, length = len(self.written[row]), self.write(row, [*draft.tokens_of(accepted), bonus])
        self.rounds.append(Round(row, position, drafted=draft.tree.budget, accepted=len(accepted[:length]), **costs))

    def write(self, row: int, tokens: list[int]) -> int:
        """Appends tokens to a row until it ends. Returns their number up to EOS or a hook's end, past the limit too."""
        written, first = self.written[row], len(self.written[row])
        for length, token in enumerate(tokens, 1):
            if fits := len(written) < self.limit:
                written.append(token)
            if token in self.eos or fits and self.hooks.stop and self.hooks.stop(row, written):
                self.ended.add(row)
                break
        if len(written) == self.limit:
            self.ended.add(row)
        if self.hooks.emit:
            self.hooks.emit(row, written[first:])
        return length

    def retire(self) -> None:
        """Removes finished rows from the caches."""
        running = [index for index, row in enumerate(self.alive) if row not in self.ended]
        if len(running) == len(self.alive):
            return
        self.alive = [self.alive[index] for index in running]
        if running:
            self.cache.select(torch.tensor(running))
            self.drafter.select(running)
