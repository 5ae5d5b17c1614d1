"""What verifying a tree over a large vocabulary costs, against one read of the probabilities that it had to read.

What a rule must look at is counted, not assumed: the rows of target and draft probabilities of which it reads at least
half of the entries. Rules read a row only where a decision or the bonus token needs all of it, so that the rows of a
rule are those that it cannot do without. One read is the time to sum each of these rows once. A forward of a large
model has left them in no cache, so the caches are emptied before every timed call; then the call runs once on a few
tokens, because a decoding loop comes by every round and has its code at hand.
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
from lib.verify.long_sums import LONG
from lib.verify.rules import RULES, verify

CACHES = 64 << 20  # bytes that are read to empty them
TOKENS = LONG  # few, of which rules run the code that they run of many
Case = tuple[Draft, Tensor]


def table(
    kept: Table,
    rules: Sequence[str],
    shapes: Sequence[str],
    *,
    vocabulary: int,
    generator: torch.Generator,
    rounds: int = 8,
    agreement: float = 0.8,
    repeats: int = 9,
    device: str = "cpu",
) -> pd.DataFrame:
    """The table "rules_cost": a row a rule and shape (names as for `shapes.parse`); what is there is not timed again.

    Each rule verifies `rounds` random drafts of the proposal that it was made for, whose logits have a correlation of
    `agreement` with the target's.
    """
    for shape in shapes:
        tree, cases = parse(shape), {}  # proposal -> drafts; rules of one proposal decide about the same ones
        fitting = [name for name in rules if RULES[name].shapes == "any" or tree.max_depth == tree.budget]
        for name in fitting:
            proposal = made_for(name)
            if (name, proposal, shape, vocabulary) in kept.keys():
                continue
            if proposal not in cases:
                given = tree, proposal, vocabulary, agreement, generator, device
                cases[proposal] = [random_round(*given) for _ in range(rounds)]
            about = {"rule": name, "proposal": proposal, "shape": shape, "nodes": tree.budget}
            times = measure(name, cases[proposal], repeats=repeats, generator=generator, device=device)
            kept.append(**about, vocabulary=vocabulary, agreement=agreement, rounds=rounds, **times)
    return kept.frame()


def made_for(rule: str) -> str:
    """The proposal that a rule is timed with; of those that it takes, the one that costs it most."""
    return next(name for name in ("without_replacement", "iid", "top_k") if name in RULES[rule].proposals)


def measure(
    rule: str, cases: Sequence[Case], *, repeats: int, generator: torch.Generator, device: str = "cpu"
) -> dict[str, float]:
    """Microseconds a verification and a read of its rows, means over the cases and medians over the repeats; the median
    and the quartiles over the repeats of the ratio of both."""
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
    return {
        "rows_read": sum(len(run) for runs in rows for run in runs) / len(cases),
        "verify_us": verify_us,
        "read_us": read_us,
        "times_read": times_read,
        "lower": lower,
        "upper": upper,
        "repeats": repeats,
    }


def random_round(
    tree: Tree, proposal: str, vocabulary: int, agreement: float, generator: torch.Generator, device: str = "cpu"
) -> tuple[Draft, Tensor]:
    """A draft and target probabilities float32[m, V]; the logits of both are random, with correlation `agreement`."""
    own, other = torch.randn(2, tree.size, vocabulary, generator=generator).to(device)
    # A spread of 3 gives an entropy of a few nats below uniform, with a long tail, as language models have.
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
    """The same tree over the first TOKENS tokens alone."""
    probs = torch.softmax(draft.probs[:, :TOKENS].log(), -1)
    tokens = draft.tokens.clamp_max(probs.shape[1] - 1)
    return Draft(draft.tree, tokens, draft.proposal, probs), torch.softmax(target[:, :TOKENS].log(), -1)


def seeded(seed: int) -> GeneratorDraws:
    """Draws of a generator of their own."""
    return GeneratorDraws(torch.Generator().manual_seed(seed))


def begun(seed: int) -> GeneratorDraws:
    """The same draws with their numbers at hand, as in the middle of a text."""
    draws = seeded(seed)
    draws.prepare()
    return draws


def read_in_full(name: str, draft: Draft, target: Tensor, seed: int) -> list[Tensor]:
    """The rows of the two matrices that the rule reads with the draws of a seed, those side by side as one tensor."""
    with _Reads([target, draft.probs]) as reads, _Handed(reads):
        verify(name, draft, target, seeded(seed))
    runs = []
    for matrix, rows in zip(reads.matrices, reads.rows):
        firsts = [row for row in sorted(rows) if row - 1 not in rows]
        behind = [row + 1 for row in sorted(rows) if row + 1 not in rows]
        runs += [matrix[first:last] for first, last in zip(firsts, behind)]
    return runs


class _Reads(TorchDispatchMode):
    """Notes which rows of some matrices are read, at least half of each at once; single entries are free."""

    ENTRIES = torch.ops.aten.index.Tensor  # takes a matrix, and reads what it is asked for

    def __init__(self, matrices: Sequence[Tensor]):
        super().__init__()
        self.matrices, self.rows = matrices, [set() for _ in matrices]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and function is not self.ENTRIES:
            for value in args:
                if isinstance(value, Tensor) and value.numel():
                    self.note(value)
        return function(*args, **(kwargs or {}))

    def note(self, value: Tensor) -> None:
        for matrix, rows in zip(self.matrices, self.rows):
            if value.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr():
                last = value.storage_offset() + sum(
                    (size - 1) * step for size, step in zip(value.shape, value.stride())
                )
                found = range(value.storage_offset() // matrix.shape[1], last // matrix.shape[1] + 1)
                if value.numel() >= len(found) * matrix.shape[1] / 2:
                    rows.update(found)


class _Handed(TorchFunctionMode):
    """Notes as read the rows that are handed to numpy or C++, where no operator of torch would show it; a matrix is
    handed for single entries."""

    def __init__(self, reads: _Reads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (Tensor.numpy, Tensor.data_ptr) and args[0].dim() == 1:
            self.reads.note(args[0])
        return function(*args, **(kwargs or {}))
