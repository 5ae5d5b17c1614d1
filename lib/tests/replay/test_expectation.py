"""Expected acceptance from chances along the text, against the enumeration of every draft, coin and text."""

from itertools import product

import numpy as np
import pytest
import torch

from lib import replay
from lib.replay import expectation
from lib.trees import Tree, named
from lib.verify import proof
from lib.verify.proof import Logits

V = 3
UNEVEN = Tree.from_choices([(0,), (1,), (2,), (1, 0)])  # a child's place decides what hangs below it
SAMPLES = 4000  # of what was rejected, so that a comparison is exact but for those


def every_text(depth, seed=0, agreement=0.6, temperature=1.0):
    """Two languages, and a trace whose rows are all texts of so many tokens, with each text's probability."""
    generator = torch.Generator().manual_seed(seed)
    logits = Logits.random(V, depth, generator)
    target, drafter = (one.language(temperature) for one in (logits, logits.related(agreement, generator)))
    texts = list(product(range(V), repeat=depth))
    paths = [text[:step] for text in texts for step in range(depth)]
    tokens = torch.tensor([token for text in texts for token in text])
    p, q = (torch.stack([language(path) for path in paths]) for language in (target, drafter))
    chances = expectation.chances(p, q, tokens, 3, torch.Generator().manual_seed(1))
    many = (values.repeat_interleave(SAMPLES, 0) for values in (p, q, tokens))
    sampled = expectation.without_replacement(*many, 3, torch.Generator().manual_seed(1), samples=1)
    chances["without_replacement|3"] = sampled.view(len(tokens), SAMPLES, 3).mean(1) / p.gather(1, tokens[:, None])
    shape = len(texts), depth
    whole = np.full(len(texts), depth)
    made = replay.Trace(np.array([(0, *text) for text in texts], dtype=np.int32), whole, whole > 0,
                        p.gather(1, tokens[:, None]).numpy().reshape(shape),
                        {"d": np.zeros(shape, np.int32)}, {"d": q.gather(1, tokens[:, None]).numpy().reshape(shape)},
                        tuple("".join(map(str, text)) for text in texts), ("k",) * len(texts),
                        {"target": "t", "temperature": temperature},
                        {f"d|{name}": values.numpy().reshape(*shape, -1) for name, values in chances.items()})
    weights = np.array([float(np.prod([target(text[:i])[token] for i, token in enumerate(text)])) for text in texts])
    return target, drafter, made, weights


@pytest.mark.parametrize("shape", ["star:3", UNEVEN, "chain:2"])
@pytest.mark.parametrize(
    "rule, proposal, close",
    [("multi_step", "iid", 1e-9), ("k_seq", "iid", 1e-6), ("without_replacement", "without_replacement", 0.01)],
)
def test_the_expected_length_is_what_enumeration_finds(rule, proposal, close, shape):
    tree = named(shape)
    for seed, agreement in ((0, 0.6), (1, 0.0)):
        target, drafter, made, weights = every_text(tree.max_depth, seed, agreement)
        law = proof.law(rule, target, drafter, tree, proposal)
        found = expectation.survival(made, tree, "d", rule)[:, 0, 1:].sum(-1) @ weights
        assert found == pytest.approx(law.accepted_length, abs=close)


@pytest.mark.parametrize("length", [1, 3])
def test_block_verification_is_a_running_minimum(length):
    for seed in range(2):
        target, drafter, made, weights = every_text(length, seed)
        law = proof.law("block", target, drafter, named(f"chain:{length}"), "iid")
        block = expectation.block_survival(made, length, "d")
        assert block[:, 0, 1:].sum(-1) @ weights == pytest.approx(law.accepted_length, abs=1e-9)
        by_token = expectation.survival(made, named(f"chain:{length}"), "d", "multi_step")
        assert (block >= by_token - 1e-12).all()


def test_rounds_in_expectation_add_up():
    _, _, made, _ = every_text(4)
    for tree in (named("kary:2,2"), named("chain:1"), named("chain:6")):
        survive = expectation.survival(made, tree, "d", "multi_step")
        starts = expectation._chained_starts(survive)
        assert (survive[..., 1:] <= survive[..., :-1] + 1e-12).all() and (starts[:, 0] == 1).all()
        # Every transition is a round's first, or was accepted by the round before: no token is counted twice or never.
        covered = starts.copy()
        for start in range(4):
            for depth in range(1, tree.max_depth + 1):
                if start + depth < 4:
                    covered[:, start + depth] += starts[:, start] * survive[:, start, depth]
        # A round that accepts d tokens and adds one covers d + 1: those behind its first are its accepted ones.
        assert np.allclose(covered, 1)
        table = expectation.tally(made, survive)
        assert (table["accepted"] <= table["rounds"] * tree.max_depth + 1e-9).all()
