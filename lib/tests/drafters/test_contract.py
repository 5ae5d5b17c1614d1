"""The contract of every kind of drafter in the registry: a new kind is tested by its row.

Greedy text is the target's own, whatever drafts, for static and grown trees, in each forward pass of the target. Drafts
carry their proposal. A growth rule is followed or refused by name. Where the traits say so, replay has the rounds of
live decoding.
"""

from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from lib import replay
from lib.drafters.drafter import Drafter
from lib.drafters.registry import BY_RANKS, DRAFTERS, LIVE, Kind, make, parse
from lib.forward.passes import NATIVE, forward_pass
from lib.replay import simulated
from lib.tests.drafters.made import MODEL, NEW_TOKENS, OTHER, PAIR, PROMPTS, SPECS, continuations, decode, draws, made
from lib.tests.live import live_rounds, replayed_rounds
from lib.trees import Tree, named
from lib.verify import Draft

FLOAT32 = SimpleNamespace(**vars(PAIR) | {"target": deepcopy(MODEL).float(), "draft_model": deepcopy(OTHER).float()})
STATIC = ("chain:4", "kary:2@6", "expansion:3,1,2")
GROWN = ("eagle2:2,3@5", "ddtree:3@6")
GROWING = [spec for spec in SPECS if made(spec).traits.grows and "iid" not in spec and "without" not in spec]


@cache
def decoded(spec, shape):
    """Decoded live once for all tests, in batches of three and two prompts."""
    return decode(made(spec), shape=shape, rows=3)


@pytest.mark.parametrize("spec", SPECS)
def test_greedy_text_is_the_targets_own(spec):
    for shape in STATIC:
        assert decoded(spec, shape).new_tokens == continuations(), shape


@pytest.mark.skipif(forward_pass(FLOAT32.target).name != NATIVE, reason="the machine has no native forward pass")
@pytest.mark.parametrize("spec", SPECS)
def test_with_a_native_forward_pass_each_token_is_the_targets_best(spec):
    """In float32, up to logits that are nearly equal."""
    done = decode(made(spec, FLOAT32), FLOAT32.target, shape="kary:2@6", rows=3, forward=NATIVE)
    for prompt, tokens in zip(PROMPTS, done.new_tokens):
        logits = MODEL(torch.cat([prompt, torch.tensor(tokens)])[None]).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (logits.max(-1).values - chosen).max() < 1e-4 and len(tokens) == NEW_TOKENS


@pytest.mark.parametrize("rule", GROWN)
@pytest.mark.parametrize("spec", SPECS)
def test_a_growth_rule_is_followed_or_refused_by_name(spec, rule):
    try:
        done = decoded(spec, rule)
    except ValueError as refusal:
        assert f"'{rule}'" in str(refusal) and spec not in GROWING
    else:
        assert done.new_tokens == continuations()
        assert spec not in GROWING or any(record.drafted for record in done.rounds)


@pytest.mark.parametrize("spec", SPECS)
def test_a_draft_carries_its_proposal_and_distinct_siblings(spec):
    drafter = made(spec)
    drafter.start(PROMPTS)
    prefilled = MODEL(pad_sequence(PROMPTS, batch_first=True), output_hidden_states=True)
    roots = [tokens[0] for tokens in continuations()]
    drafter.commit([[] for _ in PROMPTS], roots, prefilled)
    drafts = drafter.propose(named("kary:2@6"), draws())
    assert [draft.token_list[0] for draft in drafts] == roots and drafter.calls >= 0
    for draft in drafts:
        assert draft.proposal == parse(spec)[1].get("proposal", "top_k")
        siblings = [draft.tokens_of(draft.tree.children(node)) for node in range(draft.tree.size)]
        assert all(len(set(tokens)) == len(tokens) for tokens in siblings)


# -------------------------------------------------------------------------------------------------------------- replay


def recorded(**drafters):
    """A trace whose rounds may start at each token but the last, and which decides the deepest tree."""
    names = [str(row) for row in range(len(PROMPTS))]
    return replay.record(MODEL, drafters, PROMPTS, names=names, kinds=names, max_new_tokens=NEW_TOKENS - 1, beyond=9,
                         ahead=8)


TEXT = simulated.Recorded(recorded(), PROMPTS)


@pytest.mark.parametrize("spec", SPECS)
def test_drafting_again_has_the_rounds_of_live_decoding_where_the_text_decides_them(spec):
    if made(spec).traits.replay == LIVE:
        with pytest.raises(ValueError, match="decode with others live"):
            simulated.rounds(TEXT, made(spec), named("chain:2"))
        return
    for shape in (*STATIC[:2], *(GROWN if spec in GROWING else ())):
        walk = simulated.rounds(TEXT, made(spec), named(shape), rows=4)
        assert replayed_rounds(walk) == live_rounds(decoded(spec, shape)), shape


@pytest.mark.parametrize("spec", [spec for spec in SPECS if made(spec).traits.replay == BY_RANKS])
def test_ranks_decide_the_rounds_of_any_static_tree(spec):
    drafter = made(spec)
    trace = recorded(d=getattr(drafter, "model", drafter))
    for shape in STATIC[2:]:
        both = replay.chained(replay.rounds(trace, named(shape), "d")), decoded(spec, shape)
        walked, live = ([rest for *rest, _ in rounds] for rounds in (replayed_rounds(both[0]), live_rounds(both[1])))
        assert walked == live, shape


class Repeating(Drafter):
    """Drafts one token again and again: the whole of a new drafter."""

    def __init__(self, token: int = 0):
        self.token = token

    def propose(self, shape, draws):
        return [Draft(shape, torch.tensor([root] + [self.token] * shape.budget), "top_k") for root in self.roots]


def test_a_new_drafter_is_one_class_and_one_row(monkeypatch):
    monkeypatch.setattr(Kind, "drafter", property(lambda kind: Repeating))
    monkeypatch.setitem(DRAFTERS, "repeating", Kind(""))
    drafter = make("repeating:3", PAIR)
    assert isinstance(drafter, Repeating) and drafter.window is None and not drafter.wants_hidden_states
    assert decode(drafter, shape=Tree([-1, 0, 1, 2])).new_tokens == continuations()
    with pytest.raises(ValueError, match="a Repeating cannot be recorded in a trace"):
        drafter.read_ahead((), PROMPTS, [1] * 4, 2)
