"""Rules over large vocabularies; warping and drawing; refusals that name the thing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import Tree, shapes
from lib.verify import RULES, Draft, GeneratorDraws, verify, warp
from lib.verify.rules import k_seq_scale, threshold, typical
from lib.verify.warping import best_token

VOCABULARIES = st.sampled_from([2, 7, 511, 1023, 1024, 1025, 1536, 3000])


class Listed:
    """Draws from a given list of numbers; a token is drawn by inversion of the running sum."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def uniform(self):
        return self.numbers.pop(0)

    def categorical(self, probs):
        return int(torch.searchsorted(probs.cumsum(-1), self.numbers.pop(0) * probs.sum(), right=True))


SEEDED = GeneratorDraws(torch.Generator().manual_seed(0))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 60), st.integers(2, 9), st.integers(0, 10_000))
def test_the_scale_of_k_seq_solves_its_equation_from_above(vocabulary, k, seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.softmax(2 * torch.randn(2, vocabulary, dtype=torch.float64, generator=generator), -1)
    rho = k_seq_scale(p, q, k)
    b = float(torch.minimum(p / rho, q).sum())
    assert 1 <= rho <= k and -1e-12 <= rho * b - (1 - (1 - b) ** k) <= 2e-8


def test_greedy_follows_the_best_token_and_takes_logits_too():
    tree = Tree([-1, 0, 0, 1, 2])
    draft = Draft(tree, torch.tensor([0, 5, 7, 3, 3]), "top_k")
    logits = torch.zeros(5, 9)
    for node, token in enumerate([7, 1, 3, 2, 8]):
        logits[node, token] = 2.0
    assert verify("greedy", draft, logits, GeneratorDraws(None)) == ([2, 4], 8)
    assert verify("greedy", draft, warp(logits, 0.0), GeneratorDraws(None)) == ([2, 4], 8)
    assert draft.along([7, 3, 8, 1]) == [2, 4] == draft.follow([7, 1, 3, 2, 8].__getitem__)[0]
    logits[0, 5] = 2.0  # of equals the first wins
    assert verify("greedy", draft, logits, GeneratorDraws(None)) == ([1], 1)


def test_lossy_rules_by_hand():
    tree = Tree([-1, 0, 0, 1, 2])  # tokens 0 and 1 after the root, 2 after each
    draft = Draft(tree, torch.tensor([0, 0, 1, 2, 2]), "top_k", torch.tensor([[0.6, 0.4, 0.0]] + [[0.0, 0.5, 0.5]] * 4))
    target = torch.tensor([[0.3, 0.5, 0.2], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5], [0.4, 0.4, 0.2]])
    # p >= q: 0.3 < 0.6, 0.5 >= 0.4; then 0.8 >= 0.5
    assert verify("deterministic", draft, target, Listed(0.5)) == ([2, 4], 1)
    # p >= q / 2 takes the first child already; after it 0.1 < 0.25, and the bonus is drawn from p there
    assert verify("conservative", draft, target, Listed(0.5)) == ([1], 0)
    # 0.3 >= 0.3 takes the first child; after it the number 0.9 >= 0.1, and the bonus is no child
    assert verify("threshold", draft, target, Listed(0.9, 0.9, 0.95)) == ([1], 1)
    assert threshold(draft, target, Listed(0.9, 0.05, 0.95), single=0.6) == ([], 2)
    # all four qualify at epsilon 0.09: both leaves are deepest, 0.5 * 0.8 is the likelier path
    assert verify("typical", draft, target, Listed(0.5)) == ([2, 4], 1)
    # entropy: 0.1 qualifies after node 1 where exp(-H) is small enough only
    assert typical(draft, target, Listed(0.5), epsilon=0.4, delta=0.9) == ([2, 4], 1)
    assert typical(draft, target, Listed(0.5), epsilon=1.1, delta=99.0) == ([], 1)
    # U < 0.3 / 0.6 fails at 0.6, U < 0.5 / 0.4 does not; then U < 0.8 / 0.5
    assert verify("stochastic", draft, target, Listed(0.6, 0.9, 0.9, 0.5)) == ([2, 4], 1)
    # both fail, and the bonus is drawn from p, where it may be the rejected token 0
    assert verify("stochastic", draft, target.roll(1, -1), Listed(0.5, 0.8, 0.1)) == ([], 0)


@pytest.mark.parametrize(
    "name, changed, message",
    [("gredy", {}, "rule is 'gredy'"), ("multi_step", {}, "not valid for 'top_k' drafts, only for iid"),
     ("without_replacement", {"proposal": "iid"}, "only for without_replacement"),
     ("k_seq", {"proposal": "without_replacement"}, "only for iid"), ("block", {}, "defined for chains"),
     ("naive", {"rows": 2}, "target_probs has shape"),
     ("naive", {"vocabulary": 5}, "over 4 tokens, the target's over 5"),
     ("deterministic", {"probs": None}, "comes without probs")],
)
def test_what_a_rule_is_not_for_is_refused_by_name(name, changed, message):
    case = {"proposal": "top_k", "rows": 4, "vocabulary": 4, "probs": torch.full((4, 4), 0.25)} | changed
    draft = Draft(Tree([-1, 0, 0, 1]), torch.tensor([0, 1, 2, 3]), case["proposal"], case["probs"])
    with pytest.raises(ValueError, match=message):
        verify(name, draft, torch.full((case["rows"], case["vocabulary"]), 0.25), SEEDED)


@pytest.mark.parametrize(
    "changed, message",
    [(dict(proposal="best"), "proposal is 'best'"), (dict(tokens=torch.zeros(2)), "tokens have shape"),
     (dict(proposal="iid", probs=None), "comes without probs"), (dict(probs=torch.zeros(2, 5)), "one row per node"),
     (dict(counts=torch.ones(2)), "counts have shape")],
)
def test_a_draft_that_does_not_fit_is_refused(changed, message):
    fields = dict(tree=shapes.chain(2), tokens=torch.zeros(3, dtype=torch.long), proposal="top_k",
                  probs=torch.zeros(3, 5))
    with pytest.raises(ValueError, match=message):
        Draft(**fields | changed)


@settings(deadline=None, max_examples=30)
@given(VOCABULARIES, st.integers(0, 10_000), st.booleans())
def test_the_best_token_is_the_first_of_the_largest(vocabulary, seed, ties):
    scores = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed))
    scores = scores.round() if ties else scores
    assert best_token(scores).tolist() == [int(np.argmax(row)) for row in scores.numpy()]


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(0, 10_000), st.floats(0.05, 5), st.integers(1, 45) | st.none(),
       st.floats(0.01, 1) | st.none())
def test_warping_cuts_and_scales(vocabulary, seed, temperature, top_k, top_p):
    logits = torch.randn(vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = warp(logits, temperature, top_k, top_p)
    order = sorted(range(vocabulary), key=lambda token: -float(logits[token]))
    mass = np.exp(logits.numpy()[order] / temperature - float(logits.max()) / temperature)
    mass = mass[:top_k] / mass[:top_k].sum()
    if top_p is not None:
        mass = mass[np.cumsum(mass) - mass < top_p] if top_p < 1 else mass
    expected = np.zeros(vocabulary)
    expected[order[: len(mass)]] = mass / mass.sum()
    assert np.allclose(found.numpy(), expected, atol=1e-9)


@settings(deadline=None)
@given(vocabulary=st.integers(1, 300), seed=st.integers(0, 999), spread=st.sampled_from([1.0, 20.0, 40.0, 200.0]),
       hidden=st.booleans())
def test_float32_probabilities_are_normal_numbers_or_nothing(vocabulary, seed, spread, hidden):
    """For any range of logits, including minus infinity; all other probabilities stay the same."""
    logits = spread * torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed))
    if hidden:
        logits[:, 1::2] = -math.inf
    found, truth = warp(logits, 0.7), torch.softmax(logits.double() / 0.7, dim=-1)
    assert not ((found > 0) & (found < torch.finfo(torch.float32).tiny)).any()
    torch.testing.assert_close(found.double(), truth, rtol=3e-4, atol=2e-30)
    assert torch.equal(warp(logits.double(), 0.7), truth)


def test_warping_at_the_edges():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, -2.0]])
    assert warp(logits, 0).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert warp(logits.bfloat16(), 0.7).dtype == torch.float32
    assert warp(logits, 1.0, top_p=0.001).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert (warp(logits, 1.0, top_k=1) > 0).tolist() == [[False, True, True], [True, False, False]]
    for wrong in (dict(temperature=-1.0), dict(temperature=float("nan")), dict(temperature=1.0, top_k=0),
                  dict(temperature=1.0, top_p=0.0)):
        with pytest.raises(ValueError, match="; give"):
            warp(logits, **wrong)


@settings(deadline=None, max_examples=80)
@given(VOCABULARIES, st.integers(0, 10_000), st.floats(0, 1, exclude_max=True),
       st.sampled_from([(torch.float64, 1e-12), (torch.float32, 1e-4)]))
def test_a_token_is_drawn_by_inversion(vocabulary, seed, share, precision):
    dtype, rounding = precision
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(vocabulary, dtype=torch.float64, generator=generator) ** 8
    probs[torch.rand(vocabulary, generator=generator) < 0.3] = 0
    probs[seed % vocabulary] = 1.0
    draws = GeneratorDraws(None)
    draws.uniform = lambda: share
    token, ends = draws.categorical(probs.to(dtype)), np.cumsum(probs.numpy())
    assert probs[token] > 0
    slack = rounding * ends[-1]
    assert ends[token] - float(probs[token]) - slack <= share * ends[-1] <= ends[token] + slack


def test_the_last_number_below_one_still_draws_a_token():
    draws = GeneratorDraws(None)
    draws.uniform = lambda: 1 - 2**-53
    assert draws.categorical(torch.tensor([0.1] * 10 + [0.0] * 3)) == 9
    assert draws.categorical(torch.tensor([1e-3] * 2047 + [0.0])) == 2046


@pytest.mark.parametrize("probs", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_no_token_can_be_drawn_from_nothing(probs):
    with pytest.raises(ValueError, match="probabilities sum to"):
        SEEDED.categorical(torch.tensor(probs))


def test_a_drawn_token_whose_q_rounding_has_made_zero_is_rejected():
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    for name in ("multi_step", "k_seq", "without_replacement", "block", "traversal", "stochastic"):
        for proposal in RULES[name].proposals - {"top_k"}:
            draft = Draft(shapes.chain(1), torch.tensor([0, 0]), proposal, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
            assert verify(name, draft, p, SEEDED)[0] == []
