"""The time to verify a tree over a large vocabulary, relative to one read of the probabilities that the rule reads.

The rows that a rule reads are counted, not assumed: the rows of target and draft probabilities of which it reads at
least half of the entries. Rules read a row only where a decision or the bonus token needs all of it, so these are the
rows that a rule needs. One read is the time to sum each of them once. After a forward pass of a large model no cache
holds them, so the caches are emptied before every timed call; then the call runs once on a few tokens, because a
decoding loop has its code in the caches.
"""

from typing import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lib.lab.tables import Table
from lib.lab.timing import wall_seconds
from lib.trees.shapes import parse
from lib.trees.tree import Tree
from lib.verify.draft import Draft
from lib.verify.draws import GeneratorDraws
from lib.verify.rules import RULES, verify

CACHES = 64 << 20  # bytes that are read to empty the caches
TOKENS = 1 << 14  # of the smaller vocabulary on which a rule is run before it is timed
Case = tuple[Draft, Tensor]


def measure(table: Table, rules: Sequence[str], shapes: Sequence[str], *, vocabulary: int, generator: torch.Generator,
            rounds: int = 8, agreement: float = 0.8, repeats: int = 9, device: str = "cpu") -> pd.DataFrame:
    """The table "rules_cost": one row for each rule and shape (names as for `shapes.parse`). Only missing rows are
    timed.

    Each rule verifies `rounds` random drafts of the proposal that it was made for, whose logits have a correlation of
    `agreement` with the target's.
    """
    for shape in shapes:
        tree, cases = parse(shape), {}  # proposal -> drafts, the same for all rules made for it
        fitting = [name for name in rules if RULES[name].shapes == "any" or tree.max_depth == tree.budget]
        for name in fitting:
            proposal = RULES[name].made_for
            if (name, proposal, shape, vocabulary) in table.keys():
                continue
            if proposal not in cases:
                cases[proposal] = [random_round(tree, proposal, vocabulary, agreement, generator, device)
                                   for _ in range(rounds)]
            times = time_rule(name, cases[proposal], repeats=repeats, generator=generator, device=device)
            table.append(rule=name, proposal=proposal, shape=shape, nodes=tree.budget, vocabulary=vocabulary,
                         dtype="float32", agreement=agreement, rounds=rounds, **times)
    return table.frame()


def time_rule(rule: str, cases: Sequence[Case], *, repeats: int, generator: torch.Generator,
              device: str = "cpu") -> dict[str, float]:
    """Microseconds of a verification and of one read of its rows (means over the cases, medians over the repeats), and
    the median and quartiles over the repeats of their ratio."""
    rows = [read_in_full(rule, *case, seed) for seed, case in enumerate(cases)]
    few = [fewer_tokens(*case) for case in cases]
    caches = torch.ones(CACHES // 4, device=device)
    seconds = np.empty((2, repeats, len(cases)))
    for repeat in range(repeats):
        for place, (case, runs) in enumerate(zip(cases, rows)):
            calls = [
                lambda few, draws: verify(rule, *(few or case), draws),
                lambda few, draws: [float(run[:, : TOKENS if few else None].sum()) for run in runs],
            ]
            for which in torch.randperm(2, generator=generator).tolist():
                draws = begun(place)
                caches.sum()
                calls[which](few[place], begun(place))
                seconds[which, repeat, place] = wall_seconds(lambda: calls[which](None, draws), device)
    each = seconds.mean(-1)  # float[2, repeats]
    verify_us, read_us = 1e6 * np.median(each, axis=1)
    lower, times_read, upper = np.quantile(each[0] / each[1], [0.25, 0.5, 0.75])
    return dict(rows_read=sum(len(run) for runs in rows for run in runs) / len(cases), verify_us=verify_us,
                read_us=read_us, times_read=times_read, lower=lower, upper=upper, repeats=repeats)


def random_round(tree: Tree, proposal: str, vocabulary: int, agreement: float, generator: torch.Generator,
                 device: str = "cpu") -> Case:
    """A draft and target probabilities float32[m, V]; the logits of both are random, with correlation `agreement`."""
    own, other = torch.randn(2, tree.size, vocabulary, generator=generator).to(device)
    # A spread of 3 gives an entropy a few nats below that of a uniform law, with a long tail, as in language models.
    target = torch.softmax(3 * own, -1)
    probs = torch.softmax(3 * (agreement * own + (1 - agreement**2) ** 0.5 * other), -1)
    tokens = torch.zeros(tree.size, dtype=torch.long)
    # The k smallest of exponential times over probability are k draws without replacement, in draw order.
    waits = torch.empty(probs.shape).exponential_(generator=generator).to(device)
    for node in range(tree.size):
        children = list(tree.children(node))
        if children:
            scores = probs[node] if proposal == "top_k" else probs[node] / waits[node]
            tokens[children] = scores.topk(len(children)).indices.cpu()
    return Draft(tree, tokens, proposal, probs), target


def fewer_tokens(draft: Draft, target: Tensor) -> Case:
    """The same tree over the first TOKENS tokens."""
    probs = torch.softmax(draft.probs[:, :TOKENS].log(), -1)
    tokens = draft.tokens.clamp_max(probs.shape[1] - 1)
    return Draft(draft.tree, tokens, draft.proposal, probs), torch.softmax(target[:, :TOKENS].log(), -1)


def seeded(seed: int) -> GeneratorDraws:
    """Draws from a new generator."""
    return GeneratorDraws(torch.Generator().manual_seed(seed))


def begun(seed: int) -> GeneratorDraws:
    """The same draws with their first numbers already drawn, as in the middle of a text."""
    draws = seeded(seed)
    draws.prepare()
    return draws


def read_in_full(name: str, draft: Draft, target: Tensor, seed: int) -> list[Tensor]:
    """The rows of target and draft probabilities that the rule reads with the draws of a seed; adjacent rows are one
    tensor."""
    with _Reads([target, draft.probs]) as reads, _Passed(reads):
        verify(name, draft, target, seeded(seed))
    runs = []
    for matrix, rows in zip(reads.matrices, reads.rows):
        firsts = [row for row in sorted(rows) if row - 1 not in rows]
        ends = [row + 1 for row in sorted(rows) if row + 1 not in rows]
        runs += [matrix[first:end] for first, end in zip(firsts, ends)]
    return runs


class _Reads(TorchDispatchMode):
    """Records the rows of some matrices of which an operation reads at least half; single entries do not count."""

    ENTRIES = torch.ops.aten.index.Tensor  # has the whole matrix as its argument, but reads single entries

    def __init__(self, matrices: Sequence[Tensor]):
        super().__init__()
        self.matrices, self.rows = matrices, [set() for _ in matrices]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and function is not self.ENTRIES:
            for value in args:
                if isinstance(value, Tensor) and value.numel():
                    self.record(value)
        return function(*args, **(kwargs or {}))

    def record(self, value: Tensor) -> None:
        for matrix, rows in zip(self.matrices, self.rows):
            if value.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr():
                last = value.storage_offset() + sum((size - 1) * step
                                                    for size, step in zip(value.shape, value.stride()))
                touched = range(value.storage_offset() // matrix.shape[1], last // matrix.shape[1] + 1)
                if value.numel() >= len(touched) * matrix.shape[1] / 2:
                    rows.update(touched)


class _Passed(TorchFunctionMode):
    """Records rows that are passed to numpy or C++, which no operator of torch shows; whole matrices are passed only to
    read single entries."""

    def __init__(self, reads: _Reads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (Tensor.numpy, Tensor.data_ptr) and args[0].dim() == 1:
            self.reads.record(args[0])
        return function(*args, **(kwargs or {}))
