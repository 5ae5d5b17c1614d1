"""Pairs of target and drafter that have caught rules out: supports that miss each other, zeros, ties, certainty,
equality."""

import torch

from lib.verify.proof.small_languages import Logits

VOCABULARY, DEPTH = 3, 3


def random_pair(seed: int, vocabulary: int = VOCABULARY, depth: int = DEPTH):
    """Independent or related random conditionals; every third pair has zeros, every fifth is nearly certain."""
    generator = torch.Generator().manual_seed(seed)
    target = Logits.random(vocabulary, depth, generator)
    drafter = target.related(float(torch.rand((), generator=generator)), generator)
    spread = 12.0 if seed % 5 == 4 else 2.0
    pair = [target.language(1.0, spread), drafter.language(1.0, spread)]
    return [thinned(language, index) for index, language in enumerate(pair)] if seed % 3 == 2 else pair


def thinned(language, index: int):
    """A language without some of its tokens: which ones changes with the path, and with the language."""

    def probs(path):
        p = language(path).clone()
        p[(sum(path) + index + len(path)) % len(p)] = 0
        return p / p.sum()

    return probs


def constant(*masses: float):
    """The same conditional everywhere."""
    p = torch.tensor(masses, dtype=torch.float64)
    p = p / p.sum()
    return lambda path: p


def _turning(language):
    """The tokens turn with the depth, so that levels differ."""
    return lambda path: language(path).roll(len(path))


_mild = random_pair(1)[0]
HARD = {
    "equal": (_mild, _mild),
    "uniform, equal": (constant(1, 1, 1), constant(1, 1, 1)),
    "disjoint": (constant(1, 2, 0), constant(0, 0, 1)),
    "disjoint, drafter wide": (constant(0, 0, 1), constant(3, 1, 0)),
    "overlap in one": (constant(1, 1, 0), constant(0, 1, 2)),
    "target certain": (constant(0, 1, 0), constant(2, 1, 1)),
    "drafter certain, right": (constant(2, 1, 1), constant(1, 0, 0)),
    "drafter certain, wrong": (constant(0, 2, 1), constant(1, 0, 0)),
    "both certain, equal": (constant(1, 0, 0), constant(1, 0, 0)),
    "both certain, apart": (constant(1, 0, 0), constant(0, 1, 0)),
    "ties": (constant(2, 1, 1), constant(1, 1, 2)),
    "drafter nearly certain": (constant(1, 1, 1), constant(1, 1e-9, 1e-18)),
    "drafter almost equal": (constant(0.5, 0.3, 0.2), constant(0.5, 0.3 + 1e-15, 0.2 - 1e-15)),
    "a denormal": (constant(1, 1e-310, 1), constant(1e-310, 1, 1)),
    "turning": (_turning(constant(3, 2, 0)), _turning(constant(0, 1, 1))),
    "turning, apart": (_turning(constant(3, 0, 1)), _turning(constant(0, 1, 0))),
}
