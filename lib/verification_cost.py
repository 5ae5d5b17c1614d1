"""What verifying a tree over a large vocabulary costs, against one read of the probabilities that it had to read."""

from typing import Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lib.shapes import parse
from lib.timing import interleaved
from lib.tree import Tree
from lib.verify import RULES, Draft, GeneratorDraws, verify


def table(
    rules: Sequence[str],
    shapes: Sequence[str],
    *,
    vocabulary: int,
    generator: torch.Generator,
    rounds: int = 8,
    agreement: float = 0.8,
    repeats: int = 9,
    seconds: float = 2.0,
    device: str = "cpu",
) -> pd.DataFrame:
    """A row a rule and shape (names as for `shapes.parse`): the mean microseconds of `rounds` verifications, and of
    one read.

    `rows_read`: rows of target and draft probabilities that were read in full, a round; `read_us`: the time to sum
    these once; `times_read`: how many such reads a verification costs, medians of interleaved repeats.
    """
    found = []
    for shape in shapes:
        tree = parse(shape)
        fitting = [name for name in rules if RULES[name].shapes == "any" or tree.max_depth == tree.budget]
        drafted: dict[str, list] = {}  # rules of one proposal decide about the same drafts
        for name in fitting:
            proposal = sorted(RULES[name].proposals)[-1]
            if proposal not in drafted:
                drafted[proposal] = [
                    random_round(tree, proposal, vocabulary, agreement, generator, device) for _ in range(rounds)
                ]
            cases = drafted[proposal]
            seeds = range(len(cases))
            read = [_read_in_full(name, *case, seed) for case, seed in zip(cases, seeds)]
            timed = interleaved(
                {
                    "verify": lambda: [_decide(name, *case, seed) for case, seed in zip(cases, seeds)],
                    "read": lambda: [float(rows.sum()) for runs in read for rows in runs],
                },
                repeats=repeats,
                seconds=seconds,
                generator=generator,
                device=device,
            )
            found.append(
                {
                    "rule": name,
                    "proposal": proposal,
                    "shape": shape,
                    "nodes": tree.budget,
                    "vocabulary": vocabulary,
                    "rows_read": sum(len(rows) for runs in read for rows in runs) / rounds,
                    "verify_us": 1e6 * timed["verify"].median / rounds,
                    "read_us": 1e6 * timed["read"].median / rounds,
                    "times_read": timed["verify"].median / timed["read"].median,
                    "repeats": timed["verify"].repeats,
                }
            )
    return pd.DataFrame(found)


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


def _decide(name: str, draft: Draft, target: Tensor, seed: int) -> tuple[list[int], int]:
    return verify(name, draft, target, GeneratorDraws(torch.Generator().manual_seed(seed)))


def _read_in_full(name: str, draft: Draft, target: Tensor, seed: int) -> list[Tensor]:
    """The rows of the two matrices that the rule reads, side by side ones as one tensor."""
    with _Reads([target, draft.probs]) as reads:
        _decide(name, draft, target, seed)
    runs = []
    for matrix, rows in zip(reads.matrices, reads.rows):
        firsts = [row for row in sorted(rows) if row - 1 not in rows]
        behind = [row + 1 for row in sorted(rows) if row + 1 not in rows]
        runs += [matrix[first:last] for first, last in zip(firsts, behind)]
    return runs


class _Reads(TorchDispatchMode):
    """Notes which rows of some matrices are read, at least half of each at once; looks at single entries are free."""

    def __init__(self, matrices: Sequence[Tensor]):
        super().__init__()
        self.matrices, self.rows = matrices, [set() for _ in matrices]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            for value in args:
                if isinstance(value, Tensor) and value.numel():
                    self._note(value)
        return function(*args, **(kwargs or {}))

    def _note(self, value: Tensor) -> None:
        for matrix, rows in zip(self.matrices, self.rows):
            if value.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr():
                last = value.storage_offset() + sum(
                    (size - 1) * step for size, step in zip(value.shape, value.stride())
                )
                found = range(value.storage_offset() // matrix.shape[1], last // matrix.shape[1] + 1)
                if value.numel() >= len(found) * matrix.shape[1] / 2:
                    rows.update(found)
